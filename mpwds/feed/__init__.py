"""Workers on other machines, reached over ZeroMQ.

``wire.py`` has the messages, ``server`` runs the workers, and ``client`` uses them as a loader does.
``keys.py`` secures sockets, ``fd_passing.py`` passes shared memory on one machine. ``status_client.py`` asks
servers for their status, of which ``report.py`` makes a report, for commands, ``page.py`` and ``metrics.py``.
"""
