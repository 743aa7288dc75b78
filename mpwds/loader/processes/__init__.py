"""Worker processes: ``processes.py`` says how they start and end with their trainer, ``setup.py`` what a new
one is sent, and ``environment.py`` what it gets of the trainer's environment.
"""
