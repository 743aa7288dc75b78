"""What the tests of stages share: the two properties that every stream has, and shards to read."""

from __future__ import annotations

import gc
import io
import json
import os
import tarfile
from pathlib import Path

import msgpack
import numpy as np
import pytest

from mpwds.imports import tensor_class
from mpwds.pipeline.stages.collation import Stack
from mpwds.storage.streams.http import pools
from tests.storage.conftest import Web


def plain(value):
    """``value`` with arrays and tensors as what ``==`` can compare."""
    if isinstance(value, np.ndarray):
        return "array", value.dtype.str, value.shape, repr(value.tolist())  # in which NaN is equal
    if isinstance(value, tensor_class()):
        return "tensor", str(value.dtype), tuple(value.shape), repr(value.tolist())
    if isinstance(value, (tuple, list)):
        return type(value)(map(plain, value))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def written(column):
    """A column, written where it is deferred."""
    if not isinstance(column, Stack):
        return column
    assert column.dtype.isnative
    out = np.empty(column.shape, column.dtype)
    column.write_into(out)
    return out


def assert_continues(make, stop):
    """A stream made by ``make`` goes on exactly where another stopped after ``stop`` elements, also twice."""
    whole = plain(list(make()))
    first = make()
    seen = [item for _, item in zip(range(stop), first, strict=False)]
    state = first.state_dict()
    for through in (
        lambda value: json.loads(json.dumps(value)),
        lambda value: msgpack.unpackb(msgpack.packb(value)),
    ):
        second = make()
        second.load_state_dict(through(state))
        state = second.state_dict()  # the next one goes on from where this one was resumed
        assert plain(seen + list(second)) == whole
        assert list(second) == []
    for address, element in whole[:5]:
        assert plain(make().fetch(json.loads(json.dumps(address)))) == element
    assert plain(seen + list(first)) == whole


@pytest.fixture(scope="session")
def continues():
    return assert_continues


SIZES = [5, 0, 1, 7, 3, 4]


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    """Six tar shards of 20 samples in all, one of them empty; sample ``n`` has ``txt`` = ``cls`` = n."""
    folder = tmp_path_factory.mktemp("shards")
    number = 0
    for shard, size in enumerate(SIZES):
        with tarfile.open(folder / f"x-{shard:03d}.tar", "w") as archive:
            for _ in range(size):
                for suffix in ("txt", "cls"):
                    add(archive, f"{number:04d}.{suffix}", str(number).encode())
                number += 1
    return str(folder / "x-{000..005}.tar")


@pytest.fixture
def open_shards():
    """Call it for the paths of the tar files that this process has open."""

    gc.collect()  # an error that an earlier test caught keeps its frames, and so their files

    def paths():
        links = Path("/proc/self/fd").iterdir()
        return [target for link in links if (target := _target(link)).endswith(".tar")]

    return paths


def _target(link):
    try:
        return os.readlink(link)
    except FileNotFoundError:  # the directory that is being listed
        return ""


@pytest.fixture
def tar(tmp_path):
    """A function that writes a shard of pairs of a name and bytes, and returns its path."""

    def write(members, name="x.tar"):
        with tarfile.open(tmp_path / name, "w") as archive:
            for member, data in members:
                add(archive, member, data)
        return str(tmp_path / name)

    return write


@pytest.fixture(scope="session")
def add_member():
    return add


def add(archive, name, data=b""):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


@pytest.fixture
def serve():
    """A function that puts a folder's files on a web server; returns its URL, and the server."""
    web = Web()
    yield lambda folder: (put_on_web(web, folder), web)
    web.close()
    pools.cache_clear()


def put_on_web(web, folder):
    for path in folder.rglob("*"):
        if path.is_file():
            web.files[f"/{path.relative_to(folder)}"] = path.read_bytes()
    return web.url("")
