"""Streams from and to web servers: whole, resumed, refused."""

import hashlib
import random
import re
import socket
import subprocess
import sys
from email.utils import formatdate

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpwds.errors import StreamError, StreamNotFound
from mpwds.storage.streams.base import stream_version
from mpwds.storage.streams.gopen import gopen, open_at
from mpwds.storage.streams.http import open_http
from mpwds.storage.streams.resuming import Retries
from tests.storage.streams.served import CONTENT, OTHER, read


@pytest.fixture(autouse=True)
def shard(web):
    web.files["/x.tar"] = CONTENT


def test_reads_in_pieces_of_any_size(web):
    with gopen(web.url()) as stream:
        pieces = [stream.read(size) for size in (1, 511, 70_000)]
        buffer = bytearray(1000)
        count = stream.readinto(buffer)
        rest = stream.read()
    assert b"".join(pieces) + bytes(buffer[:count]) + rest == CONTENT


@pytest.mark.parametrize("content", [CONTENT, b""])
@pytest.mark.parametrize("how", [{}, {"chunked": True}, {"sends_length": False}])
def test_reads_bodies_whose_length_is_announced_or_not(web, how, content):
    web.files["/x.tar"] = content
    web.plan = [how]
    assert read(web) == content


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("offset", [1, 150_000, len(CONTENT)])
def test_starts_at_an_offset_whether_the_server_knows_ranges_or_not(web, offset, ranges):
    web.ranges = ranges
    with open_at(web.url(), offset) as stream:
        assert stream.read() == CONTENT[offset:]


@pytest.mark.parametrize("ranges", [True, False])
def test_an_offset_behind_the_end_is_an_error(web, ranges):
    web.ranges = ranges
    with pytest.raises(StreamError, match=r"300000.*shorter than it was"):
        open_at(web.url(), 300_001)


@pytest.mark.parametrize("fault", [{"cut": 70_001}, {"reset": 200_000}, {"chunked": True, "cut": 90_000}])
def test_goes_on_at_the_byte_where_the_connection_broke(web, quick, fault):
    web.plan = [fault]
    assert read(web, retries=quick) == CONTENT
    assert len(web.requests) == 2
    (first, *_), (_, *again) = web.asked("Range"), web.asked("If-Range")
    assert first is None
    assert again == [f'"{hashlib.sha1(CONTENT).hexdigest()}"']


def test_a_stall_ends_by_the_timeout_and_goes_on(web, quick):
    web.plan = [{"stall": 50_000}]
    with open_http(web.url(), retries=quick) as stream:
        assert web.stalled.wait(600)
        # From here on, only the next answer counts.
        stream.raw._body._response.connection.sock.settimeout(0.1)
        assert stream.read() == CONTENT
    assert web.asked("Range") == [None, "bytes=50000-"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    faults=st.lists(
        st.one_of(
            st.fixed_dictionaries({"cut": st.integers(0, 300_000)}, optional={"chunked": st.booleans()}),
            st.fixed_dictionaries({"reset": st.integers(0, 300_000)}),
            st.fixed_dictionaries({"part": st.integers(1, 300_000)}),
            st.fixed_dictionaries({"status": st.sampled_from([408, 429, 500, 502, 503, 504])}),
            st.fixed_dictionaries({"ranges": st.just(False), "cut": st.integers(0, 300_000)}),
        ),
        max_size=6,
    ),
    marks=st.sampled_from([(True, True), (True, False), (False, True)]),
    offset=st.integers(0, 300_000),
)
def test_whatever_breaks_each_byte_comes_once(web, faults, marks, offset):
    web.etags, web.modified = marks[0], "Mon, 01 Jan 2024 00:00:00 GMT" if marks[1] else None
    web.plan = list(faults)
    with open_http(web.url(), offset=offset, retries=Retries(tries=8, first_s=0.0)) as stream:
        assert stream.read() == CONTENT[offset:]


@pytest.mark.parametrize(
    ("plan", "tries"),
    [
        ([{"cut": 100_000}, *[{"part": 50_000}] * 3], 2),
        ([{"cut": 80_000}] * 3, 2),
        ([{"chunked": True, "cut": 0}, {"part": 1}], 4),
        ([{"ranges": False, "cut": 100_000}, {"ranges": False, "cut": 200_000}, {"ranges": False}], 4),
    ],
    ids=[
        "parts need no tries",
        "progress makes tries count anew",
        "a part after chunks is not taken for the end",
        "without ranges it is read again up to the break",
    ],
)
def test_goes_on_as_often_as_it_breaks(web, plan, tries):
    web.plan = plan
    assert read(web, retries=Retries(tries=tries, first_s=0.0)) == CONTENT


def test_an_answer_in_chunks_that_lacks_its_last_line_is_complete_all_the_same(web, quick):
    web.plan = [{"chunked": True, "cut": 299_000}]
    assert read(web, retries=quick) == CONTENT
    assert web.asked("Range") == [None, "bytes=300000-"]


@pytest.mark.parametrize("fault", [{"cut": 100_000}, {"part": 100_000}])
def test_a_server_that_marks_no_version_is_not_read_on(web, quick, fault):
    web.etags, web.modified = False, None
    web.plan = [fault]
    with pytest.raises(StreamError, match="neither ETag nor Last-Modified.*read it again from its beginning"):
        read(web, offset=10, retries=quick)
    assert len(web.requests) == 1


def test_a_server_that_marks_no_version_is_asked_again_before_the_first_byte(web, quick):
    web.etags, web.modified = False, None
    web.plan = [{"cut": 0}, {"cut": 0}]
    assert read(web, retries=quick) == CONTENT


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize(
    "marks", [{}, {"modified": None}, {"etags": False, "modified": "Tue, 02 Jan 2024 00:00:00 GMT"}]
)
def test_a_changed_resource_is_an_error_and_never_mixed(web, quick, marks, ranges):
    for name, value in marks.items():
        setattr(web, name, False if name == "etags" else "Mon, 01 Jan 2024 00:00:00 GMT" if value else None)
    web.ranges = ranges
    web.plan = [{"cut": 100_000}, {"content": OTHER, **marks}]
    with pytest.raises(StreamError, match="it changed while it was read"):
        read(web, retries=quick)


def test_a_server_that_no_longer_marks_the_version_is_not_read_on(web, quick):
    web.plan = [{"cut": 100_000}, {"ranges": False, "etags": False, "modified": None}]
    with pytest.raises(StreamError, match="the server no longer says which version it sends"):
        read(web, retries=quick)


def test_a_resource_that_grew_is_an_error(web, quick):
    web.etags = False
    web.plan = [{"cut": 100_000}, {"content": CONTENT + b"more"}]
    with pytest.raises(StreamError, match="size was 300000"):
        read(web, retries=quick)


@pytest.mark.parametrize("says", ["bytes 7-299999/300000", "bytes 5-299999/*", "bytes */300000", "lines 5-7"])
def test_a_range_other_than_the_one_asked_for_is_an_error(web, says):
    web.plan = [{"says": says}]
    with pytest.raises(StreamError, match="does not do ranges properly"):
        open_at(web.url(), 5)


def test_after_an_error_a_stream_never_looks_as_if_it_had_ended(web):
    web.plan = [{"cut": 10}]
    with open_http(web.url(), retries=Retries(tries=1)) as stream:
        for _ in range(2):
            with pytest.raises(StreamError, match="broke .* at byte 10 of 300000; gave up after 1 tries"):
                stream.read()


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_passing_refusal_is_tried_again(web, quick, status):
    web.plan = [{"status": status}] * 3
    assert read(web, retries=quick) == CONTENT


def test_gives_up_after_the_tries_it_was_given(web, quick):
    web.plan = [{"status": 503, "text": b"<p>too   busy"}] * 9
    message = "503 Service Unavailable; it said: too busy at byte 0; gave up after 4 tries"
    with pytest.raises(StreamError, match=message) as caught:
        open_http(web.url(), retries=quick)
    assert (caught.value.tries, caught.value.position, len(web.requests)) == (4, 0, 4)


def test_what_a_server_says_does_nothing_to_a_terminal(web, quick):
    web.plan = [{"status": 403, "reason": "no \x1b[31mway\x07", "text": b"go \x1b]0;away\x9b"}]
    with pytest.raises(StreamError, match="403 no") as caught:
        open_http(web.url(), retries=quick)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("wish", ["7", formatdate(0, usegmt=True)])
def test_a_server_says_how_long_to_wait(web, pauses, wish):
    web.plan = [{"status": 429, "headers": {"Retry-After": wish}}]
    assert read(web, retries=Retries(first_s=0.0)) == CONTENT
    (pause,) = pauses
    assert 6.9 <= pause <= 8.75 if wish == "7" else pause == 0.0  # forks must not come back together


def test_the_users_random_numbers_are_left_alone(web):
    random.seed(1)
    expected = random.Random(1).random()
    web.plan = [{"status": 503}]
    read(web, retries=Retries(first_s=0.001))
    assert random.random() == expected


@pytest.mark.parametrize("status", [404, 410])
def test_a_missing_resource_is_file_not_found_at_once(web, status):
    web.plan = [{"status": status}]
    with pytest.raises(FileNotFoundError, match=f"no such resource .{status}") as caught:
        open_http(web.url())
    assert isinstance(caught.value, StreamNotFound)
    assert len(web.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 501, 505])
def test_a_lasting_refusal_is_an_error_at_once(web, status):
    web.plan = [{"status": status}]
    with pytest.raises(StreamError, match=f"the server answers {status}"):
        open_http(web.url())
    assert len(web.requests) == 1


def test_a_server_that_is_not_there_is_an_error(quick):
    with pytest.raises(StreamError, match=r"failed \(ConnectionRefusedError.*gave up after 4 tries"):
        open_http("http://127.0.0.1:1/x.tar", retries=quick)


@pytest.mark.parametrize("url", ["http:///x.tar", "http://host:port/x.tar", "http://127.0.0.1:1/a\nb"])
def test_a_url_that_is_none_is_an_error_at_once(url):
    with pytest.raises(StreamError, match=r"not a URL of a web server|connection failed"):
        open_http(url, retries=Retries(tries=1))


def test_nothing_of_it_is_imported_with_the_package():
    unwanted = {"ssl", "http.client", "torch"}
    code = f"import sys, mpwds.storage.streams.gopen; print({unwanted}.intersection(sys.modules))"
    child = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert child.stdout == "set()\n"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_stream_knows_how_many_bytes_there_are_if_the_server_says_so(web, chunked):
    web.files["/x.tar"], web.chunked = bytes(1000), chunked
    with open_http(web.url()) as stream:
        assert stream_version(stream).size == (None if chunked else 1000)


@pytest.mark.parametrize("failure", ["refused", "unknown"])
def test_a_server_that_was_never_there_is_given_up_soon(web, monkeypatch, pauses, caplog, failure):
    if failure == "unknown":

        def unknown(*arguments, **options):
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        url = "http://no-such-host/x.tar"
    else:
        url = f"http://127.0.0.1:{unused_port()}/x.tar"
    monkeypatch.setattr("mpwds.storage.streams.http._reached", set())  # another test may have had the port
    caplog.set_level("WARNING", logger="mpwds")
    with pytest.raises(StreamError, match="gave up after 5 tries"):
        open_http(url)
    assert sum(pauses) < 5
    assert len(caplog.records) <= 2


def test_a_busy_server_is_spoken_of_once(web, pauses, caplog):
    caplog.set_level("WARNING", logger="mpwds")
    web.plan = [{"status": 503}] * 10
    with pytest.raises(StreamError, match="gave up after 10 tries"):
        open_http(web.url() + "?token=secret")
    (record,) = caplog.records
    pattern = r"x.tar\?token=\*\*\*: .* 503 .*\(try 3 of 10\); trying again in .* s, and for up to (\d+) s"
    match = re.search(pattern, record.getMessage())
    assert sum(pauses[2:]) - 1 <= int(match[1]) <= 60


class TestInLimitedTime:
    @pytest.fixture
    def clock(self, monkeypatch):
        """Time passes in pauses only, and where a test says so."""

        class Clock:
            now_s = 0.0

            def monotonic(self):
                return self.now_s

            def sleep(self, seconds):
                self.now_s += seconds

        clock = Clock()
        monkeypatch.setattr("mpwds.storage.streams.resuming.time", clock)
        return clock

    def test_no_try_is_begun_when_it_is_over(self, web, clock):
        web.plan = [{"status": 503}] * 1000
        with pytest.raises(StreamError, match=r"gave up after \d+ tries, within 60 s"):
            open_http(web.url(), retries=Retries(tries=1000, first_s=10, longest_s=10, within_s=60))
        assert 1 <= len(web.requests) < 20

    def test_a_silent_server_ends_it(self, web):
        web.plan = [{"stall": 0}]
        with pytest.raises(StreamError, match=r"the server is silent .* gave up after 1 tries, within 0.2 s"):
            open_http(web.url(), retries=Retries(within_s=0.2)).read()

    def test_a_file_that_is_there_is_not_thrown_away(self, web, clock):
        web.files["/x.tar"] = CONTENT[:1000]
        for length in (True, False):
            web.plan = [{"sends_length": length}]
            with open_http(web.url(), retries=Retries(within_s=60)) as stream:
                assert stream.peek(1)
                clock.sleep(60)
                assert stream.read() == CONTENT[:1000]

    def test_bytes_that_come_later_are_an_error(self, web, clock):
        web.files["/x.tar"] = CONTENT * 10
        with open_http(web.url(), retries=Retries(within_s=60)) as stream:
            clock.sleep(60)
            with pytest.raises(StreamError, match=r"took more than the 60 s .*; raise the time-out"):
                stream.read()


def test_a_server_that_has_answered_once_is_waited_for(web, pauses):
    web.plan = [{"cut": 10}]
    url = web.url()
    with open_http(url, retries=Retries(tries=9)) as stream:
        web.close()
        with pytest.raises(StreamError, match="ConnectionRefused.*gave up after 9 tries"):
            stream.read()
    with pytest.raises(StreamError, match="gave up after 9 tries"):
        open_http(url, retries=Retries(tries=9))
    assert len(pauses) == 16


def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
