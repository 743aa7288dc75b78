"""Commands that make shards of other data: ``create``, ``convert``, ``index``; and ``bench``.

``create`` finds samples in ``sources``, plans all shards in ``planning.py``, and writes them in
``writing.py``. ``convert`` reads by ``formats.py``, translates fields by ``encodings.py``, and writes by
``sinks.py``.
"""
