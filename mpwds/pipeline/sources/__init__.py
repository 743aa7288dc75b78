"""Beginnings of pipelines. ``webdataset.py`` puts the parts together.

``shards.py`` lists and divides shards, ``shard_stream.py`` reads one after the other, ``samples.py`` groups
members into samples. ``specs.py`` begins at a YAML description, ``directory_shards.py`` at a folder that
fills. ``formats.py`` is the table of formats.
"""
