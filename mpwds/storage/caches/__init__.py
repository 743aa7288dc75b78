"""Local copies of shards: one process of a machine downloads, others follow or wait.

Read ``directory.py`` for the files, ``fetch.py`` for the protocol, then ``shard_cache.py``, the public class.
``locks.py`` locks files.
"""
