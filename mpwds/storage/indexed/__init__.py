"""Tar shards by number.

``shards.py`` says what any indexed format offers, and ``tar_shards.py`` implements it for tar. ``offsets.py``
finds where samples are, and keeps that. ``descriptions.py`` and ``describing.py`` read and make descriptions.
"""
