"""Shards to cut, merge, shuffle and sort."""

import io
import tarfile

import pytest


@pytest.fixture
def make_shard(tmp_path):
    """Writes a shard of samples, ``{key: {extension: bytes}}``, with times, modes and owners; returns its
    members as tarfile reads them."""

    def make(name, samples, mode="w"):
        with tarfile.open(tmp_path / name, mode, format=tarfile.PAX_FORMAT) as archive:
            for number, (key, fields) in enumerate(samples.items()):
                for extension, data in fields.items():
                    info = tarfile.TarInfo(f"{key}.{extension}")
                    info.size, info.mtime, info.mode = len(data), 1.25 + number, 0o640
                    info.uname = "someone"
                    archive.addfile(info, io.BytesIO(data))
        return read(name)

    return make


@pytest.fixture
def two_shards(make_shard):
    """``in-0.tar`` and ``in-1.tar`` of 10 samples each; returns their members."""
    members = []
    for shard in range(2):
        fields = ({"jpg": bytes([n]) * (300 * n), "cls": b"%d" % (n * 7 % 10)} for n in range(10))
        samples = {f"{shard}{n:03}": each for n, each in enumerate(fields)}
        members += make_shard(f"in-{shard}.tar", samples)
    return members


def read(*names):
    found = []
    for name in names:
        with tarfile.open(name) as archive:
            for info in archive:
                data = archive.extractfile(info).read() if info.isreg() else None
                found.append((info.name, info.mtime, info.mode, info.uname, data))
    return found


@pytest.fixture
def members():
    """What tarfile reads from shards: names, times, modes, owners and data."""
    return read


@pytest.fixture
def keys():
    """The keys of the samples in shards."""

    def keys(*names):
        of_members = [name.partition(".")[0] for name, *_ in read(*names)]
        return [key for number, key in enumerate(of_members) if number == 0 or of_members[number - 1] != key]

    return keys
