"""What a server answers: to whom it gives workers, why others wait, and what its status says."""

import threading

import pytest

import mpwds
from mpwds.errors import MpwdsError
from mpwds.feed import wire
from mpwds.feed.server import worker_relay
from tests.feed.clients import Client
from tests.feed.serving import large, numbers, served
from tests.loader.faults.processes import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")

GRANTED = {
    "all": ({}, [], {}, 4),
    "all that are free": ({}, [{"workers": 1}], {}, 3),
    "its share as a rank": ({}, [{"world_size": 2}], {"world_size": 2, "rank": 1}, 2),
    "the server's number": ({"workers_per_client": 1}, [{}], {}, 1),
    "the number that it asks for": ({"workers_per_client": 1}, [], {"workers": 3}, 3),
    "those of its group": ({"max_clients": 1}, [{"workers": 3, "group": "a"}], {"group": "a"}, 3),
    "others than another group's": ({}, [{"workers": 3, "group": "a"}], {"group": "b"}, 1),
}


@pytest.mark.parametrize("name", GRANTED)
def test_a_client_gets(name):
    options, earlier, hello, granted = GRANTED[name]
    with served(numbers(), workers=4, **options) as server:
        with Client(server.url) as first, Client(server.url) as second:
            for each in earlier:
                first.welcomed(**each)
            assert second.welcomed(**hello)["workers"] == granted


TURNED_AWAY = {
    "the client's number": ({"workers": 3}, wire.REFUSED, "has 2 workers, but 3 are needed (workers=)"),
    "ranks": ({"world_size": 3}, wire.REFUSED, "it has 2 workers, but 3 are needed (one for each rank)"),
    "ranks that can wait": (
        {"rank": 2, "world_size": 3, "patient": True},
        wire.WAIT,
        "it has 2 workers, but 3 are needed (one for each rank): start it with more",
    ),
    "a version": ({"versions": [9]}, wire.REFUSED, "speaks version 2 of the feed, this trainer [9]: use the"),
    "a dataset": ({"fingerprint": "x"}, wire.REFUSED, "has another dataset, range (96) → shuffle(16) → map("),
    "too few are free": ({"workers": 2}, wire.WAIT, "it has 1 of 2 workers free"),
    "too many clients and too few workers": ({"workers": 2}, wire.WAIT, "it has 1 of 2 workers free"),
    "too many clients": ({"workers": 1}, wire.WAIT, "it serves 1 client, its most (--max-clients)"),
}


@pytest.mark.parametrize("name", TURNED_AWAY)
def test_a_client_that_is_turned_away_hears_why(name):
    hello, kind, why = TURNED_AWAY[name]
    with served(numbers(), max_clients=1 if "many" in name else None) as server:
        with Client(server.url) as first, Client(server.url) as second:
            assert first.welcomed(workers=1)["fingerprint"] == server.status()["fingerprint"]
            second.say(wire.HELLO, **hello)
            assert why in second.hear(kind)["why"]
            assert [each["workers"] for each in server.status()["clients"]] == [1]


def test_a_status_tells_what_each_client_and_each_worker_does():
    with served(large()) as server, Client(server.url) as one, Client(server.url) as two:
        one.welcomed(workers=1, name="one:1", rank=1, world_size=2)
        two.welcomed(workers=1, name="two:2", group="g")
        start(two, epoch=3, window=1 << 40)
        end(two)
        two.say(wire.ACK, nbytes=1 << 20)  # and its window is one of a megabyte
        one.say(wire.START, epoch=5, window=0)
        one.hear("data")
        told = one.status()
        first, second = told["clients"]
        assert (first["client"], first["rank"], first["world_size"], first["workers"]) == ("one:1", 1, 2, 1)
        assert (second["client"], second["group"], second["batches"]) == ("two:2", "g", 24)
        assert second["address"] == "127.0.0.1"
        assert 0 <= second["silent_s"] <= second["connected_s"] <= told["uptime_s"]
        states = [(each["worker"], each["client"], each["epoch"], each["state"]) for each in told["workers"]]
        assert states == [(0, "two:2", 3, "idle"), (1, "one:1", 5, "running")]
        assert [each["window_bytes"] for each in told["workers"]] == [1 << 20, 0]
        assert second["nbytes"] > told["workers"][0]["unacknowledged_bytes"] // 2 > 0
        one.say(wire.STOP, attempt=7)  # of another part
        assert one.status()["workers"][1]["state"] == "running"
        one.say(wire.STOP)
        one.status()
        two.say(wire.BYE)
        left = two.status()
        assert [each["state"] for each in left["workers"]] == ["free", "idle"]
        assert [each["client"] for each in left["clients"]] == ["one:1"]
        assert left["workers"][0]["counters"]["batches"] == 24  # also of those who left


def start(client, **fields):
    client.say(wire.START, place=[0, 1, 0, 1, None], **fields)


def end(client):
    while b"\xa3end" not in client.hear("data"):
        pass


def never_starts(one, two):
    start(one)


def reads_nothing(one, two):
    start(one, window=1 << 40)
    start(two, window=0)


def does_not_go_on(one, two):
    for each in (one, two):
        start(each, window=1 << 40)
    end(two)
    end(one)
    start(one, epoch=1, attempt=2, window=1 << 40)


@pytest.mark.parametrize("fault", [never_starts, reads_nothing, does_not_go_on])
def test_a_member_of_a_group_falls_out_if_it(fault):
    with served(large(), workers=1) as server, Client(server.url) as one, Client(server.url) as two:
        for name, each in (("one", one), ("two", two)):
            each.welcomed(group="g", members=2, max_lag=0.2, name=name)
        fault(one, two)
        assert "two held up its group 'g' for more than 0.2 s (max_lag)" in two.hear(wire.REFUSED)["why"]
        one.say(wire.ACK, nbytes=0, window=1 << 40)
        end(one)
        assert [each["client"] for each in one.status()["clients"]] == ["one"]


def test_a_member_of_a_group_that_lost_the_end_gets_it_again_while_others_have_it():
    with served(large(), workers=1) as server, Client(server.url) as one, Client(server.url) as two:
        for each in (one, two):
            each.welcomed(group="g", members=2, max_lag=60)
            start(each, window=1 << 40)
        end(one), end(two)
        start(one, attempt=2, window=1 << 40)
        end(one)


def test_a_member_of_a_group_that_is_behind_does_not_wait_for_one_that_has_a_later_epoch():
    with served(large(), workers=1) as server, Client(server.url) as ahead, Client(server.url) as behind:
        for epoch, each in ((1, ahead), (0, behind)):
            each.welcomed(group="g")
            start(each, epoch=epoch, window=1 << 40)
            end(each)


def test_a_member_of_a_group_waits_for_none_that_has_its_part_elsewhere():
    with served(large(), workers=1) as server, Client(server.url) as one, Client(server.url) as two:
        for each in (one, two):
            each.welcomed(group="g", members=2)
        start(one, window=1 << 40)
        two.say(wire.PING, epoch=0)  # of which it wants nothing here
        end(one)


def test_a_member_of_a_group_that_comes_late_gets_what_others_have_although_they_have_no_room_for_more():
    with served(large(), workers=1) as server, Client(server.url) as one, Client(server.url) as two:
        for each, window in ((one, 0), (two, 1 << 40)):
            each.welcomed(group="g")
            start(each, window=window)
            each.hear("data")
        one.say(wire.ACK, nbytes=0, window=1 << 40)
        end(one), end(two)


def test_a_client_that_is_silent_is_gone_and_is_told_so_when_it_is_back(caplog):
    with served(numbers(), client_timeout=2.0) as server, Client(server.url) as client:
        client.welcomed(name="host:7")
        start(client)
        end(client)
        wait_until(lambda: states(server) == ["free"], "the server to miss it")
        assert server.status()["clients"] == []
        client.say(wire.PING)
        assert client.hear(wire.PONG)["known"] is False
    assert "host:7 (127.0.0.1) is silent: its workers are free" in caplog.text


@pytest.mark.filterwarnings("ignore:.* cannot run")
def test_a_worker_that_can_never_start_is_told_once_and_its_client_is_let_go(monkeypatch, caplog):
    def fail(*arguments):
        raise MpwdsError("no such method")

    monkeypatch.setattr(worker_relay, "_ServedWorker", fail)
    with served(numbers(), workers=1) as server, Client(server.url) as client:
        client.welcomed()
        start(client)
        assert client.hear(wire.REFUSED)["why"] == "worker 0 cannot run: no such method"
        assert client.status()["clients"] == []
    assert caplog.messages.count("worker 0 cannot run: no such method") == 1


def test_a_count_that_fails_says_why(monkeypatch):
    def fail(*arguments):
        raise OSError("its index is away")

    monkeypatch.setattr("mpwds.feed.definition.counts", fail)
    with served(numbers()) as server, mpwds.RemoteLoader(server.url) as loader:
        with pytest.raises(TypeError, match=r"counting the elements failed \(OSError: its index is away\)"):
            len(loader)


def test_the_ranks_of_a_job_have_its_workers_counted_once(monkeypatch):
    counted = []

    def counts(dataset, here, exact):
        counted.append(here)
        return [rank for rank in range(here.world_size) for _ in range(here.workers)]

    monkeypatch.setattr("mpwds.feed.definition.counts", counts)
    monkeypatch.setenv("WORLD_SIZE", "3")
    with served(numbers(), workers=2) as server:
        for rank in range(3):
            monkeypatch.setenv("RANK", str(rank))
            with mpwds.RemoteLoader(server.url, workers=2) as loader:
                assert len(loader) == 2 * rank
    assert len(counted) == 1


def states(server):
    return [each["state"] for each in server.status()["workers"]]


def test_an_epoch_that_is_left_early_stops_the_workers():
    dataset = mpwds.DataPipeline(range(10**9)).batched(4)
    with served(dataset) as server, mpwds.RemoteLoader(server.url, output="numpy") as loader:
        for _ in range(2):
            next(batches := iter(loader))
            wait_until(lambda: states(server) == ["running"] * 2, "its workers to run")
            del batches
            wait_until(lambda: states(server) == ["idle"] * 2, "its workers to stop")


def test_it_may_be_closed_while_another_thread_serves():
    with mpwds.Server(numbers(), "tcp://127.0.0.1:0", workers=2) as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        with mpwds.RemoteLoader(server.url, output="numpy") as loader:
            next(iter(loader))
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"workers": 0}, "Server: workers must be at least 1, got 0"),
        ({"prefetch": 0}, "Server: prefetch must be at least 1, got 0"),
        ({"prefetch": 255}, "Server: prefetch must be at most 254, got 255"),
        ({"start_method": "thread"}, "Server: start_method must be one of"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, why):
    with pytest.raises(ValueError, match=why):
        mpwds.Server(numbers(), "tcp://127.0.0.1:0", **options)
