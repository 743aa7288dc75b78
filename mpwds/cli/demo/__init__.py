"""The command ``mpwds demo``: a small training from the first shard to the accuracy.

Read ``demo.py`` first. ``digits.py`` and ``own_shards.py`` provide data, ``training.py`` trains, and
``remote.py`` does the same with two servers.
"""
