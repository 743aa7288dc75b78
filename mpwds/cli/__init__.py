"""The command line ``mpwds``.

``app.py`` lists the commands, and ``main.py`` runs one and shows its errors. Rooms: ``looking`` inspects
shards, ``making`` makes them of other data, ``resharding`` makes shards of shards, ``feed`` serves and
watches, ``demo`` trains. All rooms share ``outputs.py`` (where commands write), ``journal.py`` (resuming
after a kill), ``shards.py``, ``options.py`` and ``progress.py``.
"""
