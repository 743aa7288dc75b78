"""MDS, the format of mosaicml-streaming (version 2) and composer (version 1).

``index_v2.py`` describes the format, ``shards_v2.py`` reads, ``writer_v2.py`` writes; ``_v1`` is the same for
version 1. ``location.py`` says where a dataset is, ``local_shards.py`` brings shards there.
"""
