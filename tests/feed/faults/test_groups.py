"""Trainers of a group: each gets every batch, which is made once, whatever happens to the others."""

import contextlib
import itertools
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import mpwds
from tests.feed.faults.checking import rows, status, undisturbed, wait_for_status, warned
from tests.feed.faults.trainers import Trainer
from tests.feed.serving import ServerProcess, bits, delivered
from tests.loader.faults.processes import wait_until


def members(url, count, epochs=1, happen=None, **options):
    """What each member of a group, in a thread of its own, gets in each epoch."""
    options = {"group": "sweep", "members": count, "output": "numpy", **options}

    def run(number):
        with mpwds.RemoteLoader(url, **options) as loader:
            act = None if happen is None else lambda batch: happen(number, batch)
            return [delivered(loader, act) for _ in range(epochs)]

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def batches_made(server):
    return sum(worker["counters"]["batches"] for worker in status(server)["workers"])


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_member_gets_every_batch_and_each_is_made_once(count):
    with ServerProcess(rows(), workers=2, client_timeout=120.0) as server:
        made = []

        def look(number, batch):
            if number == 0 and batch == 60:
                made.append(batches_made(server))

        got = members(server.url, count, epochs=2, happen=look, heartbeat_timeout=120)
        assert got == [undisturbed(2, epochs=2)] * count
        assert made[0] == 60
        assert made[1] <= 120


def test_the_slowest_sets_the_pace():
    ahead = []
    reached = [0, 0]

    def pace(number, batch):
        reached[number] = batch
        if number == 0:
            time.sleep(0.01)
        else:
            ahead.append(reached[1] - reached[0])

    with ServerProcess(rows(), workers=2) as server:
        assert members(server.url, 2, happen=pace) == [undisturbed(2)] * 2
    # Two workers, each with a window of a megabyte for each of the two, and blocks that wait to be sent.
    assert max(ahead) < 30


def test_a_group_counts_as_one_client():
    with ServerProcess(rows(), workers=2, max_clients=2) as server, contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(mpwds.RemoteLoader(server.url, workers=1, group="sweep", server_timeout=600))
        with mpwds.RemoteLoader(server.url, workers=1, output="numpy", server_timeout=600) as alone:
            assert delivered(alone) == undisturbed(1)[0]


@pytest.mark.slow
def test_a_member_that_joins_late_loses_nothing():
    with ServerProcess(rows(pause_s=0.001), workers=2) as server:
        options = {"group": "sweep", "output": "numpy"}
        with mpwds.RemoteLoader(server.url, **options) as first:
            batches = iter(first)
            got = [bits(next(batches)) for _ in range(20)]
            with Trainer(server.url, group="sweep") as late:
                wait_for_status(server, lambda figures: len(figures["clients"]) == 2, "it to join")
                rest = []
                reader = threading.Thread(target=lambda: rest.extend(bits(batch) for batch in batches))
                reader.start()
                assert late.rest() == undisturbed(2)[0]
                reader.join()
        assert got + rest == undisturbed(2)[0]


def test_a_member_that_joins_late_and_leaves_disturbs_nobody():
    """Small batches: the one that stays has some of those that travel together when the other leaves."""
    dataset = mpwds.DataPipeline(range(40_000)).batched(4)
    with ServerProcess(dataset, workers=1) as server:
        options = {"group": "sweep", "output": "numpy"}
        with mpwds.RemoteLoader(server.url, **options) as stays:
            got, batches = [], iter(stays)

            def read(count):
                got.extend(batch.tolist() for batch in itertools.islice(batches, count))

            for count in (300, 500, 700):
                read(count)
                with mpwds.RemoteLoader(server.url, **options) as leaves:
                    reader = threading.Thread(target=read, args=(2000,))
                    reader.start()
                    next(iter(leaves))
                reader.join()
            read(None)
    assert got == [list(range(first, first + 4)) for first in range(0, 40_000, 4)]


def test_an_error_on_the_way_of_a_late_member_reaches_those_that_are_ahead(tmp_path):
    def make(number):
        if number == 40 and (tmp_path / "broken").exists():
            raise LookupError("broken by now")
        return number

    dataset = mpwds.DataPipeline(range(40_000)).map(make).batched(4)
    with ServerProcess(dataset, workers=1) as server:
        options = {"group": "sweep", "output": "numpy", "timeout": 600}
        with mpwds.RemoteLoader(server.url, **options) as ahead:
            list(itertools.islice(batches := iter(ahead), 300))
            (tmp_path / "broken").touch()
            with mpwds.RemoteLoader(server.url, **options) as late:
                with ThreadPoolExecutor() as pool:
                    for each in [pool.submit(list, batches), pool.submit(list, late)]:
                        assert isinstance(each.exception(), LookupError)


def test_members_that_are_left_begin_the_next_epoch_without_those_that_left():
    with ServerProcess(rows(), workers=2) as server, ThreadPoolExecutor() as pool:
        options = {"group": "sweep", "members": 2, "output": "numpy"}
        with mpwds.RemoteLoader(server.url, **options) as stays:
            with mpwds.RemoteLoader(server.url, **options) as leaves:
                both = list(pool.map(delivered, [stays, leaves]))
            assert [*both, delivered(stays)] == [undisturbed(2)[0], *undisturbed(2, epochs=2)]


@pytest.mark.slow
def test_a_member_that_is_killed_does_not_hold_up_the_others_for_ever():
    with ServerProcess(rows(), workers=2, client_timeout=3.0) as server:
        options = {"group": "sweep", "members": 2}
        with Trainer(server.url, epochs=2, **options) as first, Trainer(server.url, **options) as second:
            second.batch()
            second.signal(signal.SIGKILL)
            whole, following = undisturbed(2, epochs=2)
            assert first.rest() == whole + following


def test_a_member_that_restarts_from_its_state_loses_nothing():
    with ServerProcess(rows(), workers=2) as server:
        options = {"group": "sweep", "output": "numpy"}
        with mpwds.RemoteLoader(server.url, **options) as stays:
            with mpwds.RemoteLoader(server.url, **options) as leaves:
                both = threading.Thread(target=lambda: next(iter(stays)))
                batches = iter(leaves)
                both.start()
                begun = [bits(next(batches)) for _ in range(5)]
                both.join()
                state = leaves.state_dict()
            with mpwds.RemoteLoader(server.url, **options) as again:
                again.load_state_dict(state)
                stays.set_epoch(0)
                whole = []
                other = threading.Thread(target=lambda: whole.append(delivered(stays)))
                other.start()
                assert begun + delivered(again) == undisturbed(2)[0]
                other.join()
    assert whole == undisturbed(2)


@pytest.mark.slow
def test_members_that_pause_together_hold_up_nobody():
    with ServerProcess(rows(), workers=2) as server:
        together = threading.Barrier(2)

        def pause(number, batch):
            if batch == 10:
                together.wait()
                time.sleep(6)

        results = members(server.url, 2, happen=pause, max_lag=4.0)
    assert results == [undisturbed(2)] * 2


def test_members_with_different_places_are_refused():
    with ServerProcess(rows(), workers=2) as server:
        options = {"group": "sweep", "output": "numpy"}
        with mpwds.RemoteLoader(server.url, seed=1, **options) as one:
            next(batches := iter(one))
            with mpwds.RemoteLoader(server.url, seed=2, **options) as other:
                with pytest.raises(mpwds.MpwdsError, match="must have the same servers, workers, ranks and"):
                    next(iter(other))
            del batches


def once(action):
    """Calls a function when the first member has twenty batches."""
    lock, done = threading.Lock(), []

    def happen(number, batch):
        with lock:
            if batch >= 20 and not done:
                done.append(batch)
                action()

    return happen


@pytest.mark.slow
def test_a_server_that_is_started_again_goes_on_with_its_group():
    with ServerProcess(rows(), workers=2) as server, warned():
        assert members(server.url, 2, happen=once(server.start_again)) == [undisturbed(2)] * 2


@pytest.mark.slow
def test_a_member_goes_on_at_a_server_that_is_started_again_although_others_have_left():
    options = {"group": "sweep", "members": 2, "output": "numpy", "timeout": 600}
    with ServerProcess(rows(), workers=2) as server, mpwds.RemoteLoader(server.url, **options) as stays:
        with mpwds.RemoteLoader(server.url, **options) as leaves:
            batches, others = iter(stays), iter(leaves)
            got = [bits(next(batches))]
            next(others)
            server.kill()
        with warned():
            server.start_again()
            got += map(bits, batches)
    assert got == undisturbed(2)[0]


@pytest.mark.slow
def test_the_part_of_a_lost_server_moves_for_all_members():
    dataset = rows()
    with ServerProcess(dataset, workers=1) as one, ServerProcess(dataset, workers=1) as other:
        options = {"happen": once(one.kill), "on_server_loss": "move"}
        with warned():
            got = members([one.url, other.url], 2, epochs=2, **options)
            assert got == [undisturbed(2, epochs=2)] * 2
        wait_until(lambda: not status(other)["clients"], "all to leave")


@pytest.mark.slow
def test_a_member_that_joins_late_gets_the_part_that_another_has_moved_from_a_server_that_is_back():
    dataset = rows()
    with ServerProcess(dataset, workers=1) as lost, ServerProcess(dataset, workers=1) as other:
        urls, options = [lost.url, other.url], {"group": "sweep", "output": "numpy", "on_server_loss": "move"}
        with warned(), mpwds.RemoteLoader(urls, **options) as first:
            batches = iter(first)
            lost.kill()
            got = [bits(next(batches)) for _ in range(20)]
            lost.start_again()
            wait_for_status(lost, lambda figures: figures["clients"], "the first to come back")
            with mpwds.RemoteLoader(urls, **options) as late:
                reader = threading.Thread(target=lambda: got.extend(map(bits, batches)))
                reader.start()
                assert delivered(late) == undisturbed(2)[0]
                reader.join()
    assert got == undisturbed(2)[0]
