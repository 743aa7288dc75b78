"""Datasets: a source, stages, and streams of elements that have addresses.

Read ``stream.py`` (the protocol), ``filter.py`` (bases of stages), ``stages/map.py`` (a stage) and
``dataset.py`` in this order. ``sources`` reads shards, ``decoding`` decodes fields, ``collation`` makes
batches, ``caching`` keeps elements, ``indexed`` reads samples by number, and ``mix.py`` joins datasets.
Nothing here knows of processes.
"""
