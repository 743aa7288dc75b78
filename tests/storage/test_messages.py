"""Errors of storage name what is wrong in a few lines, however long the user's values or the data are."""

import io
import json
import tarfile

import pytest

from mpwds.pipeline.sources.samples import read_samples
from mpwds.storage.caches.directory import cache_name
from mpwds.storage.indexed.descriptions import load_description
from mpwds.storage.indexed.tar_shards import TarShards
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.http import hf_location
from mpwds.storage.streams.patterns import expand_urls
from mpwds.storage.streams.urls import local_path

LONG = "x" * 40_000


def description(**contents):
    return lambda path: load_description(io.StringIO(json.dumps({"wids_version": 1, **contents})))


def with_a_member_twice(read):
    def run(path):
        with tarfile.open(path, "w") as archive:
            for _ in range(2):
                archive.addfile(tarfile.TarInfo(f"{LONG}.{LONG}"))
        list(read(path))

    return run


@pytest.mark.parametrize(
    "fail",
    [
        lambda path: expand_urls([LONG, ""]),
        lambda path: expand_urls("{" + LONG),
        lambda path: expand_urls("${" + LONG),
        lambda path: expand_urls("${X}" + LONG),
        lambda path: expand_urls(LONG + "{1-3}"),
        lambda path: expand_urls([LONG.encode()]),
        lambda path: local_path("http:" + LONG),
        lambda path: local_path(f"file://{LONG}/x"),
        lambda path: hf_location(LONG),
        lambda path: gopen("x", LONG),
        lambda path: cache_name(LONG, lambda url: url),
        lambda path: cache_name(LONG, lambda url: [url]),
        description(wids_version=LONG),
        description(datasets=[LONG]),
        description(shardlist=[LONG]),
        description(shardlist=[{"url": "x", "nsamples": LONG}]),
        with_a_member_twice(read_samples),
        with_a_member_twice(lambda path: [TarShards([path]).read(0, 0)]),
    ],
)
def test_long_values_are_shortened(fail, tmp_path):
    with pytest.raises((ValueError, TypeError)) as caught:
        fail(str(tmp_path / "x.tar"))
    assert len(str(caught.value)) < 1000
