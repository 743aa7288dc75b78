"""``mpwds demo``: the command (``demo.py``), its data and training (``training.py``), and ``--remote``
(``remote.py``): training from two servers, of which one is killed.
"""
