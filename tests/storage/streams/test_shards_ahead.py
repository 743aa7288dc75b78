"""Shards of servers: the next ones are opened while one is read."""

import gc
import io
import os
import signal
import tarfile
import threading

import pytest

import mpwds
from mpwds.errors import StreamError
from mpwds.storage.streams import ranges
from tests.storage.streams.served import wait_until

SHARDS = 5
SAMPLES = 40
URLS = [f"s3://bucket/{number}.tar" for number in range(SHARDS)]


def shard(number, mode="w"):
    with io.BytesIO() as file:
        with tarfile.open(mode=mode, fileobj=file) as tar:
            for sample in range(SAMPLES):
                member = tarfile.TarInfo(f"{number}-{sample:03}.txt")
                member.size = 3000
                tar.addfile(member, io.BytesIO(os.urandom(3000)))
        return file.getvalue()


@pytest.fixture(autouse=True)
def storage(s3, monkeypatch):
    monkeypatch.setattr(ranges, "RANGE_BYTES", 20_000)
    for number in range(SHARDS):
        s3.files[f"/bucket/{number}.tar"] = shard(number)
    ranges._allowance.__init__()
    before = ahead_threads()
    yield
    gc.collect()  # errors keep the frames that raised them
    # What opens shards ends, too: it would ask the next test's server.
    wait_until(lambda: len(ahead_threads() - before) <= ranges._allowance._threads._running)
    wait_until(lambda: ranges._allowance.held == 0)


def ahead_threads():
    return {thread for thread in threading.enumerate() if thread.name == "mpwds ahead"}


def keys(dataset):
    return [sample["__key__"] for sample in dataset]


EXPECTED = [f"{number}-{sample:03}" for number in range(SHARDS) for sample in range(SAMPLES)]


def requested(web):
    return {path for _, path, _ in list(web.requests)}


def test_the_next_shards_are_opened_before_this_one_ends(web):
    samples = iter(mpwds.WebDataset(URLS))
    next(samples)
    wait_until(lambda: {"/bucket/1.tar", "/bucket/2.tar"} <= requested(web))
    assert "/bucket/3.tar" not in requested(web)
    assert [sample["__key__"] for sample in samples] == EXPECTED[1:]
    del samples


def test_of_shards_that_are_smaller_than_what_is_read_ahead_more_are_opened(web, monkeypatch):
    monkeypatch.setattr(ranges, "RANGE_BYTES", 50_000)
    samples = iter(mpwds.WebDataset(URLS, read_ahead=3))  # 150 kB, and shards of 145 kB
    for _ in range(SAMPLES + 1):
        next(samples)
    wait_until(lambda: "/bucket/3.tar" in requested(web))
    assert "/bucket/4.tar" not in requested(web)


@pytest.mark.parametrize(("read_ahead", "opened"), [(None, False), (4, True)])
def test_web_servers_are_read_ahead_only_on_request(web, read_ahead, opened):
    urls = [web.url(f"/bucket/{number}.tar") for number in range(SHARDS)]
    dataset = mpwds.WebDataset(urls, read_ahead=read_ahead)
    assert keys(dataset) == EXPECTED
    assert len(web.requests) > SHARDS if opened else len(web.requests) == SHARDS


def test_without_reading_ahead_each_shard_is_one_request(web):
    assert keys(mpwds.WebDataset(URLS, read_ahead=0)) == EXPECTED
    assert [path for _, path, _ in web.requests] == [f"/bucket/{number}.tar" for number in range(SHARDS)]


def test_an_error_of_a_shard_that_was_opened_ahead_comes_in_its_turn(web):
    del web.files["/bucket/1.tar"]
    samples = iter(mpwds.WebDataset(URLS))
    found = [next(samples)["__key__"] for _ in range(SAMPLES)]
    assert found == EXPECTED[:SAMPLES]
    with pytest.raises(StreamError, match="there is no such object"):
        next(samples)
    left_out = mpwds.WebDataset(URLS, handler=mpwds.ignore_and_continue)
    assert keys(left_out) == EXPECTED[:SAMPLES] + EXPECTED[2 * SAMPLES :]


def test_the_next_shard_of_a_generator_is_not_asked_for_before_this_one_was_read():
    taken = []

    def urls():
        for url in URLS:
            taken.append(url)
            yield {"url": url}

    samples = mpwds.tarfile_to_samples()(urls())
    for number, sample in enumerate(samples):
        assert sample["__key__"] == EXPECTED[number]
        assert len(taken) == number // SAMPLES + 1


@pytest.mark.parametrize("compression", ["", ":gz"])
@pytest.mark.parametrize("stop", [1, SAMPLES - 1, SAMPLES, 3 * SAMPLES + 5])
def test_resumes_inside_a_shard(web, stop, compression):
    for number in range(SHARDS):
        web.files[f"/bucket/{number}.tar"] = shard(number, f"w{compression}")
    dataset = mpwds.WebDataset([URLS[0], *URLS])  # the first is opened ahead of its second turn
    first = dataset.stream()
    seen = [next(first)[1]["__key__"] for _ in range(stop)]
    second = dataset.stream()
    second.load_state_dict(first.state_dict())
    assert seen + [sample["__key__"] for _, sample in second] == EXPECTED[:SAMPLES] + EXPECTED
    del first, second


def test_elements_that_are_fetched_again_are_not_read_ahead(web):
    stream = mpwds.WebDataset(URLS).stream()
    address = [next(stream)[0] for _ in range(3)][-1]
    del stream
    other = mpwds.WebDataset(URLS).stream()
    assert other.fetch(address)["__key__"] == EXPECTED[2]
    offset = address[1]
    starts = tuple(f"bytes={start}-" for start in (offset, offset + 20_000))
    assert [each for each in web.asked("range") if each.startswith(starts)] == [f"bytes={offset}-"]


def test_a_worker_that_is_killed_loses_nothing():
    dataset = mpwds.WebDataset(URLS)
    with (
        mpwds.MultiLoader(dataset, workers=1, on_worker_death="restart") as loader,
        pytest.warns(RuntimeWarning, match="killed by SIGKILL"),
    ):
        found = []
        for sample in loader:
            found.append(sample["__key__"])
            if len(found) == SAMPLES // 2:
                os.kill(loader.stats().workers[0].pid, signal.SIGKILL)
        assert found == EXPECTED
