"""Commands on shards: ``extract``, ``show``, and in ``commands.py`` ``ls``, ``cat``, ``info``, ``verify`` and
``repair``.

``shards.py`` turns arguments into shards and reads their samples past damage, ``selection.py`` selects
samples and fields. ``describing.py`` says what fields hold,
``sheet.py`` draws samples for ``show``.
"""
