"""The server's side of a feed.

``server.py`` runs one thread that relays. ``router.py`` is its socket, ``trainers.py`` knows the clients, and
``slot.py`` holds one worker, whose process runs ``serving.py``. ``docs/feed-protocol.md`` says what is
exchanged.
"""
