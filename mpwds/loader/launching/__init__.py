"""Launches workers: fresh interpreters, forks of the trainer, or forks of a fork server.

``launchers.py`` has the start methods. ``forkserver.py`` is the trainer's side of the fork server and
``forkserver_process.py`` the server itself.
"""
