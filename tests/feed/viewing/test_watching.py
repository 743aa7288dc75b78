import pytest

from mpwds.feed.viewing import watching
from tests.feed.viewing.statuses import reading, status, worker


@pytest.fixture
def watched(monkeypatch):
    """Watches a server that sends one batch each second, decoded in this share of the time."""
    moments = iter(range(1, 100))

    class Inspector:
        def __init__(self, urls, folder, *, insecure):
            self.timeouts = []

        def status(self, timeout):
            self.timeouts.append(timeout)
            seconds = next(moments)
            return [status(seconds, [worker(0, reading(seconds, batches=seconds))])]

        def close(self): ...

    monkeypatch.setattr(watching, "Inspector", Inspector)
    return watching.WatchedServers(["tcp://cpu1:7880"])


def test_figures_and_verdicts_are_those_of_the_last_ten_readings(watched):
    found = [watched.read() for _ in range(12)]
    assert [each.seconds for each in found] == [1, *range(1, 11), 10]
    assert [each.batches for each in found] == [1, *range(1, 11), 10]
    assert found[2].verdict.startswith("not enough data yet")
    assert found[-1].verdict.startswith("stage decode('rgb8') takes 70% of worker time")
    assert found[-1].servers[0].verdict == found[-1].verdict
    assert found[-1].stages[1].elements == 64 * 10


def test_a_server_that_was_silent_counts_from_its_own_oldest_reading(monkeypatch):
    readings = iter([[100], [100], [110, 100], [120, 110]])

    class Inspector:
        def __init__(self, urls, folder, *, insecure): ...

        def status(self, timeout):
            return [
                status(seconds, [worker(0, reading(seconds, batches=seconds))], server=f"server {number}")
                for number, seconds in enumerate(next(readings))
            ]

    monkeypatch.setattr(watching, "Inspector", Inspector)
    watched = watching.WatchedServers(["tcp://cpu1:7880", "tcp://cpu2:7880"])
    found = [watched.read() for _ in range(4)]
    assert [server.batches for server in found[-1].servers] == [20, 10]


def test_a_server_that_has_answered_is_waited_for_more_briefly(watched):
    for _ in range(3):
        watched.read()
    assert watched._inspector.timeouts == [None, 3, 3]


def test_many_servers_have_a_short_name():
    urls = [f"tcp://127.0.0.1:{port}" for port in range(7880, 7884)]
    watched = watching.WatchedServers(urls)
    watched.close()
    assert watched.name == "tcp://127.0.0.1:7880 and 3 more servers"
