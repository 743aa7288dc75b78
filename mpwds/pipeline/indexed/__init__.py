"""Datasets whose samples have numbers.

``source.py`` is the source of a pipeline over any ``storage.indexed.shards.IndexedShards``, with the orders
of its epochs. ``dataset.py`` is the public class. ``mds_datasets.py`` has the datasets of mosaicml-streaming
and composer; ``shard_list.py`` and ``samplers.py`` are those of wids.
"""
