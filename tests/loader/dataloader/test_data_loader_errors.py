"""DataLoader: the same errors as torch's for the same misuse and the same faults, or better ones."""

import contextlib
import multiprocessing.context
import os
import signal
import threading
import time

import pytest
import torch
import torch.utils.data

from mpwds.errors import WorkerDied, WorkerTraceback
from mpwds.loader.dataloader.data_loader import DataLoader
from tests.loader.dataloader.data_loader_datasets import Counting, Faulty, Numbers
from tests.loader.faults.processes import wait_until

pytestmark = pytest.mark.usefixtures("one_fork_server")

SAMPLER = torch.utils.data.SequentialSampler(range(3))


def assert_same_error(program):
    """Fails unless ``program(class)`` raises the same for both classes."""
    with pytest.raises(Exception) as expected:  # noqa: PT011  (whatever torch says)
        program(torch.utils.data.DataLoader)
    with pytest.raises(expected.type) as got:
        program(DataLoader)
    assert (got.type, str(got.value)) == (expected.type, str(expected.value))


MISUSE = [
    {"num_workers": -1},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"prefetch_factor": -1, "num_workers": 1},
    {"persistent_workers": True},
    {"batch_size": None, "drop_last": True},
    {"batch_size": 0},
    {"batch_size": True},
    {"multiprocessing_context": "fork"},
    {"multiprocessing_context": "bad", "num_workers": 1},
    {"multiprocessing_context": object, "num_workers": 1},
    {"sampler": SAMPLER, "shuffle": True},
    {"batch_sampler": [[1]], "batch_size": 11},
    {"batch_sampler": [[1]], "drop_last": True},
    {"batch_sampler": [[1]], "sampler": SAMPLER},
    {"batch_sampler": [[1]], "shuffle": True},
    {"batch_size": None, "drop_last": "yes"},
    {"drop_last": "yes"},
    {"batch_sampler": [[1]], "drop_last": "yes", "pin_memory": "yes"},
    {"num_workers": -1, "generator": 3},
    {"dataset": Counting(3), "shuffle": True},
    {"dataset": Counting(3), "sampler": 3},
    {"dataset": Counting(3), "batch_sampler": 3},
]


@pytest.mark.parametrize("options", MISUSE, ids=lambda options: ", ".join(options))
def test_misuse_is_the_same_error(options):
    assert_same_error(lambda loader_class: loader_class(**{"dataset": Numbers(), **options}))


def in_a_context_of_its_own():
    class Other(multiprocessing.context.BaseContext):
        _name = "other"

        def get_start_method(self, allow_none=False):
            return self._name

    return Other()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"in_order": "no"}, "DataLoader: in_order must be True or False, got 'no'"),
        ({"pin_memory": "no"}, "DataLoader: pin_memory must be True or False, got 'no'"),
        ({"persistent_workers": "no"}, "DataLoader: persistent_workers must be True or False, got 'no'"),
        ({"prefetch_factor": 0}, "prefetch_factor must be at least 1"),
        ({"multiprocessing_context": in_a_context_of_its_own()}, "starts processes by 'other'"),
    ],
)
def test_what_torch_lets_pass_and_no_worker_can_do_is_an_error(options, words):
    with pytest.raises(ValueError, match=words):
        iter(DataLoader(Numbers(), **{"num_workers": 1, **options}))


def test_pin_memory_may_be_none_as_in_torch():
    loader = DataLoader([1, 2], pin_memory=None)
    assert [batch.tolist() for batch in loader] == [[1], [2]]
    assert not loader.pin_memory


def outcomes(iterator):
    """What ``next`` does, again and again: values, and the types of exceptions."""
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            return
        except Exception as error:
            yield type(error)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("error", [KeyError, NotImplementedError, ZeroDivisionError, FileNotFoundError])
def test_an_exception_keeps_its_type_and_the_iteration_can_go_on(num_workers, error):
    def program(loader_class):
        return list(outcomes(iter(loader_class(Faulty(error), batch_size=None, num_workers=num_workers))))

    assert program(DataLoader) == program(torch.utils.data.DataLoader)
    assert program(DataLoader)[:4] == [0, 1, error, 3]


def refuse_most(numbers):
    if numbers[0] % 100 < 8:
        raise KeyError(numbers[0])
    return numbers


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_batches_of_an_iterable_dataset_come_after_any_number_that_failed(num_workers):
    def program(loader_class):
        dataset = Counting(*[10] * max(num_workers, 1))
        loader = loader_class(dataset, 1, num_workers=num_workers, collate_fn=refuse_most)
        return list(outcomes(iter(loader)))

    found = program(DataLoader)
    assert found == program(torch.utils.data.DataLoader)
    assert found[-1] == [100 * max(num_workers - 1, 0) + 9]
    assert found.count(KeyError) == 8 * max(num_workers, 1)


def test_an_exception_says_where_it_was_raised():
    with pytest.raises(KeyError) as caught:
        list(DataLoader(Faulty(KeyError), num_workers=2))
    assert caught.value.args == (2,)
    assert caught.value.__notes__ == ["Caught KeyError in DataLoader worker process 0."]
    assert isinstance(caught.value.__cause__, WorkerTraceback)
    assert "raise self.error(index)" in str(caught.value.__cause__)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_stop_iteration_of_a_map_style_dataset_ends_nothing_in_a_worker(num_workers):
    loader = DataLoader(Faulty(StopIteration), batch_size=None, num_workers=num_workers)
    if num_workers:
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            list(loader)
    else:
        assert list(loader) == [0, 1]  # torch's own code, and torch's way


class Unready(torch.utils.data.IterableDataset):
    def __iter__(self):
        raise LookupError("not ready")


def fail(argument):
    raise LookupError(f"failed on {argument}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": Unready(), "num_workers": 2}, "not ready"),
        ({"worker_init_fn": fail, "num_workers": 2}, "failed on 0"),
        ({"collate_fn": fail, "num_workers": 0}, r"failed on \[0\]"),
        ({"collate_fn": fail, "num_workers": 1}, r"failed on \[0\]"),
    ],
)
def test_errors_of_what_the_program_gives_the_loader_are_raised(options, words):
    with pytest.raises(LookupError, match=words):
        list(DataLoader(**{"dataset": Numbers(), **options}))


class Made(Numbers):
    """What ``make(index)`` returns."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def __getitem__(self, index):
        return self.make(index)


UNFIT = {
    "other shapes": lambda index: torch.zeros(index + 1),
    "objects": lambda index: object(),
    "other lengths": lambda index: [0] * (index + 1),
    "sparse": lambda index: torch.eye(3).to_sparse(),
}


@pytest.mark.parametrize("make", UNFIT.values(), ids=UNFIT)
def test_samples_that_do_not_fit_together_are_torchs_error(make):
    def program(loader_class):
        workers = 1 if loader_class is DataLoader else 0
        list(loader_class(Made(make), batch_size=2, num_workers=workers))

    assert_same_error(program)


def test_a_tensor_that_is_the_result_of_a_computation_to_be_differentiated_is_an_error():
    dataset = Made(lambda index: torch.ones(2, requires_grad=True) * 2)
    with pytest.raises(RuntimeError, match=r"requires a gradient .* detach\(\)"):
        list(DataLoader(dataset, batch_size=None, num_workers=1))


def test_a_batch_that_cannot_be_pickled_is_an_error_that_says_where_it_is():
    loader = DataLoader(Numbers(), num_workers=1, collate_fn=lambda samples: {"lock": threading.Lock()})
    with pytest.raises(TypeError, match=r'batch\["lock"\] is a lock, which cannot be pickled'):
        list(loader)


class FailsToLoad:
    def __reduce__(self):
        return int, ("no number",)


def test_a_batch_that_cannot_be_unpickled_is_an_error_and_the_others_come_and_are_counted():
    dataset = Made(lambda index: FailsToLoad() if 2 <= index < 8 else index)
    loader = DataLoader(dataset, None, sampler=range(12), num_workers=2, collate_fn=lambda sample: sample)
    iterator = iter(loader)
    assert [next(iterator), next(iterator)] == [0, 1]
    for _ in range(2, 8):
        with pytest.raises(ValueError, match="no number") as caught:
            next(iterator)
    assert "from worker 1 was unpickled" in caught.value.__notes__[-1]
    assert next(iterator) == 8
    assert loader.state_dict()["yielded"] == 9
    assert list(iterator) == [9, 10, 11]


def test_a_timeout_is_a_runtime_error_that_says_where_the_worker_stands(
    one_fork_server, tmp_path, monkeypatch
):
    monkeypatch.setattr("mpwds.stats.counters._STACK_WAIT_S", 120)

    def sleep(index):
        (tmp_path / "sleeps").touch()
        time.sleep(600)

    iterator = iter(DataLoader(Made(sleep), num_workers=1, timeout=0.5))
    wait_until((tmp_path / "sleeps").exists, "the worker to be stuck")
    with pytest.raises(
        RuntimeError, match=r"(?s)DataLoader timed out after 0\.5 seconds: worker 0 \(pid \d+\).*__getitem__"
    ):
        next(iterator)


class SlowToArrive:
    def __init__(self):
        self.length = 2  # an object without attributes has no state

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index

    def __setstate__(self, state):
        vars(self).update(state)
        time.sleep(1)


def test_a_worker_that_is_ready_after_the_timeout_delivers_what_comes_in_time(one_fork_server):
    loader = DataLoader(SlowToArrive(), None, num_workers=1, timeout=0.3)
    with contextlib.suppress(RuntimeError):  # its first batch may come too late as well
        iterator = iter(loader)
        time.sleep(2)
        assert list(iterator) == [0, 1]


@pytest.mark.parametrize("context", [None, "fork"])
@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            r"DataLoader worker \(pid \d+\) is killed by signal: Killed",
        ),
        (lambda: os._exit(3), "exited unexpectedly with exit code 3"),
    ],
)
def test_the_death_of_a_worker_is_a_runtime_error_after_what_it_had_sent(how, words, context):
    dataset = Made(lambda index: how() if index == 5 else index)
    iterator = iter(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context))
    assert [next(iterator) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match=words) as caught:
        next(iterator)
    assert isinstance(caught.value, WorkerDied)


def test_an_exception_of_the_sampler_is_raised():
    with pytest.raises(ZeroDivisionError, match="division"):
        list(DataLoader(Numbers(), sampler=(5 // (5 - index) for index in range(6)), num_workers=1))


def test_a_generator_that_is_none_is_a_type_error():
    with pytest.raises(TypeError, match="generator must be a torch.Generator or None, got 3"):
        DataLoader([1, 2], shuffle=True, generator=3)
