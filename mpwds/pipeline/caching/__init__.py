"""Stages that keep elements, so that later epochs do not make them again: in memory, in SQLite or in LMDB.

``stored.py`` is the stream of all three, ``store.py`` the base of their stores.
"""
