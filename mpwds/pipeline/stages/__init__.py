"""The stages of pipelines.

A file holds one idea: documented functions, and the classes that they return. ``map.py`` is a good first one
to read. ``collation.py`` makes the batches of ``batched.py``.
"""
