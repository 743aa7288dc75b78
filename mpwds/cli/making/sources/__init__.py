"""What ``mpwds create`` makes shards of.

``finding.py`` recognises a source; the other files read one kind each.
"""
