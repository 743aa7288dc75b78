"""Commands that read shards: ``shards.py`` reads samples past damage, ``selection.py`` chooses among them."""
