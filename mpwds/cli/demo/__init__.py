"""``mpwds demo``: its data, its training and its command."""
