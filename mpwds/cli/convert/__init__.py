"""Commands that make shards of other data: ``create``, ``convert``, ``index``; and ``bench``.

``finding.py`` says what the source of ``create`` is: files (``folders.py``), rows of lists (``tables.py``) or
of Arrow files (``arrow.py``), or MDS.
"""
