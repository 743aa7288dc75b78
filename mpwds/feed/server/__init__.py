"""The server's side of a feed.

``server.py`` runs one thread that relays. ``router.py`` is its socket, ``clients.py`` knows the clients, and
``worker_relay.py`` relays what one worker sends, whose process runs ``serving.py``.
``docs/how-it-works/feed-protocol.md`` says what is exchanged.
"""
