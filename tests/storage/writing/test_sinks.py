"""Sinks keep bytes as they are, begin a new file when one is full, and replace none unless told to."""

import os
import sys
import tarfile

import pytest

from mpwds.storage.record_reader import read_cbor_records, read_msgpack_records
from mpwds.storage.writing.sinks import WriteOptions, record_sink, tar_sink
from tests.storage.members import contents_of, write_all

SAMPLES = [{"__key__": f"{index}", "txt.gz": b"raw" * 100} for index in range(5)]


def write(sink, samples=SAMPLES):
    write_all(sink, samples)
    return sink.shards


def records_in(kind, path):
    read = read_msgpack_records if kind == "msgpack" else read_cbor_records
    with open(path, "rb") as stream:
        return [record for _, _, record in read(stream, path)]


@pytest.mark.parametrize("name", ["100%-x.tar", "100%-%d.tar"])
def test_tar_shards_hold_the_bytes_they_were_given_and_no_time(tmp_path, monkeypatch, name):
    monkeypatch.setattr(os, "fsync", None)  # is not called
    (shard,) = write(tar_sink(f"{tmp_path}/{name}", WriteOptions()))
    assert contents_of(shard) == [(f"{sample['__key__']}.txt.gz", sample["txt.gz"]) for sample in SAMPLES]
    with tarfile.open(shard) as archive:
        assert {member.mtime for member in archive} == {0}


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({}, [5]),
        ({"maxcount": 2}, [2, 2, 1]),
        ({"maxsize": 20 * 512 * 3}, [5]),
        ({"maxsize": 20 * 512 - 1}, [1] * 5),
    ],
)
def test_a_tar_series_begins_a_new_shard_when_one_is_full(tmp_path, options, counts):
    shards = write(tar_sink(f"{tmp_path}/%03d.tar", WriteOptions(**options)))
    assert shards == [f"{tmp_path}/{number:03d}.tar" for number in range(len(counts))]
    assert [len(contents_of(shard)) for shard in shards] == counts


@pytest.mark.parametrize(("front", "counts"), [("", [9, 9, 2]), ("é", [4] * 5), ("n" * 99, [4] * 5)])
def test_the_last_sample_of_a_tar_shard_fills_it(tmp_path, front, counts):
    samples = [{"__key__": f"{front}{index}", "bin": bytes(512)} for index in range(20)]
    shards = write(tar_sink(f"{tmp_path}/%d.tar", WriteOptions(maxsize=20 * 512)), samples)
    assert [len(contents_of(shard)) for shard in shards] == counts  # and two blocks for the end
    assert {os.path.getsize(shard) for shard in shards} == {20 * 512}


@pytest.mark.parametrize("kind", ["msgpack", "cbor"])
@pytest.mark.parametrize(
    ("name", "options", "counts"),
    [
        ("%d", {}, [5]),
        ("%d", {"maxcount": 2}, [2, 2, 1]),
        ("%d", {"maxsize": 500}, [1, 1, 1, 1, 1]),
        ("%d", {"maxsize": 800}, [2, 2, 1]),
        ("x", {"maxcount": 2, "maxsize": 500}, [5]),
    ],
)
def test_a_series_of_record_files_begins_a_new_one_when_one_is_full(tmp_path, kind, name, options, counts):
    files = write(record_sink(kind, f"{tmp_path}/{name}", WriteOptions(**options)))
    assert files == [f"{tmp_path}/{name}".replace("%d", str(number)) for number in range(len(counts))]
    assert [len(records_in(kind, file)) for file in files] == counts
    assert name == "x" or max(map(os.path.getsize, files)) <= options.get("maxsize", sys.maxsize)
    assert [record for file in files for record in records_in(kind, file)] == SAMPLES


@pytest.mark.parametrize("name", ["0", "%d"])
@pytest.mark.parametrize("make", [tar_sink, lambda *how: record_sink("msgpack", *how)])
def test_a_file_of_the_name_is_replaced_only_by_force(tmp_path, make, name):
    (tmp_path / "0").write_text("mine")
    with pytest.raises(FileExistsError, match="written meanwhile by another program"):
        write(make(f"{tmp_path}/{name}", WriteOptions()))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
    write(make(f"{tmp_path}/{name}", WriteOptions(force=True)))
    assert (tmp_path / "0").stat().st_size > 1500


@pytest.mark.parametrize("options", [{"compression": "zstd"}, {"hashes": ("sha1",)}])
@pytest.mark.parametrize("make", [tar_sink, lambda *how: record_sink("cbor", *how)])
def test_options_of_mds_are_refused(tmp_path, make, options):
    with pytest.raises(ValueError, match="for MDS datasets alone"):
        make(f"{tmp_path}/x", WriteOptions(**options))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("make", [tar_sink, lambda *how: record_sink("msgpack", *how)])
def test_an_error_leaves_the_complete_files_alone(tmp_path, make):
    with pytest.raises(KeyError), make(f"{tmp_path}/%d", WriteOptions(maxcount=2)) as sink:
        for sample in SAMPLES[:3]:
            sink.write(sample)
        raise KeyError
    assert os.listdir(tmp_path) == ["0"]
