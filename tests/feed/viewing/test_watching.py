import pytest

from mpwds.feed.viewing import watching
from tests.feed.viewing.statuses import reading, status, worker


@pytest.fixture
def watched(monkeypatch):
    """Watches a server that sends one batch each second, decoded in this share of the time."""
    moments = iter(range(1, 100))

    class Inspector:
        def __init__(self, urls, folder, *, insecure): ...

        def status(self, timeout):
            seconds = next(moments)
            return [status(seconds, [worker(0, reading(seconds, batches=seconds))])]

        def close(self): ...

    monkeypatch.setattr(watching, "Inspector", Inspector)
    return watching.WatchedServers(["tcp://cpu1:7880"])


def test_rates_are_those_of_the_last_second_and_verdicts_of_the_last_ten(watched):
    found = [watched.read() for _ in range(12)]
    assert [each.seconds for each in found] == [1] * 12
    assert [each.batches_per_s for each in found] == [1] * 12
    assert found[2].verdict.startswith("not enough data yet")
    assert found[-1].verdict.startswith("stage decode('rgb8') takes 70% of worker time")
    assert found[-1].servers[0].verdict == found[-1].verdict
    assert found[-1].stages[1].elements == 64 * 10


def test_many_servers_have_a_short_name():
    urls = [f"tcp://127.0.0.1:{port}" for port in range(7880, 7884)]
    watched = watching.WatchedServers(urls)
    watched.close()
    assert watched.name == "tcp://127.0.0.1:7880 and 3 more servers"
