"""Arguments that storage and the stages that keep elements refuse, and what they say."""

import pathlib

import pytest

from mpwds import MDSWriter, StreamingDatasetWriter
from mpwds.pipeline.caching.cached import DBCache, LMDBCached
from mpwds.storage.caches.directory import cache_name
from mpwds.storage.caches.shard_cache import ShardCache
from mpwds.storage.indexed.describing import create_description
from mpwds.storage.mds.encodings import encoding
from mpwds.storage.streams.gopen import gopen, open_at
from mpwds.storage.streams.patterns import expand_urls
from mpwds.storage.streams.resuming import Retries
from mpwds.storage.streams.urls import local_path, rewrite_url, url_to_cache_name
from mpwds.storage.tar.entries import read_members
from mpwds.storage.writing.encoders import encode_field, imageencoder, make_encoder
from mpwds.storage.writing.tar_writer import ShardWriter, TarWriter


def mds(columns=None, **options):
    return MDSWriter(columns=columns or {"x": "str"}, out="x", **options)


REFUSED = {
    "mode must be 'rb' or 'wb'": [lambda mode=mode: gopen("x", mode) for mode in ("ab", "r+b", "rt", "")],
    "offset in a stream must not be negative, got -1": [lambda: open_at("x", -1)],
    "offset in a shard must not be negative, got -1": [
        lambda: ShardCache("x").open("http://x/y", -1),
        lambda: list(read_members("x.tar", -1)),
    ],
    r"'odd:x': no opener is known for odd: URLs; add one to gopen_schemes": [lambda: gopen("odd:x")],
    "no opener is known for odd": [lambda: TarWriter("odd:x.tar")],
    "not of the form hf://datasets/OWNER/NAME": [
        lambda url=url: gopen(url)
        for url in ("hf://datasets/me/digits", "hf://me/0.tar", "hf://datasets/0.tar", "hf:x")
    ],
    "hf: URLs can be read, not written": [lambda: gopen("hf://datasets/me/digits/0.tar", "wb")],
    "AIS_ENDPOINT is not set": [lambda: gopen("ais://bucket/x")],
    "names no object": [lambda: gopen("ais://bucket")],
    "WDS_NOWHERE, which is not set": [lambda: expand_urls("${NOWHERE}/a.tar")],
    "no shards": [lambda: expand_urls([]), lambda: expand_urls(iter(())), lambda: create_description([])],
    "a.tar is given twice": [lambda: create_description(["a.tar", "a.tar"])],
    "empty name": [lambda urls=urls: expand_urls(urls) for urls in ("", "a.tar::", [""])],
    r"the braces in 'x-\{0\.\.3\.tar' do not match": [lambda: expand_urls("x-{0..3.tar")],
    "only local files": [
        lambda url=url: local_path(url)
        for url in ("http://x.org/a.tar", "s3://bucket/a.tar", "pipe:cat a.tar", "ab:c.tar")
    ],
    "host 'server'": [lambda: local_path("file://server/data/a.tar")],
    "tries must be at least 1": [
        lambda kw=kw: Retries(**kw)
        for kw in ({"tries": 0}, {"first_s": -1}, {"longest_s": -1}, {"within_s": 0})
    ],
    "prefetch_shards must not be negative": [lambda: ShardCache("x", prefetch_shards=-1)],
    "url_to_name gives": [
        lambda name=name: cache_name("s3://b/x", lambda url: name)
        for name in ("/etc/passwd", "../x.tar", "x//y.tar", ".mpwds/lock", "x" * 201)
    ],
    "compress='lz4' is not one of": [lambda: TarWriter("x.tar", compress="lz4")],
    "format 'ZIP' is not one of": [lambda: TarWriter("x.tar", format="ZIP")],
    "encoder must be": [lambda: make_encoder("png"), lambda: TarWriter("x.tar", encoder="png")],
    "needs one % directive": [
        lambda pattern=pattern: ShardWriter(pattern)
        for pattern in ("x.tar", "x-%d-%d.tar", "x-%z.tar", "x-100%%.tar")
    ],
    "must be positive": [
        lambda kw=kw: ShardWriter("x-%d.tar", **kw)
        for kw in ({"maxcount": 0}, {"maxcount": "2"}, {"maxsize": 0}, {"maxsize": -1.0}, {"maxsize": "1GB"})
    ],
    r"'x.foo'.*not one of cls .*png": [lambda: encode_field("x.foo", 7)],
    "image format 'gif' is not one of jpg": [lambda: imageencoder(None, "gif")],
    "no encoding 'jpg': choose one of bytes, str": [
        lambda: encoding("jpg"),
        lambda: mds(columns={"x": "jpg"}),
    ],
    "unknown type": [lambda: encoding("ndarray:float")],
    "invalid shape": [lambda name=name: encoding(name) for name in ("ndarray:int8:2,0", "ndarray:int8:")],
    "allow_pickle=True": [lambda: encoding("pkl"), lambda: mds(columns={"x": "pkl"})],
    "no compression 'lzma': choose one of br, bz2, gz, snappy, zstd$": [lambda: mds(compression="lzma")],
    "levels are 0 to 9": [lambda: mds(compression="gz:10"), lambda: mds(compression="gz:")],
    "has no levels": [lambda: mds(compression="snappy:1")],
    "alphabetical": [lambda each=each: mds(hashes=each) for each in (["sha1", "md5"], ["sha1"] * 2, "md5")],
    "no hash '(crc|xxh|shake_128)'": [
        lambda name=name: mds(hashes=[name]) for name in ("crc", "xxh", "shake_128")
    ],
    "must be a folder, a URL, or a folder and a URL, got": [
        lambda: MDSWriter(columns={"x": "str"}, out=("a", "b", "c"))
    ],
    "64mb": [lambda: mds(size_limit="64 apples")],
    "below 4 GiB": [lambda: mds(size_limit=2**32), lambda: mds(size_limit="4gb")],
    "negative": [lambda: mds(size_limit=-1)],
    "different names": [lambda: StreamingDatasetWriter("x", ["a", "a"])],
    "at least 1": [lambda: StreamingDatasetWriter("x", ["a"], 0)],
    "gz:1": [
        lambda each=each: StreamingDatasetWriter("x", ["a"], compression=each)
        for each in ("gz:0", "gz:10", "zstd")
    ],
    "DBCache: size must be at least 1, got 0": [lambda: DBCache("x", 0)],
    "lmdb_cached: .* must be at least": [
        lambda: LMDBCached("x", chunksize=0),
        lambda: LMDBCached("x", map_size=4095),
    ],
}

WRONG_TYPES = {
    "must be a number of bytes, got '1GB'": [lambda: ShardCache("x", "1GB")],
    "string": [lambda urls=urls: expand_urls(urls) for urls in (7, None, b"a.tar", ["a.tar", 7], [b"a.tar"])],
    "a URL is a string, got int: 123": [lambda: url_to_cache_name(123)],
    "url_to_name must return a file name, got 7": [lambda: cache_name("x", lambda url: 7)],
    "colour": [lambda: gopen("pipe:true", colour="red")],
    r"write dataset.compose\(DBCache, path, size\)": [lambda: DBCache([1, 2], "x", 2)],
}

ENVIRONMENT = [
    ("GOPEN_BUFFER", "1M", lambda: gopen(__file__), "GOPEN_BUFFER.*'1M'"),
    ("USE_AIS_FOR", "gs:ftp", lambda: gopen("gs://bucket/x"), "USE_AIS_FOR in the environment lists ftp"),
    ("WDS_A", "${A}", lambda: expand_urls("${A}.tar"), "without end"),
    (
        "WDS_REWRITE",
        "http://a(b=/x",
        lambda: rewrite_url("http://h"),
        "WDS_REWRITE .*no.* regular expression",
    ),
    (
        "GOPEN_REWRITE",
        "gs://;s3://=/data/",
        lambda: rewrite_url("s3://x"),
        "GOPEN_REWRITE in the environment has the rule 'gs://' without '='",
    ),
]


def cases(table):
    return [pytest.param(call, message) for message, calls in table.items() for call in calls]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("call", "message"), cases(REFUSED))
def test_a_value_that_makes_no_sense_is_refused_and_leaves_nothing(call, message, folder, monkeypatch):
    if message == "names no object":
        monkeypatch.setenv("AIS_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ValueError, match=message):
        call()
    assert list(pathlib.Path(folder).iterdir()) == []


@pytest.mark.parametrize(("call", "message"), cases(WRONG_TYPES))
def test_a_value_of_another_type_is_refused(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(("variable", "value", "call", "message"), ENVIRONMENT)
def test_an_environment_that_makes_no_sense_is_refused(monkeypatch, variable, value, call, message):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=message):
        call()
