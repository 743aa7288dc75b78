"""Local copies of shards: one process of a machine downloads, others follow or wait.

Read ``fetch.py``, which documents the protocol, then ``shard_cache.py``. ``locks.py`` locks files,
``eviction.py`` removes copies.
"""
