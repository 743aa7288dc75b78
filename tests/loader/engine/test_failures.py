"""What a user sees when a dataset raises, a worker dies or is stuck; and that nothing stays behind."""

import multiprocessing
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest
import torch

import mpwds
from mpwds.errors import SharedMemoryError, WorkerDied, WorkerTimeout, WorkerTraceback
from tests.loader.faults.processes import wait_until
from tests.open_files import none_left
from tests.warned import files_of

pytestmark = pytest.mark.usefixtures("quick_workers")

FAILING = 13


class BadNumber(Exception):
    """An exception whose constructor does not take what it stores, and which cannot be pickled whole."""

    def __init__(self, number, lock):
        super().__init__(f"number {number}")
        self.number = number
        self.lock = lock


def numbers(action=lambda: None, nbytes=8, only_worker=None):
    """Arrays without end; before number 13, ``action`` is called."""

    def generate():
        worker = int(os.environ["WORKER"])
        for number in range(1_000_000):
            if number == FAILING and only_worker in (None, worker):
                action()
            yield np.full(nbytes // 8, number)

    return generate


def run(loader):
    received = 0
    try:
        for _ in loader:
            received += 1
    finally:
        loader.received = received


def raise_value_error():
    raise ValueError("bad number")


def raised(kind, message, dataset, **options):
    """The exception of this kind with which an epoch of a loader of the dataset ends."""
    with pytest.raises(kind, match=message) as caught:
        run(mpwds.MultiLoader(dataset, **{"workers": 1, **options}))
    return caught.value


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_in_a_stage_keeps_its_type_and_names_stage_shard_and_sample(shards, workers):
    def check(sample):
        if sample["cls"] == FAILING:
            raise KeyError("no such thing")
        return sample

    dataset = mpwds.WebDataset(shards).decode().map(check).batched(4)
    loader = mpwds.MultiLoader(dataset, workers=workers)
    with pytest.raises(KeyError, match="no such thing") as caught:
        run(loader)
    assert any(
        'map(check), on sample "sample013" of' in note and "train-1.tar" in note
        for note in caught.value.__notes__
    )
    assert loader.worker_pids == []


def test_the_cause_is_the_workers_traceback():
    cause = raised(ValueError, "bad number", numbers(raise_value_error)).__cause__
    assert isinstance(cause, WorkerTraceback)
    text = str(cause)
    assert text.startswith("in worker 0 (pid ")
    assert "in raise_value_error" in text


def test_an_exception_comes_in_its_turn_after_the_batches_before_it():
    loader = mpwds.MultiLoader(numbers(raise_value_error, only_worker=1), workers=2)
    with pytest.raises(ValueError, match="bad number"):
        run(loader)
    assert loader.received == 2 * FAILING + 1


def test_an_exception_keeps_type_text_and_what_of_it_can_be_pickled():
    def fail():
        raise BadNumber(5, threading.Lock())

    error = raised(BadNumber, "^number 5$", numbers(fail))
    assert error.number == 5
    assert not hasattr(error, "lock")


@pytest.mark.parametrize(
    ("fail", "kind", "attributes"),
    [
        (lambda: os.stat("x.tar"), FileNotFoundError, {"errno": 2, "filename": "x.tar"}),
        (lambda: b"\xff".decode("utf-8"), UnicodeDecodeError, {"start": 0, "object": b"\xff"}),
    ],
)
def test_exceptions_of_the_interpreter_keep_their_attributes(fail, kind, attributes):
    error = raised(kind, None, numbers(fail))
    assert {name: getattr(error, name) for name in attributes} == attributes


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit])
def test_an_exception_that_is_no_error_comes_as_what_it_is(kind, capfd):
    def fail():
        raise kind("from the dataset")

    raised(kind, "from the dataset", numbers(fail))
    assert capfd.readouterr().err == ""


class OfOneProcess(Exception):
    """An exception that cannot be unpickled elsewhere."""

    def __reduce__(self):
        return unpickled_in, (os.getpid(),)


def unpickled_in(pid):
    if pid != os.getpid():
        raise LookupError("another process")
    return OfOneProcess("stays there")


class Lost(Exception):
    def __init__(self, lock):
        self.lock = lock

    def __str__(self):
        return f"{self.lock} is locked"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ValueError(threading.Lock()), "ValueError: <unlocked _thread.lock"),
        (lambda: OfOneProcess("stays there"), "OfOneProcess: stays there"),
        (lambda: Lost(threading.Lock()), "Lost: <unlocked .* is locked"),
    ],
    ids=["cannot be pickled", "cannot be unpickled here", "its text needs what cannot be pickled"],
)
def test_an_exception_that_cannot_be_sent_comes_as_its_text(make, text):
    def fail():
        raise make()

    raised(mpwds.MpwdsError, text, numbers(fail))


def test_a_stop_iteration_of_a_users_function_does_not_end_the_epoch_in_silence(shards):
    def stop(sample):
        raise StopIteration

    raised(RuntimeError, "raised StopIteration", mpwds.WebDataset(shards).map(stop))


def test_a_dead_worker_names_the_shard_it_read(shards):
    def die(sample):
        if sample["__key__"] == "sample025":
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    why = r"while it read .*train-2\.tar: by somebody, or for want of memory"
    raised(WorkerDied, why, mpwds.WebDataset(shards).map(die))


def test_a_stuck_worker_is_named_with_its_stage_and_stack(shards, tmp_path, monkeypatch):
    monkeypatch.setattr("mpwds.stats.counters._STACK_WAIT_S", 120)

    def sleep_long(sample):
        (tmp_path / "sleeps").touch()
        time.sleep(600)

    dataset = mpwds.WebDataset(shards).decode().map(sleep_long)
    loader = mpwds.MultiLoader(dataset, workers=1, timeout=0.5)
    iterator = iter(loader)
    wait_until((tmp_path / "sleeps").exists, "the worker to be stuck")
    with pytest.raises(
        WorkerTimeout, match=r"worker 0 \(pid \d+\) delivered nothing for 0.5 s, in stage map\(sleep_long\)"
    ) as caught:
        next(iterator)
    assert "in sleep_long" in str(caught.value)
    assert "train-0.tar" in str(caught.value)


def test_a_worker_that_does_not_start_in_time_is_a_timeout_and_not_a_death():
    raised(WorkerTimeout, "delivered nothing for 0.001 s", numbers(), timeout=0.001)


def test_a_trainer_without_descriptors_for_a_workers_memory_is_a_clear_error():
    loader = mpwds.MultiLoader(numbers(nbytes=100_000), workers=1)
    iterator = iter(loader)
    with none_left(), pytest.raises(SharedMemoryError, match="no file descriptor left"):
        next(iterator)


def test_a_batch_that_memory_cannot_hold_is_an_error_in_the_trainer():
    def generate():
        yield np.broadcast_to(np.zeros(1), 1 << 47)

    raised(SharedMemoryError, "smaller batches", generate)


@pytest.fixture(scope="module")
def lock_and_value():
    """Not made when this module is imported: a value opens a file, and forks must not share a module's."""
    return {"a lock": threading.Lock(), "a Synchronized": multiprocessing.Value("i", 1)}


@pytest.mark.parametrize("kind", ["a lock", "a Synchronized"])
def test_a_dataset_that_cannot_be_pickled_says_so_and_makes_the_workers_forks(
    lock_and_value, kind, monkeypatch
):
    item = lock_and_value[kind]

    def generate():
        yield str(type(item)), os.getppid()

    refused = pytest.raises(TypeError, match=rf"cannot be sent to .*{kind};.* or use start_method='fork'")
    with refused, mpwds.MultiLoader(generate, start_method="spawn") as loader:
        list(loader)
    expected = [(str(type(item)), os.getpid())] * 2
    with mpwds.MultiLoader(generate, workers=2, start_method="fork") as loader:
        assert list(loader) == expected
    with mpwds.MultiLoader(generate, workers=2, persistent=False, start_method=None) as loader:
        with pytest.warns(RuntimeWarning, match=rf"{kind}, .* forks of this.* start_method='fork'") as warned:
            assert list(loader) == list(loader) == expected
        assert files_of(warned) == [__file__]
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        with pytest.raises(TypeError, match=r"but CUDA is in use here"):
            list(loader)


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_dataset_that_cannot_be_unpickled_in_the_worker_is_an_error(start_method):
    class Dataset(list):
        def __reduce__(self):
            return pickle.loads, (b"no pickle",)

    error = raised(pickle.UnpicklingError, None, Dataset([1]), workers=2, start_method=start_method)
    assert "in worker 0" in str(error.__cause__)


def test_an_error_of_an_epoch_that_was_left_early_does_not_fail_the_next(tmp_path):
    class Dataset:
        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            yield self.epoch
            (tmp_path / "goes on").touch()
            time.sleep(0.05)
            if self.epoch == 0:
                raise ValueError("of epoch 0")
            yield self.epoch

    with mpwds.MultiLoader(Dataset(), workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
        wait_until((tmp_path / "goes on").exists, "the worker to go on")
        del iterator
        with pytest.warns(
            RuntimeWarning, match="left early failed in worker 0 after that: ValueError: of epoch 0"
        ):
            assert list(loader) == [1, 1]


@pytest.mark.parametrize(
    ("element", "path", "place"),
    [
        (
            lambda lock: {"__key__": "0017", "__url__": "x.tar", "meta": [1, lock]},
            r'batch\["meta"\]\[1\]',
            'sample "0017" of x.tar',
        ),
        (lambda lock: [lock], r"batch\[0\]", "element 0"),
    ],
    ids=["sample", "other"],
)
def test_what_cannot_be_sent_is_named_with_its_path_its_element_and_worker(element, path, place):
    def generate():
        yield element(threading.Lock())

    error = raised(TypeError, f"{path} is a lock, which cannot be pickled", generate)
    assert error.__notes__ == [f"in writing batches, on {place} that worker 0 made"]


@pytest.mark.parametrize("key", [2**100, -(2**64), 2**63])
def test_an_exception_may_hold_any_number(key):
    with pytest.raises(KeyError) as caught:
        list(mpwds.MultiLoader(mpwds.DataPipeline([key]).map({}.__getitem__), workers=1))
    assert caught.value.args == (key,)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("number", [np.int64(3), torch.tensor(3)])
def test_a_stage_may_count_samples_by_any_whole_number(number, workers):
    class Stage:
        def samples_in(self, element):
            return number

        def stream(self, source, context):
            return source

    with mpwds.MultiLoader(mpwds.DataPipeline(range(2)).pipe(Stage()), workers=workers) as loader:
        list(loader)
        assert loader.stats().samples == 6


class Slotted(Exception):
    __slots__ = ("__code", "lock")

    def __init__(self, code):
        self.__code, self.lock = code, threading.Lock()

    def __str__(self):
        return f"code {self.__code}"


def test_an_exception_with_slots_keeps_them():
    def axis():
        np.zeros((2, 2)).sum(axis=5)

    def slotted():
        raise Slotted(7)

    assert raised(np.exceptions.AxisError, "axis 5 is out of bounds", numbers(axis)).axis == 5
    raised(Slotted, "^code 7$", numbers(slotted))
