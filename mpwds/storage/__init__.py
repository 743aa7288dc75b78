"""Files and formats. Nothing here knows of processes that load.

``streams`` opens URLs, ``tar`` and ``mds`` read formats, ``indexed`` reads tar by number, ``writing`` writes,
``caches`` keeps copies.
"""
