"""Commands that look at shards and mend them."""
