"""Stages that keep elements, so that later epochs do not make them again.

``cached.py`` has the stages and their stream, ``disk_store.py`` the store on disk.
"""
