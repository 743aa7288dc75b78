"""DataLoader: its worker processes, how they start and when they end."""

import gc
import multiprocessing
import os
import sys
import threading
import types
import warnings

import numpy as np
import psutil
import pytest
import torch
import torch.utils.data

import mpwds
from mpwds.loader.dataloader.data_loader import DataLoader
from tests.forks import raised_in_fork
from tests.loader.dataloader.data_loader_datasets import Numbers
from tests.warned import files_of

pytestmark = pytest.mark.usefixtures("one_fork_server")

slow = pytest.mark.slow
contexts = pytest.mark.parametrize(
    "context", [None, "fork", pytest.param("forkserver", marks=slow), pytest.param("spawn", marks=slow)]
)


class Looks(Numbers):
    """What ``look()`` returns in a worker."""

    def __init__(self, look, length=2):
        super().__init__(length)
        self.look = look

    def __getitem__(self, index):
        return self.look()


def from_workers(look, **options):
    return list(DataLoader(Looks(look), batch_size=None, num_workers=2, **options))


def gone(pids):
    return not any(psutil.pid_exists(pid) for pid in pids)


@contexts
def test_every_way_to_start_delivers_the_same(context):
    factor = 3

    class Dataset(torch.utils.data.Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return np.full(4, factor * index)

    loader = DataLoader(
        Dataset(), 4, num_workers=2, multiprocessing_context=context, collate_fn=lambda b: sum(b)
    )
    assert [batch.tolist() for batch in loader] == [[18] * 4, [66] * 4, [51] * 4]


def test_a_context_object_is_as_good_as_its_name():
    context = torch.multiprocessing.get_context("fork")
    loader = DataLoader(Numbers(4), num_workers=1, multiprocessing_context=context)
    assert loader.multiprocessing_context is context
    assert torch.cat(list(loader)).tolist() == [0, 1, 2, 3]


@contexts
def test_worker_info_and_the_init_function_are_as_in_torch(context):
    def init(worker):
        info = torch.utils.data.get_worker_info()
        info.dataset.marks = (worker, info.id, info.num_workers, info.seed == torch.initial_seed())

    def look():
        return torch.utils.data.get_worker_info().dataset.marks, torch.get_num_threads()

    got = from_workers(look, worker_init_fn=init, multiprocessing_context=context)
    assert got == [[[0, 0, 2, True], 1], [[1, 1, 2, True], 1]]
    assert torch.utils.data.get_worker_info() is None


def test_functions_that_are_added_to_torchs_default_collate_count_in_the_workers(monkeypatch):
    class Word:
        def __init__(self, text):
            self.text = text

    def join(batch, *, collate_fn_map=None):
        return "".join(word.text for word in batch)

    table = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(table, Word, join)
    dataset = [(Word(letter), torch.ones(2)) for letter in "abcd"]
    loader = DataLoader(dataset, 2, num_workers=1)
    assert [(words, tensor.shape) for words, tensor in loader] == [("ab", (2, 2)), ("cd", (2, 2))]


def test_workers_of_the_fork_server_have_what_a_fork_of_this_process_would_have(monkeypatch, tmp_path):
    monkeypatch.setenv("A_NEW_VARIABLE", "yes")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    processors = sorted(os.sched_getaffinity(0))

    def look():
        affinity = sorted(os.sched_getaffinity(0))
        return os.environ.get("A_NEW_VARIABLE"), os.environ.get("HOME"), os.getcwd(), sys.path[0], affinity

    assert from_workers(look) == [["yes", None, str(tmp_path), str(tmp_path / "modules"), processors]] * 2


class Told(Numbers):
    """Tells a list which samples were fetched."""

    def __init__(self, fetched):
        super().__init__(4)
        self.fetched = fetched

    def __getitem__(self, index):
        self.fetched.append(index)
        return index


@contexts
def test_a_list_of_a_manager_can_be_written_to_by_the_workers(context):
    with multiprocessing.Manager() as manager:
        fetched = manager.list()
        got = list(DataLoader(Told(fetched), None, num_workers=2, multiprocessing_context=context))
        assert got == sorted(fetched) == [0, 1, 2, 3]


def test_what_workers_print_goes_where_this_process_prints(capfd):
    def look():
        sys.stdout.write("from a worker\n")  # at once: the two workers' lines must not be mixed
        sys.stdout.flush()
        return 0

    from_workers(look)
    assert capfd.readouterr().out == "from a worker\n" * 2


def test_the_fork_server_imports_what_the_dataset_needs_before_it_forks(tmp_path, monkeypatch):
    (tmp_path / "module_of_the_fork_server.py").write_text(
        "import os\nimported_by = os.getpid()\ndef look():\n    return imported_by, os.getppid()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import module_of_the_fork_server

    for imported_by, parent in from_workers(module_of_the_fork_server.look):
        assert imported_by == parent != os.getpid()


def test_each_epoch_has_fresh_workers_and_a_fresh_copy_of_the_dataset():
    dataset = Looks(os.getpid, length=4)
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    first = set(loader)
    dataset.look = lambda: -os.getpid()
    second = set(loader)
    assert (len(first), len(second)) == (2, 2)
    assert all(pid > 0 for pid in first)
    assert all(pid < 0 for pid in second)
    assert gone(first)


def test_persistent_workers_keep_their_copy_of_the_dataset_and_are_initialised_once():
    class Memory(Numbers):
        initialised = 0
        fetched = 0

        def __getitem__(self, index):
            self.fetched += 1
            return self.fetched, self.initialised, os.getpid()

    def init(worker):
        torch.utils.data.get_worker_info().dataset.initialised += 1

    loader = DataLoader(Memory(3), None, num_workers=1, persistent_workers=True, worker_init_fn=init)
    first, second = list(loader), list(loader)
    assert [fetched for fetched, _, _ in first + second] == [1, 2, 3, 4, 5, 6]
    assert {rest for _, *rest in map(tuple, first + second) for rest in [tuple(rest)]} == {(1, first[0][2])}
    loader.close()
    assert gone([first[0][2]])


@pytest.mark.parametrize("persistent", [False, True])
def test_after_an_early_break_the_next_epoch_starts_at_its_beginning(persistent):
    loader = DataLoader(Numbers(20), 2, num_workers=2, persistent_workers=persistent)
    for _ in range(3):
        for number, batch in enumerate(loader):
            assert batch.tolist() == [2 * number, 2 * number + 1]
            if number == 4:
                break
    assert torch.cat(list(loader)).tolist() == list(range(20))
    loader.close()


ENDS = {
    "the iterator is dropped": ({}, lambda held: held.pop("iterator")),
    "an iterator of forks is": ({"multiprocessing_context": "fork"}, lambda held: held.pop("iterator")),
    "the epoch is over": ({}, lambda held: list(held["iterator"])),
    "a with block is left": ({}, lambda held: held["loader"].__exit__(None, None, None)),
    "a loader that keeps them is closed": ({"persistent_workers": True}, lambda held: held["loader"].close()),
    "torch's name for it is called": (
        {"persistent_workers": True},
        lambda held: held["loader"]._iterator._shutdown_workers(),
    ),
    "nobody holds a loader that keeps them": ({"persistent_workers": True}, lambda held: held.clear()),
}


@pytest.mark.parametrize(("options", "end"), ENDS.values(), ids=ENDS)
def test_workers_end_when(options, end):
    held = {"loader": DataLoader(Numbers(100), num_workers=2, **options)}
    held["iterator"] = iter(held["loader"])
    next(held["iterator"])
    pids = held["iterator"].worker_pids
    assert [worker.pid for worker in held["iterator"]._workers] == pids
    assert len(pids) == 2
    end(held)
    gc.collect()
    assert gone(pids)
    if "iterator" in held:
        assert next(held["iterator"], "over") == "over"


def test_a_thread_that_waits_for_a_batch_when_the_loader_is_closed_is_at_the_end_of_its_iteration():
    loader = DataLoader(Looks(lambda: threading.Event().wait()), num_workers=1)
    iterator = iter(loader)
    got, waits = [], threading.Event()

    def iterate():
        waits.set()
        got.extend(iterator)
        got.append("end")

    thread = threading.Thread(target=iterate)
    thread.start()
    waits.wait()
    loader.close()
    thread.join()
    assert got == ["end"]


BACKGROUND = """
    import sys, threading, time
    import mpwds

    class Slow:
        def __len__(self):
            return 2
        def __getitem__(self, index):
            if index:
                threading.Event().wait()
            return index

    def iterate():
        for batch in mpwds.DataLoader(Slow(), num_workers=1):
            arrived.set()

    arrived = threading.Event()
    thread = threading.Thread(target=iterate, daemon=True)
    thread.start()
    arrived.wait()
    # Python ends a daemon thread where it waits; inside torch's C++ functions that aborts the program.
    while "mpwds" not in sys._current_frames()[thread.ident].f_code.co_filename:
        time.sleep(0.01)
"""


@pytest.mark.slow
def test_a_thread_that_iterates_when_the_program_ends_says_nothing(program):
    assert program(BACKGROUND).finish() == (0, "", "")


def test_a_fork_of_this_process_cannot_take_batches_of_it():
    iterator = iter(DataLoader(Numbers(), num_workers=1))
    assert "is a fork" in raised_in_fork(lambda: next(iterator))
    assert next(iterator).item() == 0


class Locked(Numbers):
    def __init__(self):
        super().__init__(4)
        self.parts = [{"lock": threading.Lock()}]

    def __getitem__(self, index):
        with self.parts[0]["lock"]:
            return index, os.getppid() == self.trainer


def test_a_dataset_that_cannot_be_pickled_makes_the_workers_forks_and_that_is_said_once_unless_asked_for():
    dataset = Locked()
    dataset.trainer = os.getpid()
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    with pytest.warns(
        RuntimeWarning, match=r"dataset\.parts\[0\]\['lock'\] is a lock.* forks of this"
    ) as caught:
        got = list(loader)
    assert got == [[index, True] for index in range(4)]
    assert files_of(caught) == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(loader) == got
        asked_for = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
        assert list(asked_for) == got


class Wrapping(torch.utils.data.Dataset):
    """Has what another dataset has, and is asked for that when it is unpickled, before it has the other."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __getattr__(self, name):
        return getattr(self.dataset, name)

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[index]


def of_a_class_that_asks_too_early():
    return Wrapping(range(4))


class Refusing(list):
    def __setstate__(self, state):
        raise TypeError("made of what is here")


def of_a_class_that_is_never_unpickled():
    dataset = Refusing(range(4))
    dataset.made = True  # there is a state
    return dataset


def of_a_module_that_only_this_process_has():
    module = types.ModuleType("imported_from_nowhere")
    exec("class Dataset(list): pass", vars(module))
    sys.modules[module.__name__] = module
    return module.Dataset(range(4))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        of_a_module_that_only_this_process_has,
        of_a_class_that_asks_too_early,
        of_a_class_that_is_never_unpickled,
    ],
)
def test_a_dataset_that_cannot_be_unpickled_makes_the_workers_forks_and_that_is_said_once(make, persistent):
    loader = DataLoader(make(), None, num_workers=2, persistent_workers=persistent)
    with pytest.warns(RuntimeWarning, match=r"cannot unpickle .* are forks of this process") as caught:
        assert list(loader) == list(loader) == [0, 1, 2, 3]
    assert files_of(caught) == [__file__]


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_dataset_that_cannot_be_unpickled_is_an_error_where_forks_are_not_wanted(context):
    with pytest.raises(RecursionError):
        list(DataLoader(Wrapping(range(4)), num_workers=1, multiprocessing_context=context))


def test_a_dataset_that_cannot_be_unpickled_is_an_error_where_cuda_is_in_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RecursionError):
        iter(DataLoader(Wrapping(range(4)), num_workers=1))


def test_a_dataset_that_cannot_be_pickled_is_an_error_where_cuda_is_in_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    loader = DataLoader(Locked(), num_workers=1)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"dataset\.parts\[0\]\['lock'\] is a lock.* CUDA is in use here"):
            iter(loader)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_dataset_that_cannot_be_pickled_is_an_error_where_forks_are_not_wanted(context):
    loader = DataLoader(Locked(), num_workers=1, multiprocessing_context=context)
    with pytest.raises(TypeError, match=r"dataset\.parts\[0\]\['lock'\] is a lock.*='fork'"):
        iter(loader)


def test_a_pipeline_is_dealt_to_the_workers_and_counts_its_epochs():
    dataset = mpwds.DataPipeline(range(40)).shuffle(40)
    loader = DataLoader(dataset, 4, num_workers=2)
    first, second = (torch.cat(list(loader)).tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second
    dataset.set_epoch(0)
    assert torch.cat(list(loader)).tolist() == first


def test_batches_of_a_pipeline_arrive_as_tensors():
    dataset = mpwds.DataPipeline([np.full(5000, number) for number in range(8)]).batched(4)
    got = list(DataLoader(dataset, batch_size=None, num_workers=2))
    assert [batch[:, 0].tolist() for batch in got] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert all(type(batch) is torch.Tensor for batch in got)


def test_iterable_datasets_find_their_worker_without_torch():
    class Plain:
        def __getitem__(self, index):
            return os.environ["WORKER"], os.environ["NUM_WORKERS"], "torch" in sys.modules

        def __len__(self):
            return 2

    got = list(DataLoader(Plain(), None, num_workers=2, collate_fn=list, multiprocessing_context="spawn"))
    assert got == [["0", "2", False], ["1", "2", False]]


PROGRAM = """
    import os, sys, time
    import torch
    from mpwds.loader.dataloader.data_loader import DataLoader

    class Dataset(torch.utils.data.Dataset):
        def __len__(self):
            return 1000
        def __getitem__(self, index):
            return torch.full((20_000,), index)

    class Batch:
        def __init__(self, samples):
            self.samples = torch.stack(samples)

    loader = DataLoader(Dataset(), 4, num_workers=2, collate_fn=Batch, worker_init_fn=lambda worker: None)
    for batch in loader:
        assert type(batch) is Batch and batch.samples.shape == (4, 20_000)
        print("running", flush=True)
        break
    iterator = iter(loader)
    next(iterator)
"""


def test_a_program_needs_no_main_guard_and_ends_with_nothing_left(program):
    started = program(PROGRAM)
    assert started.line() == "running"
    assert started.finish() == (0, "", "")


SPAWNED = """
    import multiprocessing

    import mpwds

    class Squares:
        def __len__(self):
            return 8
        def __getitem__(self, index):
            return index * index

    def train(rank):
        with mpwds.MultiLoader(Squares(), workers=2, output="numpy") as loader:
            assert sorted(map(int, loader)) == [0, 1, 4, 9, 16, 25, 36, 49]
        found = [int(number) for batch in mpwds.DataLoader(Squares(), 4, num_workers=2) for number in batch]
        assert found == [0, 1, 4, 9, 16, 25, 36, 49]
        print("trained", rank, flush=True)

    if __name__ == "__main__":
        trainer = multiprocessing.get_context("spawn").Process(target=train, args=(0,))
        trainer.start()
        trainer.join()
        raise SystemExit(trainer.exitcode)
"""


@pytest.mark.slow
def test_datasets_of_a_script_work_in_trainers_that_it_spawns(program):
    assert program(SPAWNED).finish() == (0, "trained 0\n", "")


class Flagged(torch.utils.data.Dataset):
    """Has a flag of a few bytes that the program changes, and notes what it did, both in shared memory."""

    def __init__(self):
        self.flag = torch.zeros(1).share_memory_()
        self.done = torch.zeros(4).share_memory_()

    def __len__(self):
        return 4

    def __getitem__(self, index):
        self.done[index] = self.flag[0] + index
        return float(self.flag)


@pytest.mark.parametrize("loader_class", [torch.utils.data.DataLoader, DataLoader])
def test_small_tensors_in_shared_memory_are_shared(loader_class):
    dataset = Flagged()
    loader = loader_class(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    assert list(loader) == [0] * 4
    dataset.flag[0] = 7
    assert list(loader) == [7] * 4
    assert dataset.done.tolist() == [7, 8, 9, 10]


def float8(batch):
    return {"x": torch.tensor(batch, dtype=torch.float32).to(torch.float8_e4m3fn)}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_tensors_of_dtypes_that_numpy_does_not_have_arrive(num_workers):
    (batch,) = DataLoader([1, 2], batch_size=2, num_workers=num_workers, collate_fn=float8)
    assert (batch["x"].dtype, batch["x"].tolist()) == (torch.float8_e4m3fn, [1, 2])
    (sample,) = DataLoader([torch.ones(2).to(torch.float8_e4m3fn)], batch_size=None, num_workers=num_workers)
    assert (sample.dtype, sample.tolist()) == (torch.float8_e4m3fn, [1, 1])


@pytest.mark.slow
def test_a_multi_loader_delivers_them_too():
    with mpwds.MultiLoader([float8([1, 2])], workers=1) as loader:
        (batch,) = loader
    assert (batch["x"].dtype, batch["x"].tolist()) == (torch.float8_e4m3fn, [1, 2])
