"""Workers on other machines, reached over ZeroMQ.

``wire.py`` has the messages, ``server`` runs the workers, and ``trainer`` uses them as a loader does.
``keys.py`` secures sockets, ``handover.py`` passes shared memory on one machine, ``viewing`` and
``metrics.py`` show what happens.
"""
