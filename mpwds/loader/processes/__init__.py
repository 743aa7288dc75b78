"""How worker processes start and end.

``launchers.py`` has the start methods, ``setup.py`` what a new worker is sent, ``dataset_pickler.py`` how a
dataset travels, and ``processes.py`` how a process ends with its parent. ``forkserver.py`` is the trainer's
side of the fork server and ``forkserver_process.py`` the server itself.
"""
