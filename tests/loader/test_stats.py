"""What ``loader.stats()`` says, of loaders that run."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import zlib

import numpy as np
import numpy.random  # or the first seeded call would import it, as part of its stage
import psutil
import pytest
import torch.utils.data

from mpwds import (
    DataLoader,
    DataPipeline,
    MultiLoader,
    RoundRobin,
    WebDataset,
    WorkerDied,
    ignore_and_continue,
)
from mpwds.loader.worker.elements import sample_counter
from mpwds.pipeline.stages.map import Map
from mpwds.storage.streams.patterns import Names
from tests.loader.faults.processes import wait_until

pytestmark = pytest.mark.usefixtures("quick_workers")

WAIT_S = 0.004


def waits(number):
    time.sleep(WAIT_S)
    return number


def waits_thrice(number):
    time.sleep(3 * WAIT_S)
    return number


def is_even(number):
    return number % 2 == 0


def stats_of(dataset, workers=1):
    """Of a loader that has run an epoch."""
    with MultiLoader(dataset, workers=workers, output="numpy") as loader:
        list(loader)
        return loader.stats()


def share_of(stats, name):
    return next(stage.share for stage in stats.stages if stage.name == name)


def test_what_is_delivered_is_counted(workers):
    batches = DataPipeline(range(100)).map(lambda n: np.full(1000, n, np.float32)).batched(10)
    with MultiLoader(batches, workers=workers, output="numpy") as loader:
        for _ in loader:
            pass
        stats = loader.stats()
    assert (stats.batches, stats.samples) == (10, 100)
    assert stats.nbytes >= 100 * 4000
    assert sum(worker.batches for worker in stats.workers) == 10
    assert sum(worker.samples for worker in stats.workers) == 100
    assert sum(worker.nbytes for worker in stats.workers) == stats.nbytes


def test_without_workers_each_batch_is_counted_when_it_is_delivered():
    loader = MultiLoader(range(10), workers=0, output="numpy")
    next(iter(loader))
    assert sum(worker.batches for worker in loader.stats().workers) == 1
    list(loader)
    assert sum(worker.batches for worker in loader.stats().workers) == 10


def test_rates_leave_out_the_first_batch_and_the_time_to_it():
    stats = stats_of(DataPipeline(range(12)).map(waits).batched(4), 0)
    assert stats.batches_per_s * stats.seconds == pytest.approx(2)
    assert stats.samples_per_s * stats.seconds == pytest.approx(8)


class ReadyBatches(torch.utils.data.IterableDataset):
    def __iter__(self):
        for _ in range(3):
            yield {"image": torch.zeros(7, 2), "key": ["k"] * 7}


IMAGES = np.zeros((5, 2, 2))


@pytest.mark.parametrize(
    ("dataset", "counted"),
    [
        (DataPipeline([IMAGES]), 1),
        (DataPipeline([IMAGES]).map(abs), 1),
        (DataPipeline([IMAGES]).batched(5), 5),
        (DataPipeline([IMAGES]).batched(5).map(abs).shuffle(3), 5),
        (DataPipeline([IMAGES]).batched(5).unbatched(), 1),
        (WebDataset("x.tar"), 1),
        (DataPipeline(DataPipeline([IMAGES]).with_epoch(3)), 1),
        (DataPipeline(RoundRobin([DataPipeline([IMAGES])])), 5),
        (lambda: iter([IMAGES]), 5),
    ],
)
def test_a_pipeline_knows_how_many_samples_its_elements_are(dataset, counted):
    assert sample_counter(dataset)(IMAGES) == counted


def test_the_rows_of_ready_batches_are_samples():
    with MultiLoader(ReadyBatches(), workers=1) as loader:
        assert len(list(loader)) == 3
        assert loader.stats().samples == 21


def clocked(work):
    """A function that takes a list, does some work, and adds to the list how long that took."""

    def run(taken):
        start = time.perf_counter()
        work()
        return [*taken, time.perf_counter() - start]

    run.__name__ = work.__name__
    return run


def keeps_the_lock():
    sum(range(200_000))


def lets_go_of_it():
    zlib.compress(bytes(range(256)) * 2000)


def sleeps():
    time.sleep(0.004)


def test_the_time_of_the_stages_is_divided_as_they_take_it(workers):
    stages = keeps_the_lock, lets_go_of_it, sleeps
    dataset = DataPipeline([[]] * 60)
    for stage in stages:
        dataset = dataset.map(clocked(stage))
    with MultiLoader(dataset, workers=workers, output="numpy") as loader:
        taken = np.sum(list(loader), axis=0)
        stats = loader.stats()
    found = [share_of(stats, f"map({stage.__name__})") for stage in stages]
    assert np.divide(found, sum(found)) == pytest.approx(taken / taken.sum(), abs=0.1)
    assert sum(stage.share for stage in stats.stages) == pytest.approx(1)
    assert (sum(worker.cpu_s for worker in stats.workers) > 0.01) == bool(workers)
    assert {stage.name: stage.elements for stage in stats.stages}["map(sleeps)"] == 60


def test_what_comes_out_of_each_stage_is_counted_exactly(workers):
    """In a short epoch of small elements, few of which are timed."""
    dataset = DataPipeline(range(4_000)).select(is_even).shuffle(500, initial=500).batched(16)
    with MultiLoader(dataset, workers=workers, output="numpy") as loader:
        for _ in range(3):
            list(loader)
            elements = [stage.elements for stage in loader.stats().stages]
            assert elements == [125, 4_000, 2_000, 2_000, 125, 125]


def test_stages_that_print_alike_are_told_apart():
    dataset = DataPipeline(range(8)).map(waits).map(waits).map(waits)
    names = [stage.name for stage in stats_of(dataset).stages]
    assert names[1:-1] == ["range", "map(waits)", "map(waits) #2", "map(waits) #3"]


class Tripled:
    """A stage of a user, which does not say how it prints."""

    def stream(self, source, context=None):
        return Map(lambda number: 3 * number).stream(source)


def test_a_stage_without_a_name_goes_by_its_type():
    names = [stage.name for stage in stats_of(DataPipeline(range(8)).compose(Tripled()), 2).stages]
    assert names == ["between stages", "range", "Tripled", "writing batches"]


@pytest.mark.usefixtures("clock_of_sleeps")
def test_the_stages_of_a_mixed_dataset_are_seen():
    one = DataPipeline(range(4)).map(waits)
    other = DataPipeline(range(4)).map(waits_thrice)
    stats = stats_of(DataPipeline(RoundRobin([one, other])), 0)
    assert share_of(stats, "map(waits_thrice)") > share_of(stats, "map(waits)") > 0


@pytest.mark.usefixtures("clock_of_sleeps")
def test_a_generator_stage_is_timed_without_what_it_draws_on():
    def twice(source):
        for element in source:
            yield from (element, element)

    dataset = DataPipeline(range(20)).map(waits_thrice).compose(twice)
    stats = stats_of(dataset, 0)
    assert share_of(stats, "map(waits_thrice)") > 0.5 > share_of(stats, "compose(twice)")


@pytest.mark.usefixtures("clock_of_sleeps")
def test_a_dataset_of_someone_else_is_one_stage():
    def numbers():
        for number in range(10):
            yield waits(number)

    stats = stats_of(numbers, 0)
    assert [stage.name for stage in stats.stages] == ["the dataset", "writing batches"]
    assert share_of(stats, "the dataset") > 0.5


def test_a_trainer_that_waits_is_told_from_one_that_is_waited_for():
    def until(is_told, loader, pause_s):
        """Iterates until the times say so: for a while, something else may have taken most of the time."""
        for _ in loader:
            time.sleep(pause_s)
            if (stats := loader.stats()).batches >= 40 and is_told(stats):
                return stats
        raise AssertionError(stats)

    batches = DataPipeline(range(4_000)).map(lambda n: np.full(20_000, n, np.float32)).batched(1)
    with MultiLoader(batches, workers=1, output="numpy") as loader:
        slow_trainer = until(lambda stats: stats.elsewhere_s > stats.waited_s, loader, 0.02)

    def is_fast(stats):
        return (
            stats.waited_s > stats.elsewhere_s
            and stats.workers_waiting_share < slow_trainer.workers_waiting_share
        )

    with MultiLoader(DataPipeline(range(20_000)).map(waits), workers=1, output="numpy") as loader:
        until(is_fast, loader, 0)


def test_small_batches_that_find_no_room_count_as_waiting():
    with MultiLoader(DataPipeline(range(1_000_000)), workers=1, output="numpy") as loader:
        iterator = iter(loader)
        next(iterator)
        deadline = time.monotonic() + 600
        while loader.stats().workers[0].waiting_s < 0.2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert loader.stats().workers[0].waiting_s >= 0.2


def test_a_wait_counts_while_it_lasts():
    batches = DataPipeline(range(1000)).map(lambda n: np.zeros(100_000)).batched(1)
    with MultiLoader(batches, workers=1, output="numpy") as loader:
        iterator = iter(loader)
        next(iterator)
        deadline = time.monotonic() + 600
        waited_s, made = 0, 1
        while (waited_s < 0.05 or made) and time.monotonic() < deadline:  # it may still have a free block
            before = loader.stats()
            time.sleep(0.05)
            after = loader.stats()
            waited_s = after.workers[0].waiting_s - before.workers[0].waiting_s
            made = after.workers[0].batches - before.workers[0].batches
        assert waited_s >= 0.05
        assert made == 0
        assert after.elsewhere_s - before.elsewhere_s >= 0.05


def test_the_idle_time_between_epochs_does_not_count():
    with MultiLoader(range(10), workers=2, output="numpy") as loader:
        list(loader)
        before = loader.stats()
        time.sleep(0.05)
        assert loader.stats() == before


def test_each_epoch_is_counted_by_itself_and_all_of_them_together(workers):
    with MultiLoader(range(10), workers=workers, output="numpy") as loader:
        assert loader.stats().workers == ()
        for _ in range(3):
            list(loader)
        epoch, start = loader.stats(), loader.stats("start")
    assert (epoch.epoch, epoch.batches, start.batches) == (2, 10, 30)
    assert sum(worker.batches for worker in epoch.workers) == 10
    assert sum(worker.batches for worker in start.workers) == 30
    assert start.first_batch_s > epoch.first_batch_s
    assert (epoch.epochs, start.epochs) == (1, 3)
    assert str(epoch).startswith("epoch 2: 10 batches, 10 samples, in ")
    assert str(start).startswith("3 epochs, the last of them number 2: 30 batches, 30 samples, in ")


@pytest.mark.parametrize("loader_class", [MultiLoader, DataLoader])
def test_an_unknown_beginning_is_refused(loader_class):
    with pytest.raises(ValueError, match="since must be 'epoch' or 'start', got 'yesterday'"):
        loader_class([1]).stats("yesterday")


def test_what_ended_workers_had_counted_is_kept():
    loader = MultiLoader(range(10), workers=2, output="numpy", persistent=False)
    list(loader)
    first = loader.stats()
    list(loader)
    assert [worker.batches for worker in first.workers] == [5, 5]
    assert [worker.batches for worker in loader.stats().workers] == [5, 5]
    assert [worker.batches for worker in loader.stats("start").workers] == [10, 10]


def test_what_a_killed_worker_had_counted_is_kept():
    def numbers():
        for number in itertools.count():
            yield np.full(20_000, number)

    loader = MultiLoader(numbers, workers=1, output="numpy")
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    os.kill(loader.worker_pids[0], signal.SIGKILL)
    with pytest.raises(WorkerDied):
        list(iterator)
    stats = loader.stats()
    assert stats.batches >= 5
    assert stats.workers[0].batches >= stats.batches - 1  # it counts a batch when that is sent
    assert loader.stats().seconds == stats.seconds


SKIPPED = "map(odd_ones_only, handler=ignore_and_continue): ValueError"


def odd_ones_only(number):
    if number % 2 == 0:
        raise ValueError("even")
    return number


def test_what_error_handlers_leave_out_is_counted_by_stage_and_kind(workers):
    dataset = DataPipeline(range(20)).map(odd_ones_only, handler=ignore_and_continue)
    with MultiLoader(dataset, workers=workers, output="numpy") as loader:
        assert len(list(loader)) == 10
        stats = loader.stats()
    assert stats.skipped == {SKIPPED: 10}
    assert f"left out: 10 in {SKIPPED}" in str(stats)


def test_what_stages_behind_the_loader_leave_out_is_counted(workers):
    with MultiLoader(range(20), workers=workers, output="numpy") as loader:
        pipeline = loader.map(odd_ones_only, handler=ignore_and_continue)
        for _ in range(2):
            assert len(list(pipeline)) == 10
        stats, of_all = pipeline.stats(), pipeline.stats("start")
        assert list(loader.unbatched().slice(0)) == []
        assert pipeline.stats().skipped == {}
    assert (stats.skipped, of_all.skipped) == ({SKIPPED: 10}, {SKIPPED: 20})
    assert f"left out: 10 in {SKIPPED}" in str(stats)


def test_shards_that_cannot_be_read_are_counted(shards, tmp_path):
    (tmp_path / "train-1.tar").write_bytes(b"no tar file" * 100)
    dataset = WebDataset(shards, handler=ignore_and_continue, shardshuffle=False)
    with MultiLoader(dataset, workers=2, output="numpy") as loader:
        assert len(list(loader)) == 30
        (kind, count) = next(iter(loader.stats().skipped.items()))
    assert count == 1
    assert kind.endswith(": ShardError")


def test_private_copies_are_counted():
    batches = DataPipeline(range(80)).map(lambda n: np.zeros(20_000)).batched(2)
    with MultiLoader(batches, workers=1, prefetch=1, output="numpy") as loader:
        with pytest.warns(RuntimeWarning, match="are kept"):
            kept = list(loader)
        assert len(kept) == 40
        assert loader.stats().private_copies == 38


def test_another_thread_may_ask_while_the_loader_runs():
    with MultiLoader(range(20_000), workers=1, output="numpy") as loader:
        iterator = iter(loader)
        next(iterator)
        asked = []
        done = threading.Event()

        def ask():
            while not done.is_set():
                asked.append(loader.stats().batches)

        thread = threading.Thread(target=ask)
        thread.start()
        rest = sum(1 for _ in iterator)
        done.set()
        thread.join()
    assert rest == 19_999
    assert asked == sorted(asked)


def test_the_stats_of_a_loader_with_stages_behind_are_the_loaders():
    loader = MultiLoader(DataPipeline(range(20)).batched(5), workers=2, output="numpy")
    with loader.unbatched().batched(4) as pipeline:
        assert len(list(pipeline)) == 5
        assert pipeline.stats() == loader.stats()
        assert pipeline.stats().batches == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_made_again_for_a_resumed_epoch_are_counted(workers):
    dataset = DataPipeline(range(20)).batched(5)

    def pipeline():
        return MultiLoader(dataset, workers, start_method="fork").rebatched(4, shuffle=20)

    first = pipeline()
    batches = iter(first)
    for _ in range(3):  # by now all rows are in the pool
        next(batches)
    assert first.stats().batches == 4
    with pipeline() as resumed:
        resumed.load_state_dict(first.state_dict())
        assert len(list(resumed)) == 2
        stats = resumed.stats()
    first.close()
    assert (stats.batches, stats.samples, stats.nbytes) == (4, 20, first.stats().nbytes)


def test_a_loader_that_has_run_says_so_in_its_repr():
    loader = MultiLoader([1, 2], workers=0, output="numpy")
    assert repr(loader) == "MultiLoader(DataPipeline(list), workers=0)"
    list(loader)
    assert repr(loader).startswith("MultiLoader(DataPipeline(list), workers=0)  # ")
    assert "not enough data yet: 2 batches" in repr(loader)
    assert "not enough data yet: 2 batches" in repr(loader.unbatched())
    assert loader.stats().in_process


def test_the_bytes_of_shards_and_the_shard_are_counted(shards, tmp_path):
    dataset = WebDataset(shards, shardshuffle=False).batched(4)
    with MultiLoader(dataset, workers=1) as loader:
        for _ in range(2):
            list(loader)
            stats = loader.stats()
    (stage,) = [stage for stage in stats.stages if stage.storage]
    assert (stage.name, stage.elements) == ("WebDataset", 40)
    # Of a shard's ten samples of four blocks; of the last one, only the fields are known.
    assert 4 * 9 * 2048 < stage.nbytes <= 4 * 10 * 2048
    assert stage.bytes_per_s == stage.nbytes / stage.seconds
    assert stats.workers[0].shard == Names(shards)[-1]


def test_other_programs_processor_time_is_told_from_the_loaders_own():
    with MultiLoader(range(100), workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            process = psutil.Process(other.pid)
            wait_until(lambda: process.cpu_times().user > 0.2, "the other program to run")
            used = process.cpu_times().user
            list(iterator)
            other.kill()
        stats = loader.stats()
        for since in ("epoch", "start"):  # the epoch is over, and the only one
            assert loader.stats(since).others_cpu_s == stats.others_cpu_s
    assert stats.others_cpu_s > used / 2 > 0


def test_the_trainer_reads_counters_without_asking_the_worker():
    """A stopped worker answers nothing; what it has counted is there all the same."""
    with MultiLoader(lambda: itertools.repeat(np.zeros(50_000)), workers=1, output="numpy") as loader:
        iterator = iter(loader)
        next(iterator)
        os.kill(loader.worker_pids[0], signal.SIGSTOP)
        try:
            assert loader.stats().workers[0].active_s > 0
        finally:
            os.kill(loader.worker_pids[0], signal.SIGCONT)
