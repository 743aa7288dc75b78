"""Datasets that mosaicml-streaming and mpwds write: the same files, and either reads the other's."""

import io
import pickle
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mpwds.storage.mds.shards_v2 import MDSShards
from tests.storage.mds.datasets import files, write
from tests.storage.mds.datasets import read as read_shards

PEER = Path(__file__).with_name("peer.py")


def picture(number, mode="RGB"):
    pixels = np.random.default_rng(number).integers(0, 255, (5 + number % 3, 7, 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def jpeg(number):
    stream = io.BytesIO()
    picture(number).save(stream, "JPEG")
    return stream.getvalue()


INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
SCALARS = [*INTEGERS, "float16", "float32", "float64"]

# Columns, and a sample by its number.
EVERY_ENCODING = {
    "bytes": lambda n: bytes(n),
    "str": lambda n: "ä" * n,
    "int": lambda n: n - 5,
    "str_int": lambda n: 10**30 * n,
    "str_float": lambda n: n / 7,
    "str_decimal": lambda n: Decimal(n) / 7,
    "json": lambda n: {"n": [n, None, "ü"]},
    "ndarray": lambda n: np.arange(1 + n, dtype=["u1", "i1", "u2", "i2", "f2", "u4", "f8"][n % 7]).reshape(
        1, -1
    ),
    "ndarray:float32": lambda n: np.ones((300, 1 + n), np.float32),
    "ndarray:int16:2,3": lambda n: np.full((2, 3), n, np.int16),
    **{name: lambda n, name=name: np.dtype(name).type(n) for name in SCALARS},
    "pil": lambda n: picture(n, ["1", "L", "RGB", "RGBA", "CMYK", "F", "I", "YCbCr", "LA"][n % 9]),
    "png": lambda n: picture(n, ["L", "RGB", "RGBA"][n % 3]),
    "jpeg": lambda n: picture(n) if n % 2 else jpeg(n),
    "jpeg_array": lambda n: [jpeg(i) for i in range(1 + n % 3)],
    "jpegarray": lambda n: [jpeg(i) for i in range(1 + n % 3)],
    "list[pil]": lambda n: [picture(i) for i in range(n % 3)],
    "list[jpeg]": lambda n: [picture(i) for i in range(n % 3)],
    "list[png]": lambda n: [picture(i) for i in range(n % 3)],
    "pkl": lambda n: (n, "a"),
}

TEXT = {"text": "str", "number": "int"}


def texts(count):
    return [{"text": f"text {n} " * (n % 9), "number": n, "ignored": 1} for n in range(count)]


DATASETS = {
    "every encoding": (
        {"columns": {name: name for name in EVERY_ENCODING}, "size_limit": 10_000},
        [{name: make(n) for name, make in EVERY_ENCODING.items()} for n in range(20)],
    ),
    "hashes": ({"columns": TEXT, "hashes": ["md5", "sha1", "sha3_256", "xxh128", "xxh3_64"]}, texts(50)),
    "nothing": ({"columns": TEXT}, []),
    "size limit": ({"columns": TEXT, "size_limit": "0.5kb"}, texts(100)),
    "larger than the limit": ({"columns": TEXT, "size_limit": 100}, texts(5)),
    "one shard": ({"columns": TEXT, "size_limit": None}, texts(100)),
    "zero": ({"columns": TEXT, "size_limit": 0}, texts(3)),
    "only numbers": ({"columns": {"a": "uint8", "b": "float64"}}, [{"a": n, "b": n} for n in range(9)]),
}
COMPRESSIONS = ["br", "br:3", "bz2", "bz2:1", "gz", "gz:1", "snappy", "zstd", "zstd:19"]
COMPRESSED = {
    name: ({"columns": TEXT, "compression": name, "hashes": ["sha1"], "size_limit": 2000}, texts(300))
    for name in COMPRESSIONS
}


def ask_peer(*arguments, request=b""):
    done = subprocess.run(
        [sys.executable, str(PEER), *arguments], input=request, capture_output=True, timeout=600
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """The folder of each dataset, written by mosaicml-streaming."""
    folder = tmp_path_factory.mktemp("theirs")
    datasets = {**DATASETS, **COMPRESSED}
    request = [
        ({**options, "out": str(folder / name)}, samples) for name, (options, samples) in datasets.items()
    ]
    ask_peer("write", request=pickle.dumps(request))
    return folder


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """The folder of each dataset, written by mpwds."""
    folder = tmp_path_factory.mktemp("ours")
    for name, (options, samples) in {**DATASETS, **COMPRESSED}.items():
        write(folder / name, samples, allow_pickle=True, **options)
    return folder


@pytest.fixture(scope="module")
def read_by_streaming(ours, tmp_path_factory):
    """What mosaicml-streaming reads in our datasets, by name. It cannot open one without samples."""
    copy = tmp_path_factory.mktemp("copy") / "ours"
    shutil.copytree(ours, copy)
    names = [name for name in (*DATASETS, *COMPRESSED) if name != "nothing"]
    return dict(
        zip(names, pickle.loads(ask_peer("read", *(str(copy / name) for name in names))), strict=True)
    )


def read(folder):
    return read_shards(MDSShards(folder, allow_pickle=True))


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert type(found[name]) is type(value), name
        assert comparable(found[name]) == comparable(value), name


def comparable(value):
    if isinstance(value, Image.Image):
        return value.mode, value.size, value.tobytes()
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("name", DATASETS)
def test_both_write_the_same_files(theirs, ours, name):
    assert files(ours / name) == files(theirs / name)


@pytest.mark.parametrize("name", COMPRESSED)
def test_both_write_the_same_shards_before_compression(theirs, ours, name):
    assert names_in(ours / name) == names_in(theirs / name)
    assert raw_shards(ours / name) == raw_shards(theirs / name) != {}


def names_in(folder):
    return {path.name for path in folder.iterdir() if not path.name.endswith(".mds") and path.is_file()}


def raw_shards(folder):
    read(folder)  # leaves them
    return {path.name: path.read_bytes() for path in folder.glob("*.mds")}


@pytest.mark.parametrize("name", [name for name in (*DATASETS, *COMPRESSED) if name != "nothing"])
def test_either_reads_what_the_other_wrote(theirs, read_by_streaming, name):
    found = read(theirs / name)
    assert len(found) == len({**DATASETS, **COMPRESSED}[name][1])
    for sample, expected in zip(found, read_by_streaming[name], strict=True):
        assert_same(sample, expected)


def test_an_index_without_shards_is_a_dataset_without_samples(theirs):
    assert MDSShards(theirs / "nothing").lengths == []
