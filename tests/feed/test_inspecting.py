"""An Inspector asks servers how they are."""

import pytest

from mpwds.errors import ServerLost
from mpwds.feed.inspecting import Inspector
from tests.feed.serving import free_port, numbers, served

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_servers_that_do_not_answer_are_silent_and_the_others_are_told_of():
    away = f"tcp://127.0.0.1:{free_port()}"
    with served(numbers()) as server, Inspector([away, server.url], timeout=3) as inspector:
        assert [status["url"] for status in inspector.status()] == [server.url]
        assert inspector.silent == [away]
        assert [status["capacity"] for status in inspector.status()] == [2]


def test_it_is_an_error_if_none_answers():
    away = f"tcp://127.0.0.1:{free_port()}"
    with (
        Inspector([away], timeout=0.2) as inspector,
        pytest.raises(ServerLost, match=f"no answer from {away}"),
    ):
        inspector.status()
