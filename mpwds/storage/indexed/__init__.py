"""Tar shards by number.

``shards.py`` says what any indexed format offers; ``tar_shards.py`` implements it for tar. ``offsets.py``
finds and keeps where samples are, ``mapped_shard.py`` and ``remote_shard.py`` read one shard.
``descriptions.py`` and ``describing.py`` read and make wids' JSON.
"""
