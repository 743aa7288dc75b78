"""Datasets: a source, stages, and streams of elements that have addresses.

Read ``stream.py`` (the protocol, and what parts answer), ``filter.py`` (bases of stages), ``stages/map.py``
(a stage) and ``dataset.py`` in this order. ``coercion.py`` makes sources and stages of what users pass.
``sources`` reads shards and joins datasets, ``decoding`` decodes fields, ``rebatch`` makes batches of other
batches' rows, ``caching`` keeps elements, ``indexed`` reads samples by number. None knows of processes.
"""
