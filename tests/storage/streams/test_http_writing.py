"""Writing to web servers: all at once, when all is there."""

import random

import pytest

from mpwds.errors import StreamError
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.http import open_http
from tests.forks import raised_in_fork

CONTENT = random.Random(0).randbytes(300_000)


def test_writing_sends_all_at_close(web):
    with gopen(web.url("/new.tar"), "wb") as stream:
        stream.write(CONTENT[:100])
        stream.write(memoryview(CONTENT)[100:])
        assert web.requests == []
    assert web.files["/new.tar"] == CONTENT


def test_writing_is_tried_again(web, quick):
    web.plan = [{"status": 503, "unread": True}, {"status": 500, "unread": True}]
    with open_http(web.url("/new.tar"), "wb", retries=quick) as stream:
        stream.write(CONTENT)
    assert web.files["/new.tar"] == CONTENT


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_writing_follows_redirects_with_the_body(web, make_web, status):
    other = make_web()
    web.plan = [{"status": status, "headers": {"Location": other.url("/there.tar")}}]
    with open_http(web.url("/new.tar"), "wb") as stream:
        stream.write(CONTENT * 30)
    assert other.files["/there.tar"] == CONTENT * 30


@pytest.mark.parametrize("page", [{"/sign-in": b"welcome"}, {}])
def test_writing_that_is_answered_by_another_page_is_an_error(web, page):
    web.files |= page
    web.plan = [{"status": 303, "headers": {"Location": "/sign-in?token=secret"}}]
    stream = open_http(web.url("/new.tar"), "wb")
    stream.write(b"data")
    with pytest.raises(StreamError, match=r"303 See Other.*/sign-in\?token=\*\*\* was read") as error:
        stream.close()
    assert not isinstance(error.value, FileNotFoundError)


def test_writing_that_is_refused_is_an_error_from_close(web):
    web.plan = [{"status": 405, "unread": True}]
    stream = open_http(web.url("/new.tar"), "wb")
    stream.write(b"data")
    with pytest.raises(StreamError, match="405 Method Not Allowed: does the server take PUT requests"):
        stream.close()
    assert stream.closed


def test_what_a_failed_block_wrote_is_not_sent(web):
    with pytest.raises(KeyError), open_http(web.url("/new.tar"), "wb") as stream:
        stream.write(b"half")
        raise KeyError
    assert web.requests == []


def test_what_was_never_closed_is_not_sent(web):
    stream = open_http(web.url("/new.tar"), "wb")
    stream.write(b"half")
    with pytest.warns(ResourceWarning, match="never closed"):
        del stream
    assert web.requests == []


def test_a_fork_sends_nothing(web):
    stream = open_http(web.url("/new.tar"), "wb")
    stream.write(b"half")
    assert (raised_in_fork(stream.close), web.requests) == ("", [])
    stream.close()
    assert web.files["/new.tar"] == b"half"
