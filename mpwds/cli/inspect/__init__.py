"""Commands on shards: ``ls``, ``cat``, ``extract`` (``commands.py``), ``info``, ``verify``, ``repair``.

``shards.py`` turns arguments into shards and reads their samples past damage, ``selection.py`` selects
samples and fields, by the conditions of ``expressions.py``. ``describing.py`` says what fields hold,
``sheet.py`` draws samples for ``show`` (``show.py``), ``folder.py`` writes below one folder only.
"""
