import concurrent.futures
import contextlib
import time

import pytest

import mpwds
from mpwds.errors import ServerLost
from mpwds.feed import status_client
from mpwds.feed.status_client import StatusClient
from tests.feed.serving import ServerProcess, free_port, numbers, served
from tests.feed.viewing.statuses import answering, reading, status, worker
from tests.loader.faults.processes import wait_until

URLS = ["tcp://cpu1:7880", "tcp://cpu2:7880"]


@pytest.fixture
def watched(monkeypatch):
    """Watches a server that sends one batch each second, decoded in this share of the time."""
    answers = ([status(s, [worker(0, reading(s, batches=s))])] for s in range(1, 100))
    monkeypatch.setattr(status_client, "StatusClient", answering(answers))
    return status_client.FeedStatus(["tcp://cpu1:7880"])


def test_figures_and_verdicts_are_those_of_the_last_ten_readings(watched):
    found = [watched.read() for _ in range(12)]
    assert [each.seconds for each in found] == [1, *range(1, 11), 10]
    assert [each.batches for each in found] == [1, *range(1, 11), 10]
    assert found[2].verdict.startswith("not enough data yet")
    assert found[-1].verdict.startswith("stage decode('rgb8') takes 70% of worker time")
    assert found[-1].servers[0].verdict == found[-1].verdict
    assert found[-1].stages[1].elements == 64 * 10


def test_a_server_that_was_silent_counts_from_its_own_oldest_reading(monkeypatch):
    answers = (
        [
            status(seconds, [worker(0, reading(seconds, batches=seconds))], server=url, url=url)
            for url, seconds in zip(URLS, each, strict=False)
        ]
        for each in ([100], [100], [110, 100], [120, 110])
    )
    monkeypatch.setattr(status_client, "StatusClient", answering(answers))
    watched = status_client.FeedStatus(URLS)
    found = [watched.read() for _ in range(4)]
    assert [server.batches for server in found[-1].servers] == [20, 10]


def read_until(watched, lost):
    """A reading in which these servers are lost and no others: a slow one may not answer in time at first."""
    found = None

    def are_lost():
        nonlocal found
        with contextlib.suppress(ServerLost):
            found = watched.read()
        return found is not None and list(found.lost) == lost

    wait_until(are_lost, f"{lost} to be lost")
    return found


def test_a_server_that_is_killed_stays_as_lost_until_it_is_back():
    with ServerProcess(numbers(), workers=1) as first, ServerProcess(numbers(), workers=1) as second:
        watched = status_client.FeedStatus([first.url, second.url])
        with contextlib.closing(watched):
            assert read_until(watched, []).lost == {}
            second.kill()
            time.sleep(0.3)
            found = [read_until(watched, [second.url]) for _ in range(2)]
            assert 0.3 < found[0].lost[second.url] < found[1].lost[second.url]
            assert {each.url for each in found[1].servers} == {first.url, second.url}
            first.kill()
            assert set(watched.read().lost) == {first.url, second.url}
            for server in (first, second):
                server.start_again()
            assert len(read_until(watched, []).servers) == 2


def test_a_server_that_never_answered_is_an_error_alone_and_lost_beside_others():
    with ServerProcess(numbers(), workers=1) as server:
        watched = status_client.FeedStatus([server.url, "tcp://127.0.0.1:9"])
        watched._client._timeout = 1.0
        with contextlib.closing(watched):
            read_until(watched, ["tcp://127.0.0.1:9"])
    alone = status_client.FeedStatus(["tcp://127.0.0.1:9"])
    alone._client._timeout = 0.3
    with contextlib.closing(alone), pytest.raises(ServerLost, match="no answer from tcp://127.0.0.1:9"):
        alone.read()


@pytest.mark.usefixtures("nothing_left")
def test_servers_beside_one_that_answers_are_silent_and_not_waited_for_until_the_timeout():
    away = f"tcp://127.0.0.1:{free_port()}"
    with served(numbers()) as server, StatusClient([away, server.url], timeout=3600) as client:
        for _ in range(2):
            assert [(each["url"], each["capacity"]) for each in client.status()] == [(server.url, 2)]
            assert client.silent == [away]


def test_a_server_that_has_answered_is_waited_for_more_briefly(watched):
    for _ in range(3):
        watched.read()
    assert watched._client.timeouts == [None, 3, 3]


def test_many_servers_have_a_short_name():
    urls = [f"tcp://127.0.0.1:{port}" for port in range(7880, 7884)]
    watched = status_client.FeedStatus(urls)
    watched.close()
    assert watched.name == "tcp://127.0.0.1:7880 and 3 more servers"


@pytest.mark.usefixtures("nothing_left")
def test_a_batch_that_came_too_late_for_one_question_answers_no_later_one():
    with served(numbers()) as server, StatusClient([server.url]) as client:
        with pytest.raises(ServerLost):
            client.peek(0.2)
        with mpwds.RemoteLoader(server.url, output="numpy") as loader:
            list(loader)
        with pytest.raises(ServerLost):  # nobody reads any more
            client.peek(0.5)


@pytest.mark.usefixtures("nothing_left")
def test_questions_that_were_given_up_leave_room_for_others():
    with served(numbers()) as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(StatusClient([server.url])) for _ in range(6)]
        for client in [*clients, *clients]:
            with pytest.raises(ServerLost):
                client.peek(0.05)
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            peeked = thread.submit(clients[0].peek, 30)
            with mpwds.RemoteLoader(server.url, output="numpy") as loader:
                while not peeked.done():
                    list(loader)
        assert peeked.result()[0]["kind"]


@pytest.mark.parametrize("ask", [StatusClient.status, StatusClient.peek])
@pytest.mark.parametrize(("timeout", "own"), [(0.2, ()), (5, (0.2,))])
def test_it_is_an_error_if_none_answers_in_time(ask, timeout, own):
    away = f"tcp://127.0.0.1:{free_port()}"
    with (
        StatusClient([away], timeout=timeout) as client,
        pytest.raises(ServerLost, match=f"no answer from {away} within 0.2 s"),
    ):
        ask(client, *own)
