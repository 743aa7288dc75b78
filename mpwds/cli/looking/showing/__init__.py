"""What shards hold, in figures and pictures."""
