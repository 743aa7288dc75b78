"""The client's side of a feed: a training process that uses the workers of servers.

``remote_loader.py`` is the public class and the source of remote workers. ``remote_worker.py`` is a worker as
an epoch uses it, ``connections.py`` the thread that receives, and ``connection.py`` one connection, its
options and its receive queues.
"""
