"""MDS, the format of mosaicml-streaming (version 2) and composer (version 1).

Read ``shards_v2.py`` first: it parses the index and reads samples by number, whose columns ``encodings.py``
decodes. ``fetched_shards.py`` says where a dataset is, and brings its shards to a local folder.
``shards_v1.py`` is the same for version 1. ``writers.py`` writes both.
"""
