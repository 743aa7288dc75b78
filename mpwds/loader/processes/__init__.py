"""How worker processes start and end.

``launchers.py`` has the start methods, ``setup.py`` what a new worker is sent, ``environment.py`` what it
gets of the trainer's environment, and ``processes.py`` how a process ends with its parent. ``forkserver.py``
is the trainer's side of the fork server and ``forkserver_process.py`` the server itself.
"""
