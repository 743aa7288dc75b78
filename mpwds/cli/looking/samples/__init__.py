"""The samples that a command is about.

``sources.py`` turns arguments into shards, ``reading.py`` and ``mds.py`` read their samples past damage, and
``choosing.py`` selects samples and fields, by the expressions of ``expressions.py``.
"""
