"""Stages that keep elements, so that later epochs do not make them again.

``stored.py`` is the stream of all of them. ``mcached.py`` keeps elements in memory, ``disk_cached.py`` in a
:class:`DiskStore` (``disk_store.py``).
"""
