"""Descriptions of datasets: read as wids reads them, with errors that say where."""

import gzip
import io
import json

import pytest

from mpwds.errors import SecurityError, SpecError
from mpwds.storage.indexed.descriptions import Description, load_description
from mpwds.storage.streams.urls import folder_of, join_url


@pytest.fixture
def theirs(import_peer):
    return import_peer("wids.wids_specs")


def shard(url, nsamples=3, **more):
    return {"url": url, "nsamples": nsamples, **more}


def described(*shards, **more):
    return {"wids_version": 1, "shardlist": list(shards), **more}


@pytest.fixture
def write(tmp_path):
    """Writes a description below the test's folder, and returns its path."""

    def write(name, contents):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(contents if isinstance(contents, str) else json.dumps(contents))
        return str(path)

    return write


def urls(description):
    return [shard["url"] for shard in description["shardlist"]]


def test_relative_urls_start_at_the_folder_of_the_description(write, tmp_path):
    path = write(
        "index.json", described(shard("a.tar"), shard("sub/b.tar"), shard("/c.tar"), shard("s3://d/e.tar"))
    )
    expected = [f"{tmp_path}/a.tar", f"{tmp_path}/sub/b.tar", "/c.tar", "s3://d/e.tar"]
    assert urls(load_description(path)) == expected


@pytest.mark.parametrize("base", ["https://host/x", "s3://bucket", "/data", "data/x", "https://host"])
@pytest.mark.parametrize("url", ["a.tar", "sub/a.tar", "../a.tar", "./a.tar", "/a.tar", "gs://b/a.tar"])
def test_urls_are_joined_as_wids_joins_them(theirs, base, url):
    if (base, url) in [("s3://bucket", "../a.tar"), ("https://host", "../a.tar")]:
        assert join_url(base, url) == f"{base}/a.tar"
    elif "//" in base and base.count("/") == 2 and "//" not in url:
        assert join_url(base, url) == f"{base}/{url.removeprefix('./').removeprefix('/')}"
    else:
        assert join_url(base, url) == theirs.urlmerge(base, url)


@pytest.mark.parametrize(
    "url", ["https://host/a/i.json", "s3://bucket/i.json", "a/b/i.json", "i.json", "/i.json"]
)
def test_the_folder_of_a_url_is_that_of_wids(theirs, url):
    assert folder_of(url).rstrip("/") == theirs.urldir(url).rstrip("/")


def test_a_base_in_the_description_counts_and_the_argument_counts_more(write, tmp_path):
    path = write("index.json", described(shard("a.tar"), base="https://host/x"))
    assert urls(load_description(path)) == ["https://host/x/a.tar"]
    assert Description(path, base="/data").urls == ["/data/a.tar"]
    relative = write("other.json", described(shard("a.tar"), base="shards"))
    assert urls(load_description(relative)) == [f"{tmp_path}/shards/a.tar"]


def test_shards_of_parts_follow_with_what_their_surroundings_say(write, tmp_path):
    write("more/index.json", described(shard("b.tar", weight=3), shard("c.tar"), name="more", weight=7))
    path = write(
        "index.json",
        described(
            shard("a.tar"),
            name="all",
            weight=1,
            datasets=[
                {"source_url": "more/index.json", "weight": 2},
                {"name": "inline", "shardlist": [shard("d.tar")], "base": "x"},
                {"shardlist": [shard("e.tar", name="mine", dataset="own")]},
            ],
        ),
    )
    more = {"source_url": f"{tmp_path}/more/index.json", "dataset": "more", "name": "more"}
    assert load_description(path)["shardlist"] == [
        shard(f"{tmp_path}/a.tar", name="all", weight=1),
        shard(f"{tmp_path}/more/b.tar", weight=3, **more),
        shard(f"{tmp_path}/more/c.tar", weight=2, **more),
        shard(f"{tmp_path}/x/d.tar", name="inline", dataset="inline", weight=1),
        shard(f"{tmp_path}/e.tar", name="mine", dataset="own", weight=1),
    ]


def test_a_nested_description_is_read_as_wids_reads_it(theirs, write, tmp_path):
    other = write("more/index.json", described(shard("b.tar", filesize=9), name="more"))
    path = write(
        "index.json",
        described(
            shard("a.tar", md5sum="0f"),
            name="all",
            datasets=[{"source_url": other, "weight": 2}, {"name": "in", "shardlist": [shard("/d.tar")]}],
        ),
    )
    expected = theirs.load_dsdesc_and_resolve(path, base=str(tmp_path))
    ours = load_description(path)
    assert ours["name"] == expected["name"]
    for mine, peers in zip(ours["shardlist"], expected["shardlist"], strict=True):
        assert peers.items() <= mine.items()


def test_parts_of_parts_are_read_too(write, tmp_path):
    write("b/index.json", described(datasets=[{"source_url": "../c/index.json"}]))
    write("c/index.json", described(shard("c.tar")))
    path = write("a/index.json", described(datasets=[{"source_url": "../b/index.json"}]))
    assert urls(load_description(path)) == [f"{tmp_path}/c/c.tar"]


def test_a_circle_is_an_error(write, tmp_path):
    write("b.json", described(shard("b.tar"), datasets=[{"source_url": "a.json"}]))
    path = write("a.json", described(shard("a.tar"), datasets=[{"source_url": "b.json"}]))
    with pytest.raises(
        SpecError, match=r"b\.json, datasets\[0\]\.source_url: .*a\.json leads back to itself"
    ):
        load_description(path)


def test_an_open_file_will_do_and_options_override(tmp_path):
    file = io.StringIO(json.dumps(described(shard("a.tar"), name="x")))
    description = Description(file, options={"name": "y"})
    assert (description.contents["name"], description.urls) == ("y", ["a.tar"])


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("{", "index.json is not JSON: .*line 1"),
        (described(datasets=[{"source_url": 7}]), r"datasets\[0\]\.source_url: must be a string, got 7"),
        ("[]", "index.json is not a JSON object, but a list"),
        ({"shardlist": []}, "wids_version: must be 1, got None"),
        (described(), "index.json, shardlist: lists no shards"),
        (described(shardlist="x.tar"), "shardlist: must be a list, got str"),
        (described("x.tar"), r"shardlist\[0\]: must be an object, got 'x.tar'"),
        (described(shard("a.tar"), {"nsamples": 3}), r"shardlist\[1\]\.url: must be a path or URL, got None"),
        (described({"url": "a.tar"}), r"shardlist\[0\]\.nsamples: must be the number of samples, got None"),
        (described(shard("a.tar", -1)), r"shardlist\[0\]\.nsamples: must be the number of samples, got -1"),
        (described(shard("a.tar"), datasets=[7]), r"datasets\[0\]: must be an object, got 7"),
        (described(shard("a.tar"), datasets=[{}]), r"datasets\[0\]: has neither shardlist nor source_url"),
        (described(datasets=[described(shard(7))]), r"datasets\[0\]\.shardlist\[0\]\.url: must be a path"),
    ],
)
def test_what_is_no_description_is_an_error_with_the_place(write, contents, message):
    with pytest.raises(SpecError, match=message):
        load_description(write("index.json", contents))


def test_a_compressed_description_is_an_error_that_says_so(tmp_path):
    (tmp_path / "index.json").write_bytes(gzip.compress(b"{}"))
    with pytest.raises(SpecError, match=r"index\.json is compressed \(gzip\): decompress it"):
        load_description(tmp_path / "index.json")


@pytest.mark.parametrize(
    ("contents", "key"),
    [
        (described(shard("pipe:cat /x.tar")), "shardlist"),
        (described(shard("x.tar"), base="pipe:cat "), "shardlist"),
        (described(datasets=[{"source_url": "pipe:cat /x.json"}]), "datasets"),
    ],
)
def test_a_command_in_a_description_does_not_run(write, contents, key):
    path = write("index.json", contents)
    with pytest.raises(
        SecurityError, match=rf"index\.json, {key}\[0\]: the URL 'pipe:cat /.*' runs a command"
    ):
        load_description(path)


def test_a_line_end_in_a_scheme_hides_no_command():
    """Joining URLs takes it out."""
    contents = described(shard("?./x.tar"), base="pi\npe://")
    with pytest.raises(SecurityError, match="runs a command"):
        load_description(io.StringIO(json.dumps(contents)))
