"""The trainer's side of a feed.

``remote_loader.py`` is the public class. ``remote_worker.py`` is a worker as an epoch uses it, ``servers.py``
the thread that receives, and ``links.py`` a connection to one server.
"""
