"""What tests of the commands that make datasets share."""

import tarfile

import pytest


@pytest.fixture
def write_files(tmp_path):
    """Writes files, given by their names with a slash for folders; returns the folder they are in."""

    def write(files, folder="source"):
        for name, content in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return tmp_path / folder

    return write


@pytest.fixture
def members():
    """Reads a tar file with Python's own module: a dictionary of contents by name."""

    def read(path):
        with tarfile.open(path) as archive:
            return {member.name: archive.extractfile(member).read() for member in archive}

    return read
