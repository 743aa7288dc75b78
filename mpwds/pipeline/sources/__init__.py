"""Where pipelines begin.

``shards.py`` lists shards and splits them over ranks and workers, ``shard_stream.py`` reads one after the
other, and ``samples.py`` groups members into samples. ``elements.py`` begins at any iterable, ``records.py``
at record files, ``specs.py`` at a YAML description, ``directory_shards.py`` at a folder that fills.
"""
