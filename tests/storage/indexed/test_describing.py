"""Descriptions that we make: wids reads them, and they carry offsets if they are asked to."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile

import pytest

from mpwds.errors import ShardError
from mpwds.storage.indexed.describing import (
    create_description,
    describe_shard,
    summarize,
    update_description,
    write_description,
)
from mpwds.storage.indexed.descriptions import load_description
from mpwds.storage.indexed.tar_shards import TarShards
from mpwds.storage.writing.tar_writer import TarWriter
from tests.peers import PEERS


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """Two shards of three and of five samples, in the folder ``shards`` of the current one."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("shards")
    for name, count in (("b-000001", 5), ("b-000000", 3)):
        with TarWriter(f"shards/{name}.tar") as sink:
            for n in range(count):
                sink.write({"__key__": f"{n:03d}", "cls": n, "txt": "text" * n})
    return ["shards/b-000001.tar", "shards/b-000000.tar"]


def test_a_description_lists_the_shards_in_order_with_size_and_digest(shards):
    description = create_description(shards, info="of digits")
    assert (description["name"], description["info"]) == ("shards-b", "of digits")
    assert [shard["url"] for shard in description["shardlist"]] == sorted(shards)
    with open(shards[1], "rb") as file:
        data = file.read()
    assert description["shardlist"][0] == {
        "url": "shards/b-000000.tar",
        "md5sum": hashlib.md5(data).hexdigest(),
        "nsamples": 3,
        "filesize": len(data),
    }


@pytest.mark.slow
def test_it_is_that_of_widsindex(shards):
    code = "import sys; from wids.wids_index import main; main()"
    environment = {**os.environ, "PYTHONPATH": PEERS}
    command = [sys.executable, "-c", code, "create", "-o", "theirs.json", "-n", "x", "-b", "s3://x", *shards]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if "No module named 'wids'" in made.stderr:
        pytest.skip("wids is not installed")
    with open("theirs.json") as file:
        assert create_description(shards, name="x", base="s3://x") == json.load(file)


def test_paths_can_be_relative_to_the_folder_of_the_description(shards):
    write_description(create_description(shards, relative_to="shards"), "shards/index.json")
    listed = load_description("shards/index.json")["shardlist"]
    assert [shard["url"] for shard in listed] == ["shards/b-000000.tar", "shards/b-000001.tar"]
    absolute = [os.path.abspath(shards[1]), f"file://{os.path.abspath(shards[0])}"]
    listed = create_description(absolute, relative_to="shards")["shardlist"]
    assert [shard["url"] for shard in listed] == absolute


def test_carried_offsets_save_reading_the_headers(shards, monkeypatch):
    listed = create_description(shards, offsets=True)["shardlist"]
    expected = TarShards([shards[0]]).read(0, 4)
    monkeypatch.setattr("mpwds.storage.indexed.tar_shards.load_or_find", None)  # fails if it is called
    urls, lengths = ([shard[key] for shard in listed] for key in ("url", "nsamples"))
    assert TarShards(urls, lengths, described=listed).read(1, 4) == expected


def test_carried_offsets_of_a_shard_of_another_size_are_not_used(shards):
    offsets = describe_shard(shards[0], offsets=True)["offsets"]
    with TarWriter(shards[0]) as sink:
        for n in range(5):
            sink.write({"__key__": f"{n:03d}", "cls": n, "txt": "x" * 9000})
    assert len(TarShards([shards[0]], [5], described=[{"offsets": offsets}]).read(0, 4)["txt"]) == 9000


def test_carried_offsets_that_cannot_be_read_are_an_error(shards):
    with pytest.raises(ShardError, match="carries offsets that cannot be read"):
        TarShards(shards, [5, 3], described=[{"offsets": "nonsense"}, {}]).read(0, 0)


def test_offsets_take_a_few_bytes_a_sample():
    with tempfile.TemporaryDirectory() as folder:
        with TarWriter(f"{folder}/x.tar") as sink:
            for n in range(1000):
                sink.write({"__key__": f"{n:03d}", "cls": n, "txt": "x" * (n * 7919 % 5000)})
        assert len(describe_shard(f"{folder}/x.tar", offsets=True)["offsets"]) < 3000


def test_compressed_shards_are_counted_and_carry_no_offsets(shards):
    with open(shards[0], "rb") as file, gzip.open("x.tar.gz", "wb") as compressed:
        compressed.write(file.read())
    entry = describe_shard("x.tar.gz", offsets=True)
    assert (entry["nsamples"], entry["filesize"]) == (5, os.path.getsize("x.tar.gz"))
    assert "offsets" not in entry


def test_a_damaged_shard_is_an_error(shards):
    os.truncate(shards[0], 3000)
    with pytest.raises(ShardError, match="b-000001.tar is truncated"):
        create_description(shards)


def test_an_update_changes_what_is_asked_for_and_keeps_the_earlier_file(shards):
    write_description(create_description(shards), "index.json")
    with open("index.json") as file:
        before = file.read()
    updated = update_description("index.json", name="new", info="text", keep=True, base="s3://x")
    assert [updated[key] for key in ("name", "info", "keep", "base")] == ["new", "text", True, "s3://x"]
    with open("index.json") as file, open("index.json.bak") as earlier:
        assert json.load(file) == updated
        assert earlier.read() == before


def test_an_update_moves_shards_to_another_folder_or_none(shards):
    write_description(create_description(shards), "index.json")
    updated = update_description("index.json", directory="s3://bucket")
    assert updated["shardlist"][0]["url"] == "s3://bucket/b-000000.tar"
    updated = update_description("index.json", directory="")
    assert updated["shardlist"][0]["url"] == "b-000000.tar"


def test_a_rebase_makes_the_shards_folder_the_base(shards, tmp_path):
    write_description(create_description(shards), "index.json")
    updated = update_description("index.json", rebase=True)
    assert updated["base"] == f"file://{tmp_path}/shards"
    assert [shard["url"] for shard in updated["shardlist"]] == ["b-000000.tar", "b-000001.tar"]
    loaded = load_description("index.json")["shardlist"]
    assert TarShards([shard["url"] for shard in loaded]).read(1, 4)["cls"] == b"4"


def test_a_rebase_of_shards_in_several_folders_is_an_error(shards):
    os.mkdir("other")
    os.rename(shards[0], "other/x.tar")
    write_description(create_description([shards[1], "other/x.tar"]), "index.json")
    with pytest.raises(ValueError, match="in 2 folders"):
        update_description("index.json", rebase=True)


def test_a_summary_counts_shards_samples_and_bytes(shards):
    write_description(create_description(shards, name="x"), "index.json")
    summary = summarize("index.json")
    assert (summary["name"], summary["shards"], summary["samples"]) == ("x", 2, 8)
    assert summary["bytes"] == sum(map(os.path.getsize, shards))
    assert (summary["first"], summary["last"]) == tuple(sorted(shards))


def test_a_description_without_names_and_sizes_is_summarized_and_named_by_an_update(shards, tmp_path):
    parts = [{"name": "b", "shardlist": [{"url": "c.tar", "nsamples": 1}]}, {"source_url": "part.json"}]
    for name, more in (("whole.json", {"datasets": parts}), ("part.json", {})):
        listed = [{"url": "a.tar", "nsamples": 2}]
        write_description({"wids_version": 1, "shardlist": listed, **more}, tmp_path / name)
    summary = summarize(tmp_path / "whole.json")
    assert (summary["name"], summary["base"], summary["bytes"]) == (None, str(tmp_path), 0)
    assert (summary["samples"], summary["datasets"]) == (5, ["b", "part.json"])
    assert update_description(tmp_path / "whole.json")["name"] == "whole"
