"""What a command has written, as a user reads it."""

import mpwds


def read(*paths):
    """The samples of shards, without what tells where they lie."""
    return [
        {name: value for name, value in sample.items() if name not in ("__url__", "__local_path__")}
        for path in paths
        for sample in mpwds.WebDataset(str(path))
    ]
