"""A pool: several loaders, one set of processes."""

import copy
import gc
import os
import pickle
import random
import signal
import sys
import time

import numpy as np
import psutil
import pytest
import torch

import mpwds
from mpwds import DataPipeline, MultiLoader

start_methods = pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])


@pytest.fixture
def pool():
    with MultiLoader.pool(workers=2) as pool:
        yield pool


def numbers(loader):
    return [int(np.asarray(element).flat[0]) for element in loader]


def arrays(count, size, first=0):
    return DataPipeline(range(first, first + count)).map(lambda number: np.full(size, number))


def endless(size):
    def generate():
        number = 0
        while True:
            yield np.full(size, number)
            number += 1

    return generate


SIZES = pytest.mark.parametrize("size", [1, 20_000])  # in the message, and in a block


@start_methods
def test_loaders_share_the_processes_of_their_pool(start_method):
    with MultiLoader.pool(workers=2, start_method=start_method) as pool:
        first, second = MultiLoader(range(5), pool=pool), MultiLoader(range(5, 9), pool=pool)
        assert (numbers(first), numbers(second)) == (list(range(5)), list(range(5, 9)))
        assert first.worker_pids == second.worker_pids == pool.worker_pids
        assert len(set(pool.worker_pids)) == first.workers == 2


@SIZES
def test_a_validation_epoch_in_the_middle_of_a_training_epoch_leaves_that_whole(pool, size):
    train = MultiLoader(arrays(60, size), pool=pool)
    val = MultiLoader(arrays(40, size, first=1000), pool=pool)
    seen = []
    for element in train:
        seen.append(int(element[0]))
        if len(seen) % 25 == 0:
            assert numbers(val) == list(range(1000, 1040))
    assert seen == list(range(60))


@SIZES
def test_a_loader_that_nobody_reads_holds_no_other_back(pool, size):
    ahead = iter(MultiLoader(endless(size), pool=pool))
    next(ahead)
    for _ in range(3):
        assert numbers(MultiLoader(arrays(300, size), pool=pool)) == list(range(300))
    assert [int(next(ahead)[0]) for _ in range(5)] == [0, 1, 1, 2, 2]


@SIZES
def test_epochs_may_be_left_early_while_others_run(pool, size):
    train, val = MultiLoader(arrays(90, size), pool=pool), MultiLoader(endless(size), pool=pool)
    seen = []
    for element in train:
        seen.append(int(element[0]))
        for count, _ in enumerate(val):
            if count == 4:
                break
    assert seen == list(range(90))


def test_many_loaders_iterate_in_turns(pool):
    iterators = [iter(MultiLoader(arrays(20, 10_000, first=100 * n), pool=pool)) for n in range(5)]
    got = [[int(element[0]) for element in group] for group in zip(*iterators, strict=True)]
    assert got == [[100 * n + i for n in range(5)] for i in range(20)]


def test_results_are_those_of_workers_of_ones_own_whatever_runs_beside(pool):
    def foreign():
        for _ in range(30):
            yield random.random(), float(np.random.rand()), np.random.rand(3000)

    def alone(dataset, seed):
        with MultiLoader(dataset, workers=2, seed=seed) as loader:
            return list(loader)

    ours = DataPipeline(range(30)).shuffle(10).map(lambda n: (n, random.random(), np.random.rand(3000)))
    loaders = [MultiLoader(dataset, pool=pool, seed=seed) for seed in (1, 2) for dataset in (foreign, ours)]
    together = list(zip(*[list(zip(*loaders, strict=False))], strict=True))
    expected = [alone(loader.dataset, loader.seed) for loader in loaders]
    for loader_number, elements in enumerate(expected):
        got = [row[0][loader_number] for row in together]
        for mine, theirs in zip(got, elements, strict=False):
            assert mine[:2] == theirs[:2]
            assert torch.equal(mine[2], theirs[2])


def test_each_dataset_finds_its_own_worker_and_arguments(pool, monkeypatch):
    class Telling(torch.utils.data.IterableDataset):
        def __init__(self, name):
            self.name = name

        def __iter__(self):
            for _ in range(20):
                info = torch.utils.data.get_worker_info()
                place = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS")]
                yield self.name, info.dataset.name, info.id, info.num_workers, info.seed, place, sys.argv[1]

    def loader(name, rank):
        monkeypatch.setattr(sys, "argv", ["program", name])
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "4")
        loader = MultiLoader(Telling(name), pool=pool, seed=rank)
        loader.warm_up()
        return loader

    seeds = set()
    for pair in zip(loader("a", 1), loader("b", 2), strict=True):
        for (name, known_as, worker, workers, seed, place, argument), rank in zip(pair, "12", strict=True):
            assert name == known_as == argument
            assert place == [rank, "4", str(worker), str(workers)]
            seeds.add(seed)
    assert len(seeds) == 4


def test_closing_or_dropping_a_loader_leaves_the_others_alone(pool):
    train = iter(MultiLoader(arrays(50, 20_000), pool=pool))
    seen = [int(next(train)[0]) for _ in range(3)]
    pids = pool.worker_pids
    with MultiLoader(endless(20_000), pool=pool) as val:
        next(iter(val))
    dropped = iter(MultiLoader(endless(1), pool=pool))
    next(dropped)
    del dropped
    gc.collect()
    assert [*seen, *(int(element[0]) for element in train)] == list(range(50))
    assert pool.worker_pids == pids


def test_closing_a_loader_whose_dataset_is_busy_for_long_waits_little_and_ends_nobody(pool, tmp_path):
    go = tmp_path / "go"

    def busy():
        yield 0
        while not go.exists():
            time.sleep(0.01)
        yield 1

    train = iter(MultiLoader(arrays(30, 20_000), pool=pool))
    seen = [int(next(train)[0])]
    val = MultiLoader(busy, pool=pool)
    next(iter(val))
    start = time.monotonic()
    val.close()
    assert time.monotonic() - start < 5
    go.touch()
    assert [*seen, *(int(element[0]) for element in train)] == list(range(30))


def test_the_dataset_is_closed_when_its_loader_is(pool, tmp_path):
    def generate():
        try:
            while True:
                yield 1
        finally:
            (tmp_path / f"closed{os.environ['WORKER']}").touch()

    with MultiLoader(generate, pool=pool) as loader:
        iterator = iter(loader)
        assert [int(next(iterator)) for _ in range(2)] == [1, 1]
    assert len(list(tmp_path.iterdir())) == 2


def test_an_error_of_one_dataset_is_raised_by_its_loader_alone(pool):
    def bad():
        yield 1
        raise KeyError("bad")

    train = iter(MultiLoader(arrays(30, 20_000), pool=pool))
    seen = [int(next(train)[0])]
    with pytest.raises(KeyError, match="bad"):
        list(MultiLoader(bad, pool=pool))
    assert [*seen, *(int(element[0]) for element in train)] == list(range(30))


class CannotArrive:
    """A dataset that can be pickled but not unpickled."""

    def __reduce__(self):
        return int, ("no number",)

    def __iter__(self):
        return iter(())


def test_a_dataset_that_cannot_be_unpickled_fails_its_loader_alone(pool):
    train = iter(MultiLoader(arrays(30, 20_000), pool=pool))
    seen = [int(next(train)[0])]
    for _ in range(2):
        with pytest.raises(ValueError, match="no number"):
            list(MultiLoader(CannotArrive(), pool=pool))
    assert [*seen, *(int(element[0]) for element in train)] == list(range(30))


def test_the_death_of_a_process_is_told_by_each_loader_and_mended_by_the_next_epoch(pool):
    train, val = (MultiLoader(endless(20_000), pool=pool) for _ in range(2))
    idle = MultiLoader(arrays(6, 20_000), pool=pool)
    assert numbers(idle) == list(range(6))
    iterators = iter(train), iter(val)
    for iterator in iterators:
        next(iterator)
    dead, alive = pool.worker_pids
    os.kill(dead, signal.SIGKILL)
    for iterator in iterators:
        with pytest.raises(mpwds.WorkerDied, match=f"pid {dead}.*SIGKILL"):
            for _ in iterator:
                pass
    assert numbers(idle) == list(range(6))
    assert int(next(iter(train))[0]) == 0
    assert pool.worker_pids[1] == alive
    assert pool.worker_pids[0] != dead


def test_a_dataset_that_exits_ends_its_process(pool):
    def leaves():
        yield 1
        sys.exit(3)

    with pytest.raises(mpwds.WorkerDied, match="status 3"):
        list(MultiLoader(leaves, pool=pool))
    assert numbers(MultiLoader(range(4), pool=pool)) == [0, 1, 2, 3]


def test_a_timeout_shows_what_the_process_does_ends_it_and_tells_the_others_why():
    def generate():
        yield np.zeros(20_000)
        time.sleep(60)
        yield np.zeros(20_000)

    with MultiLoader.pool(workers=1) as pool:
        stuck = iter(MultiLoader(generate, pool=pool))
        next(stuck)
        impatient = MultiLoader(range(3), pool=pool, timeout=2)
        with pytest.raises(mpwds.WorkerTimeout, match="in generate"):
            list(impatient)
        with pytest.raises(mpwds.WorkerDied, match="another loader of its pool"):
            next(stuck)
        impatient.warm_up()
        assert numbers(impatient) == [0, 1, 2]


def test_what_a_loader_leaves_in_the_processes_goes_with_it():
    with MultiLoader.pool(workers=1) as pool:
        beside = iter(MultiLoader(endless(20_000), pool=pool))
        next(beside)
        process = psutil.Process(pool.worker_pids[0])

        def use():
            dataset = DataPipeline([np.ones(4_000_000, np.uint8)]).map(lambda array: (array + 1)[:10_000_000])
            with MultiLoader(dataset, pool=pool) as loader:
                list(loader)

        for _ in range(4):
            use()
        memory, descriptors = process.memory_full_info().uss, process.num_fds()
        for _ in range(8):
            use()
        deadline = time.monotonic() + 10  # its last descriptor goes just behind the end of the loader
        while process.num_fds() > descriptors and time.monotonic() < deadline:
            time.sleep(0.01)
        assert process.num_fds() <= descriptors
        assert process.memory_full_info().uss < memory + 4_000_000


def test_closing_the_pool_ends_its_processes_and_iterations_and_iterating_starts_anew():
    pool = MultiLoader.pool(workers=2)
    loader = MultiLoader(endless(20_000), pool=pool)
    iterator = iter(loader)
    next(iterator)
    processes = [psutil.Process(pid) for pid in pool.worker_pids]
    pool.close()
    assert not any(process.is_running() for process in processes)
    assert pool.worker_pids == loader.worker_pids == []
    with pytest.raises(RuntimeError, match="its pool of workers was closed"):
        for _ in iterator:
            pass
    assert int(next(iter(loader))[0]) == 0
    pool.close()


def test_a_pool_that_is_dropped_with_its_loaders_is_gone():
    others = psutil.Process().children()
    for number, _ in enumerate(MultiLoader(endless(1), pool=MultiLoader.pool(workers=2))):
        processes = set(psutil.Process().children()) - set(others)
        if number == 3:
            break
    gc.collect()
    gone, _ = psutil.wait_procs(processes, timeout=10)
    assert len(gone) == len(processes) == 2


PROGRAM = """
    import itertools, os, sys, time
    import numpy as np
    import mpwds

    def endless():
        for number in itertools.count():
            yield np.full(50_000, number)

    pool = mpwds.MultiLoader.pool(workers=2)
    loaders = [mpwds.MultiLoader(endless, pool=pool, output="numpy") for _ in range(2)]
    iterators = [iter(loader) for loader in loaders]
    for iterator in iterators:
        next(iterator)
    print("running", flush=True)
"""


def test_interpreter_exit_ends_a_pool_without_a_word(script):
    status, output, errors = script(PROGRAM).finish()
    assert (status, output, errors) == (0, "running\n", "")


def test_sigkill_of_the_trainer_ends_a_pool(script):
    started = script(PROGRAM + "    time.sleep(60)\n")
    assert started.line() == "running"
    processes = started.workers()
    started.process.kill()
    gone, _ = psutil.wait_procs(processes, timeout=10)
    assert len(gone) == len(processes) == 2


def test_ctrl_c_ends_a_pool_and_shows_the_trainers_traceback_alone(script):
    started = script(PROGRAM + "    for _ in loaders[0]: pass\n")
    assert started.line() == "running"
    started.interrupt()
    status, _, errors = started.finish()
    assert (status, errors.count("Traceback")) == (-signal.SIGINT, 1)


def test_a_fork_of_the_trainer_neither_uses_nor_ends_the_pool(pool):
    loader = MultiLoader(arrays(30, 20_000), pool=pool)
    iterator = iter(loader)
    seen = [int(next(iterator)[0])]
    pid = os.fork()
    if pid == 0:
        try:
            with pytest.raises(RuntimeError, match="is a fork"):
                iter(MultiLoader(range(3), pool=pool))
            loader.close()
            pool.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert [*seen, *(int(element[0]) for element in iterator)] == list(range(30))


def test_stages_behind_the_loader_and_epochs_that_differ_work_as_without_a_pool(pool):
    pipeline = DataPipeline(range(40)).shuffle(40).batched(4)
    with MultiLoader(pipeline, workers=2) as alone:
        expected = [[batch.tolist() for batch in alone.rebatched(5)] for _ in range(2)]
    loader = MultiLoader(pipeline, pool=pool).rebatched(5)
    assert [[batch.tolist() for batch in loader] for _ in range(2)] == expected
    assert expected[0] != expected[1]


def test_without_persistence_a_loaders_part_ends_with_its_epoch_and_the_processes_stay(pool):
    loader = MultiLoader(range(4), pool=pool, persistent=False)
    for _ in range(2):
        assert numbers(loader) == [0, 1, 2, 3]
        assert loader.worker_pids == []
    assert len(pool.worker_pids) == 2


def test_a_copied_loader_uses_the_same_pool_and_a_pickled_one_is_an_error(pool):
    loader = MultiLoader(range(4), pool=pool)
    assert numbers(copy.copy(loader)) == numbers(loader) == [0, 1, 2, 3]
    assert len(pool.worker_pids) == 2
    with pytest.raises(TypeError, match="WorkerPool cannot be"):
        pickle.dumps(loader)


@pytest.mark.parametrize("options", [{"workers": 2}, {"start_method": "spawn"}])
def test_what_the_pool_determines_cannot_be_given_to_the_loader(pool, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} is the pool's to say"):
        MultiLoader([1], pool=pool, **options)


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 1.5}, {"start_method": "thread"}])
def test_a_pool_that_cannot_be_is_an_error(options):
    with pytest.raises(ValueError, match=f"WorkerPool: {next(iter(options))} must be"):
        MultiLoader.pool(**options)


def test_what_is_no_pool_is_an_error():
    with pytest.raises(TypeError, match="pool must be a WorkerPool"):
        MultiLoader([1], pool=4)
