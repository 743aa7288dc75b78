"""``mpwds demo``: the command (``demo.py``), also with ``--remote``, which trains from two servers and kills
one. Its data, network and training loop are in ``training.py``.
"""
