"""Samples read by ranges: no more than what is asked for, from web servers and cloud storage."""

import gzip
import multiprocessing
import pickle

import pytest

from mpwds.errors import ShardError, StreamError
from mpwds.storage.caches.shard_cache import ShardCache
from mpwds.storage.indexed.describing import describe_shard
from mpwds.storage.indexed.tar_shards import TarShards
from mpwds.storage.streams.gopen import open_range
from mpwds.storage.writing.tar_writer import TarWriter

COUNT = 40


@pytest.fixture
def path(tmp_path):
    """A shard of 40 samples of 50 kB and a class."""
    with TarWriter(str(tmp_path / "x.tar")) as sink:
        for n in range(COUNT):
            sink.write({"__key__": f"{n:03d}", "bin": bytes([n]) * 50_000, "cls": n})
    return str(tmp_path / "x.tar")


@pytest.fixture
def served(web, path):
    with open(path, "rb") as file:
        web.files["/x.tar"] = file.read()
    return web.url("/x.tar")


def asked_bytes(web):
    """The bytes of all ranges that were asked for."""
    headers = [{name.lower(): value for name, value in headers.items()} for _, _, headers in web.requests]
    ranges = [each["range"].removeprefix("bytes=").split("-") for each in headers]
    return sum(int(last) - int(first) + 1 for first, last in ranges)


def test_a_sample_is_the_same_as_from_the_file(served, path):
    remote, local = TarShards([served], remote=True), TarShards([path])
    for n in (COUNT - 1, 0, 17):
        assert {**remote.read(0, n), "__url__": path} == local.read(0, n)


def serve(web, path, count, size, name="/x.tar"):
    with TarWriter(str(path)) as sink:
        for n in range(count):
            sink.write({"__key__": f"{n:03d}", "bin": bytes([n % 256]) * size})
    web.files[name] = path.read_bytes()


def test_of_large_samples_headers_and_samples_alone_are_fetched(web, tmp_path):
    serve(web, tmp_path / "x.tar", 20, 2_000_000)
    TarShards([web.url()], remote=True).read(0, 17)
    assert asked_bytes(web) < 0.25 * len(web.files["/x.tar"])


def test_the_offsets_of_small_samples_take_few_requests(web, tmp_path):
    serve(web, tmp_path / "x.tar", 1000, 20_000)
    assert TarShards([web.url()], remote=True).read(0, 17)["bin"] == bytes([17]) * 20_000
    assert len(web.requests) < 10


def test_the_headers_of_a_shard_are_fetched_once_though_it_is_opened_again(served, web):
    shards = TarShards([served], remote=True)
    assert shards.lengths == [COUNT]
    for again in (shards, pickle.loads(pickle.dumps(shards))):
        again.close()
        before = len(web.requests)
        assert again.read(0, 17)["cls"] == b"17"
        assert len(web.requests) == before + 2  # its beginning and the sample


def test_with_carried_offsets_a_sample_is_one_request(served, path, web):
    offsets = describe_shard(path, offsets=True)["offsets"]
    shards = TarShards([served], [COUNT], described=[{"offsets": offsets}], remote=True)
    for n in range(10, 15):
        assert shards.read(0, n)["cls"] == b"%d" % n
    assert len(web.requests) == 6  # one for the beginning and the size
    assert asked_bytes(web) < 5 * (52_000 + 512) + 17_000  # with the header behind each


def test_connections_are_used_again(served, web):
    shards = TarShards([served], [COUNT], remote=True)
    for n in range(10):
        shards.read(0, n)
    assert len(web.connections) == 1


def test_offsets_are_kept_in_the_folder_of_a_cache(served, web, tmp_path):
    for _ in range(2):
        web.requests.clear()
        TarShards([served], [COUNT], cache=ShardCache(tmp_path / "cache"), remote=True).read(0, 30)
    assert len(web.requests) == 2


def test_offsets_of_a_shard_without_a_version_are_not_kept(served, web, tmp_path):
    web.etags, web.modified = False, None
    for sizes in ([1, 600, 2000], [1, 2000, 600]):
        with TarWriter(str(tmp_path / "x.tar")) as sink:
            for n, size in enumerate(sizes):
                sink.write({"__key__": f"{n}", "bin": bytes(size)})
        web.files["/x.tar"] = (tmp_path / "x.tar").read_bytes()
        shards = TarShards([served], cache=ShardCache(tmp_path / "cache"), remote=True)
        assert [len(shards.read(0, n)["bin"]) for n in range(3)] == sizes


def test_a_server_without_ranges_is_an_error_that_says_so(served, web):
    web.ranges = False
    with pytest.raises(StreamError, match="does not do ranges; read a copy, without remote=True"):
        TarShards([served], [COUNT], remote=True).read(0, 0)


def test_a_command_is_an_error_that_says_so(path):
    with pytest.raises(StreamError, match="cannot be read by ranges: that takes a web server"):
        TarShards([f"pipe:cat {path}"], [COUNT], remote=True).read(0, 0)


def test_an_error_does_not_name_the_credentials_of_a_url(served, web):
    url = served.replace("://", "://me:opensesame@")
    assert TarShards([url], remote=True).read(0, 3)["cls"] == b"3"
    web.files["/x.tar"] = gzip.compress(web.files["/x.tar"])
    with pytest.raises(ShardError, match=r"//\*\*\*@.*is compressed") as caught:
        TarShards([url], remote=True).read(0, 0)
    assert "opensesame" not in str(caught.value)


def test_a_shard_that_changes_is_an_error(served, web):
    shards = TarShards([served], [COUNT], remote=True)
    shards.read(0, 3)
    web.files["/x.tar"] = web.files["/x.tar"].replace(b"\3" * 50_000, b"\4" * 50_000)
    for _ in range(2):
        with pytest.raises(StreamError, match="changed while it was read: its entity tag was"):
            shards.read(0, 3)


def test_a_broken_connection_is_made_again(served, web):
    shards = TarShards([served], [COUNT], remote=True)
    shards.read(0, 3)
    web.plan = [{"reset": 20_000}]
    assert shards.read(0, 5)["bin"] == b"\5" * 50_000


def test_a_range_of_any_stream_can_be_opened(path, web, served):
    with open(path, "rb") as file:
        expected = file.read()[1000:1100]
    for url in (path, served, f"pipe:cat {path}"):
        with open_range(url, 1000, 100) as stream:
            assert stream.read(100) == expected
            assert url != served or stream.read() == b""


def test_cloud_storage_sends_ranges(web, tmp_path, monkeypatch):
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ENDPOINT_URL", web.url("/").rstrip("/"))
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    serve(web, tmp_path / "x.tar", 20, 2_000_000, "/bucket/x.tar")
    shards = TarShards(["s3://bucket/x.tar"], remote=True)
    assert shards.read(0, 17)["bin"] == bytes([17]) * 2_000_000
    assert asked_bytes(web) < 0.25 * len(web.files["/bucket/x.tar"])


def test_forks_read_with_connections_of_their_own(served, web):
    shards = TarShards([served], [COUNT], remote=True)
    shards.read(0, 0)
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    def read(first):
        results.put(sum(int(shards.read(0, n)["cls"]) for n in range(first, COUNT, 2)))

    processes = [context.Process(target=read, args=(first,)) for first in range(2)]
    for process in processes:
        process.start()
    assert sum(results.get(timeout=600) for _ in processes) == sum(range(COUNT))
    for process in processes:
        process.join()
    results.close()
    assert len(web.connections) == 3
