"""Shards to look at, whole and damaged."""

import io
import json
import tarfile

import pytest

import mpwds
from mpwds.storage.tar.scanning import ScannedMember, scan


@pytest.fixture(scope="session")
def samples(picture, saved):
    """Twenty-four samples with an image, a label, a structure and a text."""
    return [
        {
            "__key__": f"n{number % 3}/{number:04d}",
            "jpg": saved(picture(number % 3, 16 + number, 20), "JPEG"),
            "cls": number % 3,
            "json": {"width": 16 + number, "source": "web" if number % 2 else "scan"},
            "txt": f"sample number {number}",
        }
        for number in range(24)
    ]


@pytest.fixture
def shards(tmp_path, samples):
    """The pattern of three shards of eight samples each."""
    for shard in range(3):
        with mpwds.TarWriter(tmp_path / f"train-{shard}.tar", mtime=0) as sink:
            for sample in samples[8 * shard : 8 * shard + 8]:
                sink.write(sample)
    return f"{tmp_path}/train-{{0..2}}.tar"


@pytest.fixture
def shard(shards, tmp_path):
    """The first of these shards."""
    return tmp_path / "train-0.tar"


@pytest.fixture
def entries():
    """The members of a shard, with their data."""

    def entries(path):
        return [each for each in scan(str(path), lambda name: True) if isinstance(each, ScannedMember)]

    return entries


@pytest.fixture
def rewritten(entries):
    """Writes a shard's members again, in the order and number that a function makes of their list."""

    def rewritten(path, change):
        blocks = [entry.blocks for entry in change(entries(path))]
        path.write_bytes(b"".join(blocks) + bytes(1024))

    return rewritten


@pytest.fixture
def flipped():
    """Flips bits of a byte of a file."""

    def flipped(path, offset, bits=0x41):
        data = bytearray(path.read_bytes())
        data[offset] ^= bits
        path.write_bytes(data)

    return flipped


@pytest.fixture
def tar(tmp_path):
    """Writes a tar archive of files whose names may be anything."""

    def tar(name, files):
        with tarfile.open(tmp_path / name, "w") as archive:
            for member, data in files.items():
                info = tarfile.TarInfo(member)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return tmp_path / name

    return tar


@pytest.fixture
def objects():
    """The objects of JSON lines."""

    def objects(text):
        return [json.loads(line) for line in text.splitlines()]

    return objects
