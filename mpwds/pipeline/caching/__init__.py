"""Stages that keep elements, so that later epochs do not make them again.

``stored.py`` is their stream, and keeps elements in memory. ``disk_cached.py`` keeps them in a
:class:`DiskStore` (``disk_store.py``).
"""
