"""Commands from shards to shards: ``split``, ``merge``, ``shuffle`` and ``sort`` copy samples, ``proc``
changes them.

A sample is a run of blocks in a shard (``raw_samples.py``), which ``sink.py`` copies without decoding.
``ordering.py`` puts samples in order, through temporary files if memory does not suffice. Read
``commands.py`` first; ``proc.py`` stands apart.
"""
