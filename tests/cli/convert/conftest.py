"""What tests of the commands that make datasets share."""

import tarfile

import pytest


@pytest.fixture
def members():
    """Reads a tar file with Python's own module: a dictionary of contents by name."""

    def read(path):
        with tarfile.open(path) as archive:
            return {member.name: archive.extractfile(member).read() for member in archive}

    return read
