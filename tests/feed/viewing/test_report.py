import json

import pytest

from mpwds.errors import MpwdsError
from mpwds.feed.report import feed_report, lost
from tests.feed.viewing.statuses import client, reading, status, worker


def between(before, now, clients_before=None, clients_now=None):
    """The figures of a server's workers between two readings, 10 seconds apart."""
    return feed_report(
        [status(90, [worker(n, counters) for n, counters in enumerate(before)], clients_before)],
        [status(100, [worker(n, counters) for n, counters in enumerate(now)], clients_now)],
    )


BUSY = [reading(90, batches=900)] * 2, [reading(100, batches=1000)] * 2


def test_rates_are_about_the_time_between_two_readings():
    found = between(*BUSY)
    assert (found.seconds, found.batches, found.batches_per_s) == (10, 200, 20)
    assert (found.samples_per_s, found.bytes_per_s) == (20 * 64, 20e6)
    assert [each.batches_per_s for each in found.workers] == [10, 10]
    assert (found.queued_bytes, found.window_bytes) == (1_000_000, 4_000_000)
    assert found.verdict == "stage decode('rgb8') takes 70% of worker time: add workers or make it faster"
    assert between([], [reading(10, batches=50)]).batches_per_s == 5  # a worker that came in between


def test_a_server_that_was_restarted_counts_from_its_start():
    before = [status(90, [worker(0, reading(90, batches=900))])]
    found = feed_report(before, [status(5, [worker(0, reading(5, batches=100))], server="b2")])
    assert (found.seconds, found.batches_per_s) == (5, 20)


def test_a_client_that_follows_another_counts_anew_and_its_worker_goes_on_counting():
    before = [status(90, [worker(0, reading(90, batches=900))], [client(batches=900)])]
    clients = [client(batches=40, began_s=5096.0, connected_s=4.0)]
    found = feed_report(before, [status(100, [worker(0, reading(97, batches=970))], clients)])
    assert (found.batches_per_s, found.clients[0].batches_per_s) == (7, 10)


def test_two_clients_of_one_process_have_their_own_rates():
    clients = [client(batches=100), client(batches=500, began_s=5010.0)]
    later = [client(batches=120), client(batches=600, began_s=5010.0)]
    found = between(*BUSY, clients, later).clients
    assert [each.batches_per_s for each in found] == [2, 10]


def test_stages_have_their_share_of_the_workers_time():
    stages = {stage.name: stage for stage in between(*BUSY).stages}
    assert stages["decode('rgb8')"].share == pytest.approx(0.7)
    assert stages["writing batches"].share == pytest.approx(0.1)
    assert stages["tarfile_to_samples()"].storage


def test_clients_have_their_own_rates_since_they_came():
    (found,) = between(*BUSY, [client(batches=500)], [client(batches=600)]).clients
    assert (found.batches_per_s, found.bytes_per_s, found.silent_s) == (10, 10e6, 0.2)
    (new,) = between(*BUSY, [], [client(batches=20, connected_s=2.0)]).clients
    assert new.batches_per_s == 10


def test_workers_that_wait_are_not():
    waiting = [[reading(90, 72, batches=900)] * 4, [reading(100, 80, batches=1000)] * 4]
    assert between(*waiting).verdict == (
        "workers wait 80% of the time: the trainers, or the network to them, are the bound; "
        "1 of 4 workers would do"
    )


SLOW, FAST = reading(10, batches=57), reading(10, 9.9, batches=5000)


def of_two_servers(slow_trainer="gpu1:77", fast_trainer="gpu1:77", **second):
    """The verdict on a worker that is slow, and on two of another server that wait for their trainer."""
    fast = [worker(number, FAST, client=fast_trainer) for number in range(2)]
    first = status(10, [worker(0, SLOW, client=slow_trainer)], [client(slow_trainer)])
    second = {"url": "tcp://cpu2:7880", "server": "b2", **second}
    return feed_report(None, [first, status(10, fast, [client(fast_trainer)], **second)])


def test_a_slow_worker_is_named_with_its_server_where_its_trainer_has_several():
    assert of_two_servers().verdict.startswith(
        "worker 0 of tcp://cpu1:7880 (pid 1000) takes 175 ms a batch, the others 0.02, which wait for "
    )


def test_workers_of_different_trainers_do_not_wait_for_each_other():
    waiting = "workers wait 66% of the time: the trainers, or the network to them, are the bound"
    assert of_two_servers(fast_trainer="gpu2:5").verdict.startswith(waiting)
    here = [worker(0, SLOW), *(worker(number, FAST, client="gpu2:5") for number in (1, 2))]
    assert feed_report(None, [status(10, here)]).verdict.startswith(waiting)


def test_stages_and_verdicts_of_different_datasets_are_kept_apart():
    found = feed_report(
        None, [status(10, [worker(0, SLOW)]), status(10, [worker(0, FAST)], url="b", fingerprint="cd")]
    )
    assert found.stages == ()
    assert found.verdict.startswith("the servers have different datasets: see what bounds each of them")
    assert [server.verdict[:23] for server in found.servers] == [
        "stage decode('rgb8') ta",
        "workers wait 99% of the",
    ]


def test_workers_of_a_group_take_turns_whichever_rank_came_first():
    assert "wait for their turn" in of_two_servers("gpu1:77, gpu2:5", "gpu2:5, gpu1:77").verdict


def test_a_slow_worker_is_not_compared_with_those_of_other_trainers():
    busy = [worker(0, SLOW), worker(1, reading(10, batches=5000), client="gpu2:5")]
    assert feed_report(None, [status(10, busy)]).verdict == (
        "stage decode('rgb8') takes 70% of worker time: add workers or make it faster"
    )


def test_nobody_to_feed_is_said():
    idle = [reading(50, batches=10)], [reading(50, batches=10)]
    assert between(*idle, [], []).verdict == "no trainer is connected"
    all_read = [worker(0, counters, unacknowledged_bytes=0) for (counters,) in idle]
    found = feed_report(*([status(second, [each])] for second, each in zip((90, 100), all_read, strict=True)))
    assert found.verdict == "the trainers that are connected read nothing"
    assert found.batches_per_s == 0


@pytest.mark.parametrize("waiting_s", [0.0, 10.0], ids=["after the epoch", "in the epoch"])
def test_trainers_that_pause_are_told_from_those_that_read_nothing(waiting_s):
    found = between([reading(50, batches=10)], [reading(50 + waiting_s, waiting_s, batches=10)])
    assert found.verdict == "the trainers that are connected have not read all that was sent to them"


def test_a_verdict_is_about_the_work_between_the_readings_also_when_they_came_between_epochs():
    between_epochs = [
        status(seconds, [worker(0, reading(seconds, batches=seconds), state="idle")]) for seconds in (90, 100)
    ]
    takes = "stage decode('rgb8') takes 70% of worker time: add workers or make it faster"
    assert feed_report(between_epochs[:1], between_epochs[1:]).verdict == takes
    assert between(*BUSY, [], []).verdict == f"{takes}; now no trainer is connected"


def test_the_waiting_share_is_the_one_that_the_verdict_names():
    """Also of workers without an epoch, and of others that no trainer had for a part of the time."""
    in_epochs = [worker(n, reading(4, batches=40, assigned_ns=s * 10**9)) for n, s in enumerate((10, 6))]
    free = worker(2, reading(0), state="free")
    found = feed_report([status(90, [])], [status(100, [*in_epochs, free])])
    assert (found.waiting_share, found.servers[0].verdict) == (0.5, found.verdict)
    assert found.verdict.startswith("workers wait 50% of the time: the trainers, or the network to them")
    assert [each.waiting_share for each in found.workers] == pytest.approx([0.6, 1 / 3, 0])


def test_workers_that_a_trainer_has_just_got_are_not_taken_for_waiting():
    found = between([], [reading(2, batches=20)] * 2)
    assert (found.waiting_share, found.verdict[:27]) == (0, "stage decode('rgb8') takes ")
    before_that = worker(0, reading(10, batches=100, assigned_ns=9_900_000_000))  # and was busy already
    assert feed_report(None, [status(10, [before_that])]).workers[0].waiting_share == 0


def with_a_lost_server(now, last=None, seconds=12.0):
    """The figures of a server, now and 10 seconds before, beside another one that does not answer."""
    before = [status(90, [worker(n, counters) for n, counters in enumerate(now[0])])]
    return feed_report(
        before,
        [
            status(100, [worker(n, counters) for n, counters in enumerate(now[1])]),
            lost("tcp://cpu2:7880", last, seconds),
        ],
    )


def test_a_lost_server_stays_with_its_workers_and_clients_and_counts_for_nothing():
    last = status(80, [worker(0, reading(80, batches=800))], url="tcp://cpu2:7880", server="b2")
    found = with_a_lost_server(BUSY, last)
    assert found.lost == {"tcp://cpu2:7880": 12.0}
    assert [each.state for each in found.workers] == ["running", "running", "lost"]
    assert (found.workers[-1].batches_per_s, found.workers[-1].queued_bytes) == (0, 0)
    assert (found.queued_bytes, found.window_bytes) == (1_000_000, 4_000_000)
    assert [each.server for each in found.clients] == ["tcp://cpu1:7880", "tcp://cpu2:7880"]
    assert (found.batches_per_s, found.seconds) == (20, 10)
    assert [(each.verdict[:13], each.uptime_s) for each in found.servers] == [
        ("stage decode(", 100),
        ("lost for 12 s", 80),
    ]
    assert found.verdict.startswith("no answer from tcp://cpu2:7880 for 12 s; stage decode('rgb8') takes 70%")


def test_workers_that_wait_are_not_said_to_wait_for_trainers_while_a_server_is_lost():
    waiting = [reading(90, 72, batches=900)] * 4, [reading(100, 80, batches=1000)] * 4
    wait = "workers wait 80% of the time: trainers may wait for the servers that do not answer"
    found = with_a_lost_server(waiting)
    assert found.verdict == f"no answer from tcp://cpu2:7880 for 12 s; {wait}"
    assert found.servers[0].verdict == wait
    idle = [reading(50, batches=10)], [reading(50, batches=10)]
    assert with_a_lost_server(idle).verdict.endswith("; the trainers that are connected may wait for it")


def test_a_slow_worker_is_not_said_to_be_started_again_if_that_was_before_the_readings():
    def restarted(*times):
        moments = (
            [
                worker(n, reading(s, s * wait, batches=s, restarts=restarts if n == 3 else 0))
                for n, wait in WAITS
            ]
            for s, restarts in zip((90, 100), times, strict=True)
        )
        before, now = (status(s, workers) for s, workers in zip((90, 100), moments, strict=True))
        return feed_report([before], [now])

    assert "started again" not in restarted(2, 2).verdict
    assert "(pid 1003, once started again)" in restarted(2, 3).verdict
    assert restarted(2, 3).workers[3].restarts == 3


WAITS = [(0, 0.7), (1, 0.7), (2, 0.7), (3, 0.0)]


def test_a_feed_of_which_nobody_answers_says_so_and_nothing_else():
    last = status(80, [worker(0, reading(80, batches=800))])
    found = feed_report([last], [lost("tcp://cpu1:7880", last, 75)])
    assert (found.verdict, found.batches_per_s) == ("no answer from tcp://cpu1:7880 for 1 min 15 s", 0)
    assert json.loads(json.dumps(found.as_dict()))["servers"][0]["lost_s"] == 75


def test_several_servers_are_one_feed():
    second = {"url": "tcp://cpu2:7880", "server": "b2", "dropped": {"replayed": 3}}
    workers = [worker(0, reading(100, batches=1000))]
    found = feed_report(None, [status(100, workers), status(100, workers, **second)])
    assert (found.batches_per_s, len(found.workers), found.dropped) == (20, 2, {"replayed": 3})
    assert [server.batches_per_s for server in found.servers] == [10, 10]
    assert [each.stats.server for each in found.workers] == ["tcp://cpu1:7880", "tcp://cpu2:7880"]
    assert {each.stats.shard for each in found.workers} == {"s3://data/train-000017.tar"}


def test_a_status_of_another_kind_is_an_error_that_names_the_server():
    for damage in (
        {"workers": [{}]},
        {"uptime_s": "long"},
        {"clients": None},
        {"workers": 3},
        {"dropped": 1},
    ):
        with pytest.raises(MpwdsError, match=r"status of tcp://cpu1:7880 cannot be read .* same version"):
            feed_report(None, [{**status(100, []), **damage}])


def test_servers_on_one_machine_share_its_processors():
    waiting = reading(100, batches=1000, queued_ns=60 * 10**9)
    here = [status(100, [worker(0, waiting)]), status(100, [worker(1, waiting)], server="b2")]
    assert "for one of 16 processors" in feed_report(None, here).verdict
    assert "for one of 32 processors" in feed_report(None, [here[0], {**here[1], "host": "cpu2"}]).verdict


def test_json_can_hold_them():
    counters = reading(100, batches=1000, skipped={"decode: DecodeError": 2})
    found = feed_report(None, [status(100, [worker(0, counters)], dropped={"replayed": 3})])
    told = json.loads(json.dumps(found.as_dict()))
    assert (told["dropped"], told["skipped"]) == ({"replayed": 3}, {"decode: DecodeError": 2})
    assert told["workers"][0]["stats"]["shard"] == "s3://data/train-000017.tar"
