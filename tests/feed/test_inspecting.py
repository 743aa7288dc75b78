"""An Inspector asks servers how they are."""

import pytest

from mpwds.errors import ServerLost
from mpwds.feed.inspecting import Inspector
from tests.feed.serving import free_port, numbers, served

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_servers_that_do_not_answer_are_silent_and_the_others_are_told_of():
    away = f"tcp://127.0.0.1:{free_port()}"
    with served(numbers()) as server:
        for patience_s in (0.5, 2, 8, 32):  # the server may be slow
            with Inspector([away, server.url], timeout=patience_s) as inspector:
                try:
                    found = inspector.status()
                except ServerLost:
                    continue
                assert [status["url"] for status in found] == [server.url]
                assert inspector.silent == [away]
                assert [status["capacity"] for status in inspector.status()] == [2]
                return
    raise AssertionError("the server did not answer")


@pytest.mark.parametrize("ask", [Inspector.status, Inspector.peek])
@pytest.mark.parametrize(("timeout", "own"), [(0.2, ()), (5, (0.2,))])
def test_it_is_an_error_if_none_answers_in_time(ask, timeout, own):
    away = f"tcp://127.0.0.1:{free_port()}"
    with (
        Inspector([away], timeout=timeout) as inspector,
        pytest.raises(ServerLost, match=f"no answer from {away} within 0.2 s"),
    ):
        ask(inspector, *own)
