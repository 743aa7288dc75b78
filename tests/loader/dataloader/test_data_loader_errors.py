"""DataLoader: the same errors as torch's for the same misuse and the same faults, or better ones."""

import multiprocessing.context
import os
import pickle
import re
import signal
import threading
import time

import pytest
import torch
import torch.utils.data

from mpwds.errors import WorkerDied, WorkerTraceback
from mpwds.loader.dataloader.data_loader import DataLoader
from tests.loader.dataloader.data_loader_datasets import Counting, Faulty, Numbers, Odd

pytestmark = pytest.mark.usefixtures("one_fork_server")

both = pytest.mark.parametrize("loader_class", [torch.utils.data.DataLoader, DataLoader])
SAMPLER = torch.utils.data.SequentialSampler(range(3))


def error_of(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except Exception as error:
        return error
    raise AssertionError("no error")


@pytest.mark.parametrize(
    "options",
    [
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
    ],
    ids=lambda options: ", ".join(options),
)
def test_misuse_is_the_same_error(options):
    expected = error_of(torch.utils.data.DataLoader, Numbers(), **options)
    got = error_of(DataLoader, Numbers(), **options)
    assert (type(got), str(got)) == (type(expected), str(expected))


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": 3}, {"batch_sampler": 3}], ids=str)
def test_misuse_with_an_iterable_dataset_is_the_same_error(options):
    expected = error_of(torch.utils.data.DataLoader, Counting(3), **options)
    got = error_of(DataLoader, Counting(3), **options)
    assert (type(got), str(got)) == (type(expected), str(expected))


@pytest.mark.parametrize("name", ["in_order", "pin_memory", "persistent_workers"])
def test_a_switch_that_is_not_a_boolean_is_an_error(name):
    with pytest.raises(ValueError, match=f"DataLoader: {name} must be True or False, got 'no'"):
        DataLoader([1, 2], **{"num_workers": 1, name: "no"})


def test_pin_memory_may_be_none_as_in_torch():
    loader = DataLoader([1, 2], pin_memory=None)
    assert [batch.tolist() for batch in loader] == [[1], [2]]
    assert not loader.pin_memory


@both
@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_some_attributes_cannot_be_set_afterwards(loader_class, name):
    with pytest.raises(
        ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"
    ):
        setattr(loader_class(Numbers()), name, None)


def test_an_iterator_cannot_be_pickled():
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        pickle.dumps(iter(DataLoader(Numbers(), num_workers=1)))


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


def test_an_exception_says_where_it_was_raised():
    with pytest.raises(KeyError) as caught:
        list(DataLoader(Faulty(KeyError), num_workers=2))
    assert caught.value.args == (2,)
    assert caught.value.__notes__ == ["Caught KeyError in DataLoader worker process 0."]
    assert isinstance(caught.value.__cause__, WorkerTraceback)
    assert "raise self.error(index)" in str(caught.value.__cause__)


def odd(index):
    return Odd(index, "odd")


def test_an_exception_keeps_its_arguments_and_attributes():
    with pytest.raises(Odd, match="index 2 is odd") as caught:
        list(DataLoader(Faulty(odd), num_workers=1))
    assert caught.value.index == 2


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


def fail(worker):
    raise LookupError(f"no init in {worker}")


def test_errors_before_the_first_sample_are_raised():
    with pytest.raises(LookupError, match="not ready"):
        list(DataLoader(Unready(), num_workers=2))
    with pytest.raises(LookupError, match="no init in 0"):
        list(DataLoader(Numbers(), num_workers=2, worker_init_fn=fail))


def refuse(samples):
    raise ArithmeticError("no batch")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_errors_of_the_collate_function_are_raised(num_workers):
    with pytest.raises(ArithmeticError, match="no batch"):
        list(DataLoader(Numbers(), num_workers=num_workers, collate_fn=refuse))


class Shapes(Numbers):
    def __getitem__(self, index):
        return torch.zeros(index + 1)


class Objects(Numbers):
    def __getitem__(self, index):
        return object()


class Uneven(Numbers):
    def __getitem__(self, index):
        return [0] * (index + 1)


class Sparse(Numbers):
    def __getitem__(self, index):
        return torch.eye(3).to_sparse()


@pytest.mark.parametrize("dataset", [Shapes(), Objects(), Uneven(), Sparse()])
def test_samples_that_do_not_fit_together_are_torchs_error(dataset):
    expected = error_of(list, torch.utils.data.DataLoader(dataset, batch_size=2))
    got = error_of(list, DataLoader(dataset, batch_size=2, num_workers=1))
    assert (type(got), str(got)) == (type(expected), str(expected))


class Gradients(Numbers):
    def __getitem__(self, index):
        return torch.ones(2, requires_grad=True) * 2


def test_a_tensor_that_is_the_result_of_a_computation_to_be_differentiated_is_an_error():
    with pytest.raises(RuntimeError, match=r"requires a gradient .* detach\(\)"):
        list(DataLoader(Gradients(), batch_size=None, num_workers=1))


def test_a_batch_that_cannot_be_pickled_is_an_error_that_says_where_it_is():
    loader = DataLoader(Numbers(), num_workers=1, collate_fn=lambda samples: {"lock": threading.Lock()})
    with pytest.raises(TypeError, match=r'batch\["lock"\] is a lock, which cannot be pickled'):
        list(loader)


class Slow(Numbers):
    def __getitem__(self, index):
        time.sleep(60)


class FailsToLoad:
    def __reduce__(self):
        return int, ("no number",)


class FailingToLoad(Numbers):
    def __getitem__(self, index):
        return FailsToLoad() if 2 <= index < 8 else index


def test_a_batch_that_cannot_be_unpickled_is_an_error_and_the_others_come_and_are_counted():
    loader = DataLoader(FailingToLoad(12), None, num_workers=2, collate_fn=lambda sample: sample)
    iterator = iter(loader)
    assert [next(iterator), next(iterator)] == [0, 1]
    for _ in range(2, 8):
        with pytest.raises(ValueError, match="no number") as caught:
            next(iterator)
    assert "from worker 1 was unpickled" in caught.value.__notes__[-1]
    assert next(iterator) == 8
    assert loader.state_dict()["yielded"] == 9
    assert list(iterator) == [9, 10, 11]


def test_a_timeout_is_a_runtime_error_that_says_where_the_worker_stands(one_fork_server):
    # Long enough for a worker to start on a busy machine.
    with pytest.raises(
        RuntimeError, match=r"(?s)DataLoader timed out after 2\.5 seconds: worker 0 \(pid \d+\).*__getitem__"
    ):
        list(DataLoader(Slow(), num_workers=1, timeout=2.5))


class Deadly(Numbers):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def __getitem__(self, index):
        if index == 5:
            self.how()
        return index


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    os._exit(3)


@pytest.mark.parametrize("context", [None, "fork"])
@pytest.mark.parametrize(
    ("how", "words"),
    [
        (kill, r"DataLoader worker \(pid \d+\) is killed by signal: Killed"),
        (leave, "exited unexpectedly with exit code 3"),
    ],
)
def test_the_death_of_a_worker_is_a_runtime_error_after_what_it_had_sent(how, words, context):
    iterator = iter(DataLoader(Deadly(how), batch_size=None, num_workers=2, multiprocessing_context=context))
    assert [next(iterator) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match=words) as caught:
        next(iterator)
    assert isinstance(caught.value, WorkerDied)


def test_after_the_death_of_a_persistent_worker_the_next_epoch_has_new_ones(tmp_path):
    mark = tmp_path / "mark"

    def once():
        if not mark.exists():
            mark.touch()
            kill()

    loader = DataLoader(Deadly(once), batch_size=None, num_workers=2, persistent_workers=True)
    with pytest.raises(WorkerDied):
        list(loader)
    assert list(loader) == list(range(50))
    loader.close()


def test_an_exception_of_the_sampler_is_raised():
    def indices():
        yield from range(6)
        raise LookupError("no more indices")

    class Sampler(torch.utils.data.Sampler):
        def __iter__(self):
            return indices()

    with pytest.raises(LookupError, match="no more indices"):
        list(DataLoader(Numbers(), sampler=Sampler(), num_workers=1))


def test_a_prefetch_factor_of_zero_is_an_error():
    with pytest.raises(ValueError, match="prefetch_factor must be at least 1"):
        iter(DataLoader(Numbers(), num_workers=1, prefetch_factor=0))


def test_an_unknown_start_method_is_an_error():
    class Other(multiprocessing.context.BaseContext):
        _name = "other"

        def get_start_method(self, allow_none=False):
            return self._name

    loader = DataLoader(Numbers(), num_workers=1, multiprocessing_context=Other())
    with pytest.raises(ValueError, match=re.escape("starts processes by 'other'")):
        iter(loader)


@both
def test_a_generator_that_is_none_is_a_type_error(loader_class):
    with pytest.raises(TypeError, match="generator"):
        iter(loader_class([1, 2], shuffle=True, generator=3))
