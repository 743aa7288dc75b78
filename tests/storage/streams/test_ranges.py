"""Reading ahead: ranges that threads fetch, of web servers and of cloud storage."""

import concurrent.futures
import contextlib
import multiprocessing
import re
import subprocess
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpwds.errors import StreamError
from mpwds.storage.caches.shard_cache import ShardCache
from mpwds.storage.streams import ranges
from mpwds.storage.streams.base import stream_version
from mpwds.storage.streams.gopen import gopen, open_at, open_range, shards_ahead
from mpwds.storage.streams.resuming import Interrupted, Retries
from tests.storage.streams.served import CONTENT, OTHER, wait_until

SIZE = len(CONTENT)
RANGE = 20_000
SCHEMES = pytest.mark.parametrize("scheme", ["http", "s3"])


@pytest.fixture(autouse=True)
def storage(s3, monkeypatch):
    monkeypatch.setattr(ranges, "RANGE_BYTES", RANGE)
    s3.files["/bucket/x.tar"] = CONTENT
    ranges._allowance.__init__()
    yield
    wait_until(lambda: ranges._allowance.held == 0)


@pytest.fixture
def url(web, scheme):
    return web.url("/bucket/x.tar") if scheme == "http" else "s3://bucket/x.tar"


def asked(web):
    """The ranges that were requested: the first byte, and the byte after the last."""
    headers = [*web.asked("Range"), *web.asked("range")]
    found = [re.fullmatch(r"bytes=(\d+)-(\d+)", header or "") for header in headers]
    return [(int(match[1]), int(match[2]) + 1) for match in found if match]


def ahead(stream):
    return stream.raw._resource.ahead


def wait_for_ranges(stream):
    """Waits until threads have done what was requested."""
    concurrent.futures.wait([future for _, future in ahead(stream)])


@SCHEMES
@pytest.mark.parametrize("offset", [0, 1, RANGE, SIZE - 1, SIZE])
def test_each_byte_comes_once_and_each_range_is_requested_once(web, url, offset):
    with open_at(url, offset, read_ahead=4) as stream:
        assert stream.read() == CONTENT[offset:]
        assert stream_version(stream).size == SIZE
    starts = sorted(start for start, _ in asked(web))
    assert starts == [*range(offset, SIZE, RANGE)] or (offset == SIZE and starts == [SIZE])


@SCHEMES
@pytest.mark.parametrize("size", [1, RANGE - 1, RANGE])
def test_what_is_no_longer_than_a_range_takes_one_request_and_no_thread(web, url, size):
    web.files["/bucket/x.tar"] = CONTENT[:size]
    with gopen(url, read_ahead=4) as stream:
        assert stream.read() == CONTENT[:size]
        assert [method for method, *_ in web.requests] == ["GET"]
    assert ranges._allowance._threads._running == 0


@SCHEMES
@pytest.mark.parametrize("content", [CONTENT, b""])
def test_a_server_without_ranges_sends_everything_in_one_answer(web, url, content):
    web.files["/bucket/x.tar"], web.ranges = content, False
    with gopen(url, read_ahead=4) as stream:
        assert stream.read() == content
    assert len(web.requests) == (2 if url.startswith("s3") else 1)  # obstore raises at the first answer


@SCHEMES
def test_a_server_that_ignores_where_ranges_end_is_asked_for_everything(web, url):
    web.to_end = True
    with gopen(url, read_ahead=4) as stream:
        assert stream.read() == CONTENT
    assert len(web.requests) == (2 if url.startswith("s3") else 1)


def test_a_range_that_goes_on_to_the_end_is_not_kept_in_memory(web):
    web.plan = [{}, *[{"to_end": True}] * 5]
    with gopen(web.url("/bucket/x.tar"), read_ahead=4, retries=Retries(first_s=0.0)) as stream:
        wait_for_ranges(stream)
        assert [type(future.exception()) for _, future in ahead(stream)] == [Interrupted] * 4
        assert stream.read() == CONTENT


def test_an_answer_that_is_longer_than_its_range_is_an_error(web):
    web.plan = [{}, {"to_end": True, "says": f"bytes {RANGE}-{2 * RANGE - 1}/{SIZE}"}]
    with gopen(web.url("/bucket/x.tar"), read_ahead=1) as stream:
        assert stream.read(RANGE) == CONTENT[:RANGE]
        with pytest.raises(StreamError, match="it does not do ranges properly"):
            stream.read()


@SCHEMES
def test_ranges_that_were_read_make_tries_count_again(web, url, monkeypatch):
    monkeypatch.setattr(ranges, "RANGE_BYTES", 70_000)
    web.files["/bucket/x.tar"] = CONTENT * 4
    web.plan = [{}, *[{"cut": 0}, {}, {}] * 6]
    with gopen(url, read_ahead=1, retries=Retries(tries=4, first_s=0.0)) as stream:
        assert stream.read() == CONTENT * 4
    assert not web.plan


def test_an_empty_resource_is_read_from_servers_that_refuse_ranges_of_it(web):
    web.files["/bucket/x.tar"] = b""
    for name in (web.url("/bucket/x.tar"), "s3://bucket/x.tar"):
        with gopen(name, read_ahead=4) as stream:
            assert stream.read() == b""


def test_a_server_that_does_not_say_which_version_it_sends_is_asked_for_everything(web):
    web.etags, web.modified = False, None
    with gopen(web.url("/bucket/x.tar"), read_ahead=4) as stream:
        assert stream.read() == CONTENT
    assert web.asked("Range") == [f"bytes=0-{RANGE - 1}", None]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    scheme=st.sampled_from(["http", "s3"]),
    faults=st.lists(
        st.one_of(
            st.just({}),
            st.fixed_dictionaries({"cut": st.integers(0, RANGE)}),
            st.fixed_dictionaries({"reset": st.integers(0, RANGE)}),
            st.fixed_dictionaries({"status": st.sampled_from([408, 429, 500, 502, 503, 504])}),
        ),
        max_size=12,
    ),
    count=st.integers(1, 8),
    offset=st.integers(0, SIZE),
)
def test_whatever_breaks_each_byte_comes_once(web, scheme, faults, count, offset):
    web.plan = list(faults)
    name = web.url("/bucket/x.tar") if scheme == "http" else "s3://bucket/x.tar"
    retries = Retries(tries=14, first_s=0.0)
    with open_at(name, offset, read_ahead=count, retries=retries) as stream:
        assert stream.read() == CONTENT[offset:]


@SCHEMES
@pytest.mark.parametrize("change", ["at once", "half way"])
def test_a_changed_resource_is_an_error_and_never_mixed(web, url, quick, change):
    with gopen(url, read_ahead=2, retries=quick) as stream:
        seen = stream.read(1 if change == "at once" else SIZE // 2)
        web.files["/bucket/x.tar"] = OTHER
        with pytest.raises(StreamError, match="it changed while it was read: at byte [0-9]+, it"):
            while block := stream.read1(1000):
                seen += block
    assert CONTENT.startswith(seen)


@SCHEMES
@pytest.mark.parametrize("status", [503, 429])
def test_a_server_that_is_gone_gets_no_more_requests_than_tries_and_ranges_under_way(web, url, status):
    web.plan = [{}, *[{"status": status}] * 200]
    with (
        gopen(url, read_ahead=4, retries=Retries(tries=5, first_s=0.0)) as stream,
        pytest.raises(StreamError, match=f"{status} .*gave up after 5 tries"),
    ):
        stream.read()
    assert len(web.requests) <= 1 + 4 + 5


@SCHEMES
def test_further_ranges_are_asked_for_only_of_the_first_version(web, url):
    with gopen(url, read_ahead=2) as stream:
        assert stream.read() == CONTENT
    names = ("If-Match", "if-match", "If-Range", "if-range")
    conditions = [given for name in names for given in web.asked(name) if given]
    assert len(conditions) == SIZE // RANGE - 1


def test_a_failure_halves_what_may_be_ahead(web):
    web.plan = [{}, *[{}] * 3, {"status": 503}, *[{}] * 20]
    with gopen("s3://bucket/x.tar", retries=Retries(first_s=0.0)) as stream:
        wait_for_ranges(stream)
        assert ranges._allowance._most <= ranges.READ_AHEAD // 2
        assert stream.read() == CONTENT


@SCHEMES
def test_after_a_failure_no_range_is_requested_before_the_reader_has_got_over_it(web, url, pauses):
    failing = {"status": 503}
    web.plan = [{}, failing, failing]
    with gopen(url, read_ahead=2, retries=Retries(first_s=100.0, longest_s=100.0)) as stream:
        wait_for_ranges(stream)
        assert stream.read(RANGE) == CONTENT[:RANGE]
        assert len(web.requests) == 3
        assert stream.read() == CONTENT[RANGE:]
    pauses = [each for each in pauses if each > 20]  # other threads sleep for less
    assert len(pauses) == 2
    assert max(pauses) <= 100
    assert len(web.requests) == SIZE // RANGE + 2


@SCHEMES
def test_closing_early_drops_what_no_thread_has_begun(web, url, monkeypatch):
    monkeypatch.setattr(ranges, "_MOST_RANGES", 2)
    ranges._allowance.__init__()
    ranges._allowance._most = 8  # for two threads
    web.plan = [{}, *[{"stall": RANGE // 2}] * 2]
    stream = gopen(url, read_ahead=8, timeout_s=1)
    stream.read(1)
    assert len(ahead(stream)) == 8
    stream.close()
    wait_until(lambda: ranges._allowance.held == 0)
    assert len(web.requests) <= 3


def test_a_range_counts_until_its_thread_has_ended_though_the_stream_is_closed(web):
    web.plan = [{}, {"stall": RANGE // 2}]
    stream = gopen("s3://bucket/x.tar", read_ahead=1, timeout_s=1)
    wait_until(lambda: len(web.requests) == 2)
    ((_, future),) = ahead(stream)
    held = ranges._allowance.held
    stream.close()
    assert ranges._allowance.held == held or future.done()
    wait_until(lambda: ranges._allowance.held == 0)


def test_a_stream_that_is_dropped_gives_back_what_it_held(web):
    stream = gopen("s3://bucket/x.tar")
    stream.read(1)
    assert ranges._allowance.held == 8
    wait_for_ranges(stream)
    del stream
    assert ranges._allowance.held == 0


@pytest.mark.parametrize("line", range(28))
def test_a_stream_that_is_closed_in_the_middle_of_a_request_gives_back_what_it_held(web, line):
    """As garbage collection does, at any line of any thread."""
    stream, lines = gopen("s3://bucket/x.tar", read_ahead=2), []
    stream.read(RANGE)

    def trace(frame, event, argument):
        if frame.f_code.co_filename != ranges.__file__:
            return None
        lines.append(frame.f_lineno)
        if len(lines) == line + 1:
            stream.close()
        return trace

    ranges._allowance._most = 0
    wait_for_ranges(stream)
    stream.raw._resource._take()
    ranges._allowance._most = 8
    sys.settrace(trace)
    try:
        ranges._allowance.request_ahead()
    finally:
        sys.settrace(None)
    assert lines
    stream.close()
    wait_until(lambda: ranges._allowance.held == 0)


def test_all_streams_of_a_process_together_hold_a_bounded_number_of_ranges(web):
    most = ranges._allowance._most = ranges._MOST_RANGES
    streams = [gopen("s3://bucket/x.tar") for _ in range(6)]
    assert ranges._allowance.held == most
    assert [stream.read() for stream in streams] == [CONTENT] * 6


def test_connections_of_as_many_ranges_as_may_be_ahead_are_used_again(web, caplog):
    all_under_way = threading.Barrier(ranges._MOST_RANGES)
    ranges._allowance._most = ranges._MOST_RANGES
    web.files["/bucket/x.tar"] = CONTENT * 5
    web.plan = [{}, *[{"meets": all_under_way}] * ranges._MOST_RANGES]
    with gopen(web.url("/bucket/x.tar"), read_ahead=ranges._MOST_RANGES) as stream:
        assert stream.read() == CONTENT * 5
    assert "Connection pool is full" not in caplog.text


def test_a_reader_that_never_waits_gets_no_more_ranges_ahead(web):
    ranges._allowance._most = 1
    with gopen("s3://bucket/x.tar") as stream:
        for number in range(1, SIZE // RANGE):
            wait_for_ranges(stream)
            assert len(web.requests) == max(2, number)  # those read, and one
            stream.read(RANGE)
        assert ranges._allowance._most == 1


def test_a_reader_that_waits_gets_more_ranges_ahead(web):
    ranges._allowance._most = 1
    web.plan = [{}, {"stall": 0}, *[{}] * 20]
    stream = gopen("s3://bucket/x.tar", retries=Retries(first_s=0.0), timeout_s=1)
    assert stream.read() == CONTENT
    stream.close()
    assert ranges._allowance._most > 1


def test_a_reader_gets_ranges_ahead_though_others_have_all_that_was_allowed(web):
    ranges._allowance._most = 1
    with gopen("s3://bucket/x.tar") as other, gopen("s3://bucket/x.tar") as stream:
        wait_for_ranges(other)  # which has the one that is allowed
        stream.read(2 * RANGE + 1)
        assert ranges._allowance._most > 1
        assert ahead(stream)


def test_a_range_that_becomes_free_goes_to_the_stream_that_is_read(web, monkeypatch):
    monkeypatch.setattr(ranges, "_MOST_RANGES", 8)
    with contextlib.ExitStack() as opened:
        read, *others = (opened.enter_context(gopen("s3://bucket/x.tar", read_ahead=6)) for _ in range(3))
        assert [len(ahead(each)) for each in (read, *others)] == [6, 2, 0]
        for number in range(1, SIZE // RANGE):
            read.read(RANGE)
            assert len(ahead(read)) == min(SIZE // RANGE - number, 6)
        assert [len(ahead(each)) for each in others] == [4, 3]  # those with the fewest, in turn


def test_streams_that_are_read_in_turn_share_what_is_allowed(web, monkeypatch):
    monkeypatch.setattr(ranges, "_MOST_RANGES", 4)
    ranges._allowance.__init__()
    ranges._allowance._most = 4
    with gopen("s3://bucket/x.tar") as one, gopen("s3://bucket/x.tar") as other:
        assert [len(ahead(each)) for each in (one, other)] == [4, 0]
        for _ in range(5):
            one.read(RANGE)
            other.read(RANGE)
        assert sorted(len(ahead(each)) for each in (one, other)) == [2, 2]


def test_ranges_that_are_asked_for_are_one_request_each(web):
    with open_range("s3://bucket/x.tar", 1000, 3 * RANGE) as stream:
        assert stream.read() == CONTENT[1000 : 1000 + 3 * RANGE]
    assert asked(web) == [(1000, 1000 + 3 * RANGE)]


@pytest.mark.parametrize(
    ("name", "read_ahead", "count"),
    [
        ("s3://bucket/x.tar", None, 8),
        ("gs://bucket/x.tar", 2, 2),
        ("s3://bucket/x.tar", 0, 0),
        ("https://host/x.tar", None, 0),
        ("https://host/x.tar", 3, 3),
        ("pipe:cat x.tar", 3, 0),
        ("x.tar", 3, 0),
    ],
)
def test_cloud_storage_is_read_ahead_unless_it_is_said_and_others_if_it_is(name, read_ahead, count):
    assert shards_ahead(name, read_ahead, size=1) == count
    assert shards_ahead(name, read_ahead) == min(2, count)


def read_in_fork(stream, answers):
    answers.put(stream.read())


def test_a_fork_goes_on_without_the_threads_of_its_parent(web):
    context = multiprocessing.get_context("fork")
    with gopen(web.url("/bucket/x.tar"), read_ahead=8) as stream:
        assert stream.read(RANGE // 2) == CONTENT[: RANGE // 2]
        answers = context.SimpleQueue()
        child = context.Process(target=read_in_fork, args=(stream, answers))
        child.start()
        rest = answers.get()
        child.join()
        # The buffer that the fork has holds some bytes already, and the rest follows.
        assert rest == CONTENT[RANGE // 2 :]
        assert stream.read() == CONTENT[RANGE // 2 :]


EXIT = """
import sys
from mpwds.storage.streams import ranges
from mpwds.storage.streams.gopen import gopen
ranges.RANGE_BYTES = 20_000
kept = [gopen(sys.argv[1], read_ahead=8) for _ in range(int(sys.argv[2]))]
for stream in kept:
    stream.read(1)
"""


@SCHEMES
@pytest.mark.parametrize("streams", [1, 2])
def test_a_program_may_end_while_ranges_are_under_way(web, url, streams):
    web.plan = [{}, *[{"stall": 5000}] * 7] if streams == 1 else []
    words = [sys.executable, "-c", EXIT, url, str(streams)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_shard_cache_fetches_by_ranges(web, tmp_path):
    with ShardCache(tmp_path, validator=None).open("s3://bucket/x.tar") as stream:
        assert stream.read() == CONTENT
    assert len(asked(web)) == SIZE // RANGE
    with open_at("s3://bucket/x.tar", SIZE - 1) as stream:
        assert stream.read() == CONTENT[-1:]
