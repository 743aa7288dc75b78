"""The command line ``mpwds``: ``app.py`` lists the commands, ``main.py`` runs one and shows its errors.

Rooms: ``inspect`` reads shards and, for ``mpwds show``, feeds; ``convert`` makes shards of other data,
``reshard`` makes shards of shards, ``feed`` serves and watches, ``demo`` trains.
"""
