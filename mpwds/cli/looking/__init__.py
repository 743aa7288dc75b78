"""Commands that read shards: ``ls``, ``info``, ``show``, ``cat``, ``extract``, ``verify`` and ``repair``.

Each command is a file. ``samples`` chooses and reads samples, ``checking`` finds and repairs damage,
``showing`` describes and draws. ``folder.py`` writes files below a folder and nowhere else.
"""
