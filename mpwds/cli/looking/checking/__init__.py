"""What is wrong with shards, and copies without it."""
