"""The command line ``mpwds``.

``app.py`` lists the commands, and ``main.py`` runs one and shows its errors. Rooms, none of which imports
another: ``inspect`` reads shards, ``convert`` makes them of other data, ``reshard`` makes shards of shards,
``feed`` serves and watches, ``demo`` trains. ``show.py`` stands above ``inspect`` and ``feed``. All share
``console.py`` (what is printed), ``jobs.py`` (processes), ``outputs.py`` (where commands write),
``journal.py`` (resuming after a kill), ``options.py``; of data: ``shards.py``, ``encodings.py``.
"""
