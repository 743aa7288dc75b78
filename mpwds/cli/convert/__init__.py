"""Commands that make shards of other data: ``create``, ``convert``, ``index``; and ``bench``.

``create`` finds out what its source is in ``finding.py``: files (``folders.py``), rows of lists
(``tables.py``) or of Arrow files (``arrow.py``), or MDS.
``convert`` translates fields by ``cli/encodings.py``; it reads and writes by ``pipeline/sources/formats.py``.
"""
