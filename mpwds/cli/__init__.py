"""The command line ``mpwds``.

``app.py`` lists the commands, and ``main.py`` runs one and shows its errors. Rooms: ``inspect`` reads shards
and, for ``mpwds show``, feeds; ``convert`` makes shards of other data, ``reshard`` makes shards of shards,
``feed`` serves and watches, ``demo`` trains. Only ``inspect`` imports another, ``feed``. All share
``console.py`` (what is printed), ``jobs.py`` (processes), ``outputs.py`` (where commands write, and how they
resume after a kill), ``options.py``; of data: ``shards.py``, ``encodings.py``.
"""
