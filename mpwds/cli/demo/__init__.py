"""``mpwds demo``: the command in ``demo.py``; data, network and training loop in ``training.py``."""
