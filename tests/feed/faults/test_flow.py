"""A trainer that stalls costs no memory, on either side, whatever the sizes of batches."""

import itertools

import numpy as np
import psutil
import pytest

import mpwds
from tests.feed.faults.checking import rows, status, undisturbed, wait_for_status, warned
from tests.feed.serving import ServerProcess, bits, delivered
from tests.loader.faults.processes import wait_until

MB = 1 << 20


def memory_of(pids):
    """Bytes that processes have for themselves, shared memory included once for all that map it."""
    return sum(psutil.Process(pid).memory_full_info().pss for pid in pids)


def settled(measure):
    """A figure, when it has stopped to grow."""
    figures = [measure()]

    def is_still():
        figures.append(measure())
        last = figures[-5:]
        return len(figures) > 5 and max(last) - min(last) <= 0.01 * max(last)

    wait_until(is_still, "memory to stop growing")
    return figures[-1]


class Endless:
    """Batches without end, of so many bytes each."""

    def __init__(self, nbytes):
        self.nbytes = nbytes

    def __iter__(self):
        number = 0
        while True:
            yield np.full(self.nbytes // 8, number)
            number += 1


@pytest.mark.slow
@pytest.mark.parametrize("nbytes", [64, 20_000, 4 * MB])
def test_a_stalled_trainer_costs_no_memory(nbytes, memory):
    with ServerProcess(Endless(nbytes), workers=1) as server:
        with mpwds.RemoteLoader(server.url, output="numpy", **memory) as loader:
            batches = iter(loader)
            for _ in range(20):
                next(batches)

            def theirs():
                children = psutil.Process(server.pid).children(recursive=True)
                return memory_of([server.pid, *(child.pid for child in children)])

            def ours():
                return psutil.Process().memory_info().rss

            def outstanding():
                return status(server)["workers"][0]["unacknowledged_bytes"]

            before = settled(theirs), settled(ours)
            wait_until(lambda: settled(outstanding) <= 2 * MB + 2 * nbytes, "what is under way to be bounded")
            for _ in range(20):
                next(batches)
            after = settled(theirs), settled(ours)
            # A block of shared memory may be used for the first time.
            assert after[0] - before[0] < 16 * MB + 4 * nbytes
            assert after[1] - before[1] < 16 * MB + 4 * nbytes
            del batches


def sizes_in_turn(number):
    return np.full((1 if number % 7 else 400_000) + 100 * number, number, np.float32)


@pytest.mark.slow
def test_batches_of_very_different_sizes_do_not_wait_for_each_other(memory):
    dataset = mpwds.DataPipeline(range(140)).map(sizes_in_turn)
    told = []
    with ServerProcess(dataset, workers=2) as server:
        with mpwds.RemoteLoader(server.url, output="numpy", prefetch=4, **memory) as loader:

            def look(_):
                told.extend(worker["unacknowledged_bytes"] for worker in status(server)["workers"])

            assert delivered(loader, look) == undisturbed(2, dataset)[0]
    assert max(told) < 16 * MB


@pytest.mark.parametrize("nbytes", [2000, 200_000])
def test_epochs_that_are_left_early_pile_up_nothing(nbytes):
    """The workers whose turn does not come have sent a window of batches each time."""
    with ServerProcess(Endless(nbytes), workers=3, client_timeout=120.0) as server, warned() as texts:
        options = {"output": "numpy", "shared_memory": False, "heartbeat_timeout": 120}
        with mpwds.RemoteLoader(server.url, **options) as loader:
            for _ in range(12):
                next(batches := iter(loader))
                wait_for_status(server, lambda figures: all(map(is_full, figures["workers"])), "windows")
                del batches
            assert held_by(loader) < 2 * 3 * MB
            assert [batch[0] for batch in itertools.islice(loader, 300)] == [n // 3 for n in range(300)]
    assert texts == []


def held_by(loader):
    """Bytes of batches that have arrived and that the program has not got."""
    queues = loader._remote.servers.connections[0].queues.values()
    arrivals = [arrival for queue in queues for arrival in tuple(queue.messages)]
    return sum(memoryview(part).nbytes for each in arrivals for part in (each.frames, each.arrays or b""))


def is_full(worker):
    """Whether the batches that a worker's trainer has not used fill half of its window."""
    return worker["unacknowledged_bytes"] > worker["window_bytes"] // 2


def test_a_server_at_the_edge_of_its_window_is_told_before_it_waits():
    """Each side must see by itself that there is room: a ping, which also tells, comes once a second."""
    dataset = mpwds.DataPipeline(range(60)).map(lambda n: np.full(80_000 if n % 2 else 10, n))
    with ServerProcess(dataset, workers=1) as server:
        options = {"shared_memory": False, "prefetch": 2, "output": "numpy"}
        with mpwds.RemoteLoader(server.url, **options) as loader:
            pings = loader._remote.servers.connections[0].ping
            got = [bits(batch) for batch in loader]
            assert got == undisturbed(1, dataset)[0]
            assert (
                loader._remote.servers.connections[0].ping - pings < 15
            )  # 60 batches that wait for it: 60 s


@pytest.mark.slow
def test_many_epochs_leave_memory_flat(memory):
    with ServerProcess(rows(batches=4, size=2000), workers=2) as server:
        with mpwds.RemoteLoader(server.url, output="numpy", **memory) as loader:
            for _ in range(50):
                delivered(loader)
            ours = psutil.Process()
            before = ours.memory_info().rss, ours.num_fds()
            for _ in range(100):
                assert len(delivered(loader)) == 4
            assert ours.memory_info().rss - before[0] < 8 * MB
            assert ours.num_fds() == before[1]
