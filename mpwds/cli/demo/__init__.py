"""``mpwds demo``: the command (``demo.py``), and its data and training (``training.py``)."""
