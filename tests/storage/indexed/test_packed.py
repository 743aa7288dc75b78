"""Descriptions in binary form: the same as in JSON, and little of them is read."""

import json
import os
import pickle
import re
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpwds.errors import SecurityError, SpecError
from mpwds.storage.indexed.describing import convert_description, write_description
from mpwds.storage.indexed.descriptions import (
    Description,
    PackedDescription,
    load_description,
    open_packed,
    pack,
    read_description,
)
from tests.memory import allocating_below

names = st.text(st.sampled_from("ab/.:é\udc80\n"), min_size=1)
texts = st.text(st.characters(), max_size=20)  # with lone surrogates
shards = st.fixed_dictionaries(
    {"url": names, "nsamples": st.integers(0, 1 << 40)},
    optional={"filesize": st.integers(0), "md5sum": texts, "offsets": texts, "weight": st.floats(0, 1)},
)


def described(*shards, **more):
    return {"wids_version": 1, **more, "shardlist": list(shards)}


@pytest.fixture
def packed(tmp_path):
    """The file of a description of three shards."""
    path = tmp_path / "x.shardindex"
    write_description(described(*({"url": f"{n}.tar", "nsamples": n, "md5sum": "0"} for n in range(3))), path)
    return path


@given(
    listed=st.lists(shards, min_size=1, max_size=5),
    base=st.sampled_from(["", "/data", "data/", "../x", "https://host/a"]),
    name=texts,
)
def test_it_says_what_the_json_says(tmp_path_factory, listed, base, name):
    description = described(*listed, base=base, name=name)
    file = str(tmp_path_factory.getbasetemp() / "x.json")
    write_description(description, file)
    text, binary = Description(file), PackedDescription(file, b"".join(pack(description)))
    assert list(binary.shards) == listed
    assert {**binary.contents, "shardlist": list(binary.shards)} == description
    assert (list(binary.urls), list(binary.lengths)) == (text.urls, text.lengths)
    assert binary.lengths.ends().tolist() == [sum(text.lengths[: n + 1]) for n in range(len(listed))]
    assert binary.urls[-1:] == text.urls[-1:]


def test_whoever_reads_json_reads_it(packed):
    assert [shard["nsamples"] for shard in read_description(packed)["shardlist"]] == [0, 1, 2]
    assert load_description(packed)["shardlist"][2]["url"] == str(packed.parent / "2.tar")
    write_description(described({"url": "3.tar", "nsamples": 3}), packed.parent / "x.json")
    whole = {"wids_version": 1, "datasets": [{"source_url": name} for name in ("x.shardindex", "x.json")]}
    write_description(whole, packed.parent / "whole.json")
    assert Description(packed.parent / "whole.json").lengths == [0, 1, 2, 3]


def test_converting_there_and_back_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    written = ["a.tar", "../b.tar", "s3://bucket/c.tar", "/c.tar"]
    write_description(described(*({"url": url, "nsamples": 1} for url in written)), "sub/x.json")
    for folder in ("sub", str(tmp_path / "sub")):
        convert_description(f"{folder}/x.json", f"{folder}/x.shardindex")
        convert_description(f"{folder}/x.shardindex", f"{folder}/y.json")
        assert Description(f"{folder}/x.json").urls == Description(f"{folder}/y.json").urls
    convert_description("sub/x.json", "x.shardindex")
    assert list(open_packed("x.shardindex").urls) == ["sub/a.tar", "b.tar", *written[2:]]
    convert_description(str(tmp_path / "sub" / "x.json"), "x.shardindex", replace=True)
    assert [shard["url"] for shard in open_packed("x.shardindex").shards] == [
        "sub/a.tar",
        "b.tar",
        *written[2:],
    ]


def test_the_shards_of_datasets_are_listed_when_it_is_converted(tmp_path):
    inner = {"name": "inner", "weight": 0.5, "shardlist": [{"url": "a.tar", "nsamples": 1}]}
    write_description(described(datasets=[inner]), tmp_path / "x.json")
    with pytest.raises(ValueError, match="has no datasets in it"):
        write_description(described(datasets=[inner]), tmp_path / "x.shardindex")
    convert_description(tmp_path / "x.json", str(tmp_path / "x.shardindex"))
    (shard,) = open_packed(tmp_path / "x.shardindex").shards
    assert (shard["url"], shard["dataset"], shard["weight"]) == ("a.tar", "inner", 0.5)


def test_a_pickle_holds_the_name_and_maps_the_file_again(packed):
    description = open_packed(packed)
    sent = pickle.dumps((description.urls, description.lengths, description.shards))
    assert len(sent) < 500
    urls, lengths, shards = pickle.loads(sent)
    assert (list(urls), list(lengths)) == (list(description.urls), list(description.lengths))
    assert list(shards) == list(description.shards)


def test_a_file_that_was_replaced_is_not_taken_for_the_one_that_was_opened(packed):
    description = open_packed(packed)
    sent = pickle.dumps(description)
    write_description(described({"url": "other.tar", "nsamples": 1}), packed)
    assert list(description.lengths) == [0, 1, 2]
    with pytest.raises(SpecError, match=re.escape(f"{packed} was replaced after the dataset was opened")):
        pickle.loads(sent)


def test_every_file_that_was_cut_off_is_an_error(packed):
    data = packed.read_bytes()
    for size in range(len(data)):
        with pytest.raises(SpecError, match="cut off" if size >= 8 else "no description in binary form"):
            PackedDescription("x", data[:size])


def test_every_byte_that_changed_is_an_error(packed):
    data = packed.read_bytes()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x80
        if not 12 <= place < 16:  # which mean nothing
            with pytest.raises(SpecError, match="^x[ ,]"):
                list(PackedDescription("x", bytes(changed)).shards)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"no description in binary form .*: it begins with b''"),
        (json.dumps(described()).encode(), r"no description in binary form .*: it begins with b'\{\"wids_"),
        (b"mpwdsix2" + bytes(99), "has version b'2' of the format, and this mpwds reads b'1'"),
        (b"".join(pack(described())), "lists no shards"),
        (b"".join(pack(described({"url": "x", "nsamples": -1}))), "tables that are not in order"),
    ],
)
def test_another_file_is_an_error_that_says_so(tmp_path, data, message):
    path = tmp_path / "x.shardindex"
    path.write_bytes(data)
    with pytest.raises(SpecError, match=re.escape(str(path)) + " .*" + message):
        open_packed(path)
    with pytest.raises(SpecError, match="x.shardindex"):
        load_description(path)


def test_a_url_that_is_not_utf_8_is_an_error_that_shows_it():
    data = bytearray(b"".join(pack(described({"url": "xyz", "nsamples": 1}))))
    place = data.index(b"xyz")
    data[place] = 0xFF
    data[8:12] = zlib.crc32(data[16 : place + 3]).to_bytes(4, "little")
    opened = PackedDescription("x", bytes(data))
    for each in (opened.urls, opened.shards):
        with pytest.raises(SpecError, match=r"^x, shardlist\[0\]: has a URL that is not UTF-8, b'\\xffyz'"):
            each[0]


@pytest.mark.parametrize(
    ("url", "base", "rules", "what"),
    [
        ("pipe:rm x", "", "", ": the URL .* runs a command"),
        ("PIPE:rm x", "", "", ": the URL .* runs a command"),
        ("x", "Pipe:rm ", "", ": the URL .* runs a command"),
        ("s3://x;rm", "", "s3://=pipe:ssh host cat ", ""),
    ],
)
def test_a_url_that_runs_a_command_is_refused(tmp_path, monkeypatch, url, base, rules, what):
    monkeypatch.setenv("WDS_REWRITE", rules)
    shards = ({"url": each, "nsamples": 1} for each in ("a", url))
    write_description(described(*shards, base=base), tmp_path / "x.shardindex")
    with pytest.raises(SecurityError, match=rf"x\.shardindex, shardlist\[1\]{what}"):
        open_packed(tmp_path / "x.shardindex").urls[1]


def mapped_bytes(path):
    """The bytes of a mapped file that are in this process's page tables."""
    with open("/proc/self/smaps") as maps:
        found = re.search(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", maps.read())
    return 1024 * int(found[1])


def test_opening_reads_no_details_of_shards(tmp_path):
    path = tmp_path / "x.shardindex"
    details = [{"url": f"{n}.tar", "nsamples": 10_000, "offsets": "x" * 20_000} for n in range(2000)]
    write_description(described(*details), path)
    description = open_packed(path)
    assert len(description.shards[1000]["offsets"]) == 20_000
    assert mapped_bytes(path) < 1 << 20 < os.path.getsize(path) / 30


def test_opening_makes_no_object_of_a_shard(tmp_path):
    path = tmp_path / "x.shardindex"
    write_description(described(*({"url": f"{n}.tar", "nsamples": 10_000} for n in range(100_000))), path)
    open_packed(path)
    with allocating_below(200_000, 10_000):  # two booleans for each: whether a column is in order
        description = open_packed(path)
        assert description.lengths.ends()[-1] == 10**9
