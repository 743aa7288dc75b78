"""Samples of shards of any kind, and the choice among them."""
