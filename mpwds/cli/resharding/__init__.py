"""Commands from shards to shards: split, merge, shuffle, sort, proc."""
