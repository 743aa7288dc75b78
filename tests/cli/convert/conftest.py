"""What tests of the commands that make datasets share."""

import tarfile

import pytest

import mpwds


@pytest.fixture
def members():
    """Reads a tar file with Python's own module: a dictionary of contents by name."""

    def members(path):
        with tarfile.open(path) as archive:
            return {member.name: archive.extractfile(member).read() for member in archive}

    return members


def read(*paths):
    """The samples of shards, without what tells where they lie."""
    return [
        {name: value for name, value in sample.items() if name not in ("__url__", "__local_path__")}
        for path in paths
        for sample in mpwds.WebDataset(str(path))
    ]
