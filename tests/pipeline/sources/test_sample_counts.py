"""Counting a shard's samples by its headers: the number that reading finds, without reading."""

import gzip
import io
import os
import tarfile
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.errors import ShardError
from mpwds.pipeline.sources.grouping import read_samples
from mpwds.pipeline.sources.sample_counts import SampleCounts, count_samples

NAMES = st.sampled_from(
    [
        "a/0.png",
        "a/0.cls",
        "a/0.seg.png",
        "a/1.png",
        "b.c/0.png",
        "b.c/x",
        "README",
        "__meta__/x.json",
        "_d.cls",
    ]
)


def write(path, names, data=b"0"):
    with tarfile.open(path, "w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return str(path)


@settings(deadline=None, max_examples=60)
@given(names=st.lists(NAMES, max_size=12))
def test_the_number_is_that_of_the_samples_read(names, tmp_path_factory):
    path = write(tmp_path_factory.getbasetemp() / "counted.tar", names)
    found = list(read_samples(path, on_error=lambda error: None))  # a member may be there twice
    assert count_samples(path) == len(found)


def test_a_shard_is_counted_once_until_it_changes(tmp_path):
    path = write(tmp_path / "x.tar", ["0.cls", "1.cls"])
    counts = SampleCounts()
    past = time.monotonic() - 1
    assert counts.count(path, past) is None
    assert counts.count(path) == counts.count(path, past) == 2
    write(path, ["0.cls"], data=bytes(2000))
    assert counts.count(path, past) is None
    assert counts.count(path) == 1


def test_what_only_its_data_would_tell_is_not_counted(tmp_path):
    path = write(tmp_path / "x.tar", ["0.cls"])
    with open(path, "rb") as plain, gzip.open(tmp_path / "x.tar.gz", "wb") as packed:
        packed.write(plain.read())
    assert SampleCounts().count(str(tmp_path / "x.tar.gz")) is None


def test_a_named_pipe_is_left_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert SampleCounts().count(str(tmp_path / "pipe")) is None


def test_a_damaged_shard_is_an_error(tmp_path):
    path = write(tmp_path / "x.tar", ["0.cls", "1.cls"])
    os.truncate(path, 1200)
    with pytest.raises(ShardError):
        count_samples(path)
