"""Version 1 of MDS, composer's: files built by hand from the description of the format."""

import gzip
import os
import pickle
import struct
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpwds
from mpwds import ShardError, StreamingDatasetWriter
from mpwds.storage.mds.shards_v1 import MDS1Shards, dump_index, parse_index
from tests.storage.mds.datasets import files
from tests.storage.mds.datasets import read as read_shards

FIELDS = ["uid", "dät"]
SAMPLES = [{"uid": b"0", "dät": b"abc"}, {"uid": b"12", "dät": b""}, {"uid": b"3", "dät": b"defgh"}]

# Sizes of the fields, 64 bits each, then the fields.
SHARD_0 = (
    b"\x01\0\0\0\0\0\0\0" b"\x03\0\0\0\0\0\0\0" b"0" b"abc" b"\x02\0\0\0\0\0\0\0" b"\0\0\0\0\0\0\0\0" b"12"
)  # fmt: skip
SHARD_1 = b"\x01\0\0\0\0\0\0\0" b"\x05\0\0\0\0\0\0\0" b"3" b"defgh"  # fmt: skip
INDEX = (
    bytes.fromhex(
        "6ed07ada 01000000 02000000"  # magic, version, shards
        "0300000000000000 3c00000000000000"  # samples, bytes
        "0200000000000000 0100000000000000"  # samples per shard
        "2600000000000000 1600000000000000"  # bytes per shard
        "01000000 14 12 16"  # width of the samples' sizes, these sizes
        "02000000 03000000 04000000"  # fields, bytes of their names
    )
    + "uiddät".encode()
)


def write(folder, samples=SAMPLES, fields=FIELDS, **options):
    with StreamingDatasetWriter(folder, fields, **options) as sink:
        sink.write_samples(samples, use_tqdm=False)
    return folder


def read(folder):
    return read_shards(MDS1Shards(folder))


def test_files_are_those_of_the_description(tmp_path):
    write(tmp_path, shard_size_limit=39)
    assert files(tmp_path) == {"000000.mds": SHARD_0, "000001.mds": SHARD_1, "index.mds": INDEX}
    assert read(tmp_path) == SAMPLES


def test_compressed_files_have_gz_at_their_end_and_a_note_beside_them(tmp_path):
    write(tmp_path, shard_size_limit=39, compression="gz:1")
    note = files(tmp_path).pop("compression.txt")
    packed = {name: gzip.decompress(data) for name, data in files(tmp_path).items() if name.endswith(".gz")}
    assert note == b"gz\n"
    assert packed == {"000000.mds.gz": SHARD_0, "000001.mds.gz": SHARD_1, "index.mds.gz": INDEX}
    assert len(files(tmp_path)) == 4
    assert read(tmp_path) == SAMPLES


def test_a_sample_begins_a_shard_if_with_it_the_limit_would_be_reached(tmp_path):
    write(tmp_path, shard_size_limit=38)  # the first two have 20 and 18 bytes
    assert MDS1Shards(tmp_path).lengths == [1, 1, 1]


def test_a_first_sample_above_the_limit_has_an_empty_shard_before_it(tmp_path):
    write(tmp_path, shard_size_limit=1)
    assert MDS1Shards(tmp_path).lengths == [0, 1, 1, 1]
    assert read(tmp_path) == SAMPLES


def test_samples_of_one_size_have_one_entry(tmp_path):
    write(tmp_path, [{"x": b"ab"}] * 1000, ["x"])
    index = (tmp_path / "index.mds").read_bytes()
    assert index[44:] == struct.pack("<iqii", 0, 10, 1, 1) + b"x"
    assert read(tmp_path) == [{"x": b"ab"}] * 1000
    assert pickle.loads(pickle.dumps(MDS1Shards(tmp_path))).read(0, 999) == {"x": b"ab"}


def test_a_dataset_without_samples(tmp_path):
    write(tmp_path, [])
    assert files(tmp_path) == {
        "index.mds": struct.pack("<3I2qiiii", 0xDA7AD06E, 1, 0, 0, 0, 1, 2, 3, 4) + "uiddät".encode()
    }
    assert read(tmp_path) == []


@pytest.mark.parametrize(
    ("size", "width"),
    [
        (127, 1),
        (128, 2),
        (255, 2),
        (256, 2),
        (2**15 - 1, 2),
        (2**15, 4),
        (2**16, 4),
        (2**31 - 1, 4),
        (2**31, 8),
    ],
)
def test_sizes_fit_with_a_sign_so_that_composer_reads_them(size, width):
    index = dump_index([2], [1 + size], [1, size], ["x"])
    assert struct.unpack_from("<i", index, 44) == (width,)
    assert parse_index(index, "index.mds").offsets(0).tolist() == [0, 1, 1 + size]


@pytest.mark.parametrize(("code", "size"), [("B", 200), ("H", 40_000), ("I", 3_000_000_000)])
def test_sizes_that_composer_wrote_as_negative_numbers_are_read_without_sign(code, size):
    width = struct.calcsize(code)
    head = struct.pack("<3I2q2q", 0xDA7AD06E, 1, 1, 2, 1 + size, 2, 1 + size)
    index = head + struct.pack(f"<i2{code}", width, 1, size) + struct.pack("<ii", 1, 1) + b"x"
    assert parse_index(index, "index.mds").offsets(0).tolist() == [0, 1, 1 + size]


@given(st.lists(st.lists(st.integers(0, 300), max_size=9), max_size=5))
def test_an_index_says_what_was_put_in(shards):
    sizes = [size for shard in shards for size in shard]
    counts, totals = [len(shard) for shard in shards], [sum(shard) for shard in shards]
    index = parse_index(dump_index(counts, totals, sizes, ["a", "ü"]), "index.mds")
    assert (index.samples_per_shard.tolist(), index.bytes_per_shard.tolist()) == (counts, totals)
    assert index.fields == ("a", "ü")
    if not isinstance(index.sample_sizes, int):
        assert index.sample_sizes.tolist() == sizes


@given(st.data())
def test_a_damaged_index_is_an_error_that_names_it(data):
    index = bytearray(INDEX)
    for _ in range(data.draw(st.integers(1, 3))):
        index[data.draw(st.integers(0, len(index) - 1))] ^= data.draw(st.integers(1, 255))
    index = index[: data.draw(st.integers(0, len(index)))] if data.draw(st.booleans()) else index
    try:
        parse_index(bytes(index), "index.mds")
        message = ""
    except ShardError as error:
        message = str(error)
    assert not message or "index.mds" in message


def test_a_damaged_name_of_a_field_is_an_error_with_file_and_offset(tmp_path):
    write(tmp_path)
    index = (tmp_path / "index.mds").read_bytes()
    name = FIELDS[-1].encode()
    (tmp_path / "index.mds").write_bytes(index[: -len(name)] + b"\0" + name[1:])
    with pytest.raises(ShardError, match=rf"damaged: the name at offset {len(index) - len(name)}"):
        read(tmp_path)
    (tmp_path / "index.mds").write_bytes(index[: -len(name)] + b"_" + name[1:])
    with pytest.raises(ValueError, match=rf"fields are .*_{name[1:].decode()}.* in {tmp_path}"):
        mpwds.StreamingDataset(None, str(tmp_path), False, {name.decode(): bytes})


def changed(numbers):
    index = bytearray(INDEX)
    for offset, value in numbers.items():
        index[offset] = value
    return bytes(index)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (changed({20: 61}), "is damaged: the sizes of its shards do not add up to 61 bytes"),
        (changed({20: 61, 44: 39}), "is damaged: samples of shard 0 have 38 bytes, and the shard 39"),
        (changed({20: 59, 44: 37}), "is damaged: samples of shard 0 have 38 bytes, and the shard 37"),
        (changed({36: 2}), "is damaged: the numbers of samples of its shards do not add up to 3"),
        (changed({0: 0x6F}), "is not an index of MDS version 1: it begins with 0xDA7AD06F"),
        (changed({4: 2}), "says at offset 4 that it is of version 2, expected 1"),
        (changed({60: 3}), "says at offset 60 that sizes have 3 bytes, expected 0, 1, 2, 4 or 8"),
        (changed({67: 9}), "is .* truncated: 9 entries of 4 bytes do not fit at offset 71 of 86"),
        (changed({70: 255}), "is .* truncated: -16777214 entries of 4 bytes do not fit at offset 71 of 86"),
        (changed({71: 2}), "should end at byte 85, and it has 86"),
        (dump_index([1], [16], [16], ["x", "x"]), "is damaged: a field occurs twice among .'x', 'x'."),
        (INDEX[:0], "is truncated: it has 0 bytes, and an index at least 28"),
        (INDEX[:27], "is truncated: it has 27 bytes, and an index at least 28"),
        (INDEX[:28], "is damaged or truncated: 2 entries of 8 bytes do not fit at offset 28 of 28"),
        (INDEX[:50], "is damaged or truncated: 2 entries of 8 bytes do not fit at offset 44 of 50"),
        (INDEX[:-1], "is damaged or truncated: 4 entries of 1 bytes do not fit at offset 82 of 85"),
    ],
)
def test_a_wrong_index_is_an_error_that_says_what_it_should_be(index, message):
    with pytest.raises(ShardError, match=f"^index.mds {message}$"):
        parse_index(index, "index.mds")


@pytest.mark.parametrize("size", [77, 1])  # too much, too little
def test_a_damaged_shard_is_an_error_with_file_and_offset(tmp_path, size):
    write(tmp_path)
    shard = bytearray((tmp_path / "000000.mds").read_bytes())
    shard[20] = size  # the second sample says how long its first field is
    (tmp_path / "000000.mds").write_bytes(shard)
    shards = MDS1Shards(tmp_path)
    assert shards.read(0, 0) == SAMPLES[0]
    with pytest.raises(ShardError, match="000000.mds is damaged at offset 20: .* sample 1 "):
        shards.read(0, 1)
    for number in (-1, 3):
        with pytest.raises(IndexError, match=rf"000000.mds has 3 samples, there is no sample {number}"):
            shards.read(0, number)


def test_a_damaged_compressed_index_is_an_error_that_names_it(tmp_path):
    write(tmp_path, compression="gz")
    os.truncate(tmp_path / "index.mds.gz", 40)
    with pytest.raises(ShardError, match=f"{tmp_path}/index.mds.gz is damaged: its gz data is damaged: "):
        MDS1Shards(tmp_path)


def test_a_sample_that_cannot_be_written_leaves_the_dataset_as_it_was(tmp_path):
    with StreamingDatasetWriter(tmp_path, FIELDS) as sink:
        sink.write_sample(SAMPLES[0])
        with pytest.raises(KeyError, match="no field 'dät'"):
            sink.write_sample({"uid": b""})
        with pytest.raises(TypeError, match="'uid' must be bytes, got str"):
            sink.write_sample({"uid": "", "dät": b""})
    with pytest.raises(ValueError, match="is finished"):
        sink.write_sample(SAMPLES[0])
    assert read(tmp_path) == SAMPLES[:1]


def test_the_progress_is_shown_on_a_terminal_if_tqdm_is_installed(tmp_path, monkeypatch):
    shown = []

    def tqdm(samples, **options):
        shown.append(options)
        return samples

    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True))
    with StreamingDatasetWriter(tmp_path, FIELDS) as sink:
        for module in (SimpleNamespace(tqdm=tqdm), None):
            monkeypatch.setitem(sys.modules, "tqdm", module)
            sink.write_samples(SAMPLES, total=3)
            sink.write_samples(SAMPLES, use_tqdm=False)
    assert shown == [{"total": 3, "leave": False}]
    assert read(tmp_path) == SAMPLES * 4


def test_existing_files_are_never_overwritten(tmp_path):
    before = files(write(tmp_path))
    with pytest.raises(FileExistsError, match="nothing there is overwritten"):
        StreamingDatasetWriter(tmp_path, FIELDS)
    assert files(tmp_path) == before


def test_a_dataset_may_lie_beside_other_files(tmp_path):
    (tmp_path / "README").write_text("here")
    assert read(write(tmp_path)) == SAMPLES


def test_an_exception_while_writing_leaves_no_index(tmp_path):
    with pytest.raises(ZeroDivisionError), StreamingDatasetWriter(tmp_path, FIELDS, 39) as sink:
        sink.write_samples(SAMPLES)
        raise ZeroDivisionError
    assert files(tmp_path) == {"000000.mds": SHARD_0}
    with pytest.raises(FileNotFoundError, match="no index.mds in .* did not finish"):
        MDS1Shards(tmp_path)
