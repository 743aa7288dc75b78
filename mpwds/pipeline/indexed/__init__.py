"""Datasets whose samples have numbers.

``source.py`` is the source of a pipeline over any ``storage.indexed.shards.IndexedShards``, ``orders.py`` and
``permutation.py`` its orders, ``dataset.py`` the public class, and ``opening.py`` opens what it is given. The
other files are the datasets and samplers of wids and mosaicml-streaming.
"""
