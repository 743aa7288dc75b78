"""Commands from shards to shards.

A sample is a run of blocks in a shard (``raw_samples.py``), which ``sink.py`` copies without decoding.
"""
