"""The nursery: one process that forks the workers of all DataLoaders, as long as one of them is there."""

import errno
import gc
import importlib
import os
import signal
import threading

import psutil
import pytest

from mpwds.errors import WorkerDied
from mpwds.loader.data_loader import DataLoader
from mpwds.loader.nursery import Nursery
from tests.loader.data_loader_datasets import Numbers


class Parent(Numbers):
    def __getitem__(self, index):
        return os.getppid()


def nursery_of(loader):
    (pid,) = set(loader)
    return pid


@pytest.fixture(autouse=True)
def _none_yet(monkeypatch):
    """Where something still holds the nursery of an earlier test, this one has another."""
    monkeypatch.setattr("mpwds.loader.nursery._shared", None)


def children():
    return {child.pid for child in psutil.Process().children()}


def test_it_starts_with_the_first_loader_and_ends_with_it_even_if_nobody_iterates():
    before = children()
    loader = DataLoader(Parent(4), None, num_workers=2)
    (nursery,) = children() - before
    assert DataLoader(Numbers(), num_workers=1)._nursery is loader._nursery
    assert nursery_of(loader) == nursery
    del loader
    assert not psutil.pid_exists(nursery)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 1, "multiprocessing_context": "fork"},
        {"num_workers": 1, "multiprocessing_context": "spawn"},
    ],
)
def test_a_loader_that_will_not_need_it_starts_none(options):
    before = children()
    loader = DataLoader(Numbers(), **options)
    assert children() == before
    assert len(list(loader)) == len(Numbers())


def test_what_keeps_it_from_starting_is_told_when_an_epoch_begins(monkeypatch):
    def fail(*ignored):
        raise OSError(errno.EMFILE, "no descriptors")

    monkeypatch.setattr("mpwds.loader.processes.spawn", fail)
    loader = DataLoader(Numbers(), num_workers=1)
    with pytest.raises(OSError, match="no descriptors"):
        iter(loader)
    monkeypatch.undo()
    assert len(list(loader)) == len(Numbers())


class CollectorIsOn(Numbers):
    def __getitem__(self, index):
        return gc.isenabled()


@pytest.mark.parametrize("context", [None, "spawn"])
def test_workers_collect_garbage_although_their_start_does_not(context):
    assert (
        list(DataLoader(CollectorIsOn(2), None, num_workers=1, multiprocessing_context=context)) == [True] * 2
    )


def test_loaders_share_a_nursery_that_ends_with_the_last_of_them():
    loaders = [DataLoader(Parent(4), None, num_workers=2) for _ in range(2)]
    first, second = map(nursery_of, loaders)
    assert first == second
    del loaders[0]
    gc.collect()
    assert psutil.pid_exists(first)
    loaders.clear()
    gc.collect()
    assert not psutil.pid_exists(first)


def test_it_ends_with_the_loader_and_not_when_the_garbage_collector_comes_by():
    list(DataLoader(Numbers(4), None, num_workers=1))  # what is imported at first use keeps frames
    gc.collect()
    gc.disable()
    try:
        nursery = nursery_of(DataLoader(Parent(4), None, num_workers=2))
        assert not psutil.pid_exists(nursery)
    finally:
        gc.enable()


def test_its_workers_outlive_the_loader():
    iterator = iter(DataLoader(Numbers(6), None, num_workers=2))
    gc.collect()
    assert list(iterator) == list(range(6))


def test_loaders_in_several_threads_may_start_workers_at_once():
    held = Nursery.shared()
    got = []

    def iterate():
        for _ in range(2):
            got.append(list(DataLoader(Numbers(10), None, num_workers=2)))

    threads = [threading.Thread(target=iterate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [list(range(10))] * 4
    assert not held.is_gone


def test_an_iterator_that_is_dropped_while_it_is_asked_for_something_has_its_worker_reaped(
    tmp_path, monkeypatch
):
    iterators = [iter(DataLoader(Numbers(), None, num_workers=1))]
    go_on = tmp_path / "go_on"

    def drop(*signal_and_frame):
        go_on.touch()
        iterators.clear()

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "signals_and_waits.py").write_text(
        "import os, signal, time\n"
        f"os.kill({os.getpid()}, signal.SIGUSR1)\n"
        f"while not os.path.exists({str(go_on)!r}):\n    time.sleep(0.01)\n"
    )
    before = signal.signal(signal.SIGUSR1, drop)
    try:
        Nursery.shared().prepare(["signals_and_waits"])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not iterators


def test_several_threads_may_make_loaders_at_once():
    held = DataLoader(Numbers(), num_workers=1)
    failed = []

    def make():
        try:
            for _ in range(2000):
                assert DataLoader(Numbers(), num_workers=1)._nursery is held._nursery
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_when_it_is_killed_its_workers_end_and_the_next_epoch_has_a_new_one():
    loader = DataLoader(Parent(10**6), None, num_workers=1)
    iterator = iter(loader)
    first = next(iterator)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        list(iterator)
    assert psutil.Process(next(iter(loader))).ppid() == os.getpid()


def test_a_fork_of_the_process_makes_its_own():
    held = Nursery.shared()
    held.open()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if Nursery.shared() is not held else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert Nursery.shared() is held


def test_a_module_that_cannot_be_imported_is_left_to_the_worker(tmp_path, monkeypatch):
    (tmp_path / "imported_by_nobody_else.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    nursery = Nursery.shared()
    nursery.open()
    nursery.prepare(["imported_by_nobody_else", "there_is_no_such_module"])
    assert not nursery.is_gone


LOOKS_AROUND = """
import os, sys

import torch

print("imported")
found = [os.environ.get("A_NEW_VARIABLE"), os.getcwd(), sys.argv[1:], os.getpid()]

class Dataset(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return found, os.getppid()
"""


def test_modules_find_around_them_what_this_process_has_now_and_print_nothing(tmp_path, monkeypatch, capfd):
    held = Nursery.shared()
    held.open()
    (tmp_path / "looks_around.py").write_text(LOOKS_AROUND)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("A_NEW_VARIABLE", "yes")
    monkeypatch.setattr("sys.argv", ["train.py", "--root", "/data"])
    monkeypatch.chdir(tmp_path)
    import looks_around

    ((found, nursery),) = DataLoader(looks_around.Dataset(), None, num_workers=1)
    assert found == ["yes", str(tmp_path), ["--root", "/data"], nursery]
    assert capfd.readouterr().out == "imported\n"


def test_a_module_that_is_imported_as_its_loader_is_made_finds_the_arguments(tmp_path, monkeypatch):
    (tmp_path / "looks_around_early.py").write_text(LOOKS_AROUND)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.argv", ["train.py", "--root", "/data"])
    import looks_around_early

    loader = DataLoader(looks_around_early.Dataset(), None, num_workers=1)
    monkeypatch.setattr("sys.argv", ["set", "since"])
    ((found, _),) = loader
    assert found[2] == ["--root", "/data"]


MAKES_A_LOADER = """
import torch

from mpwds.loader.data_loader import DataLoader

class Dataset(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index

loader = DataLoader(Dataset(), None, num_workers=1)
"""


@pytest.mark.parametrize("context", [None, "spawn"])
def test_a_loader_that_a_module_makes_when_it_is_imported_starts_nothing_in_other_processes(
    context, tmp_path, monkeypatch
):
    (tmp_path / f"makes_a_loader_{context}.py").write_text(MAKES_A_LOADER)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = children()
    module = importlib.import_module(f"makes_a_loader_{context}")
    (nursery,) = children() - before
    iterator = iter(DataLoader(module.Dataset(), None, num_workers=1, multiprocessing_context=context))
    assert next(iterator) == 0
    (worker,) = iterator.worker_pids
    assert {child.pid for child in psutil.Process().children(recursive=True)} - before == {nursery, worker}
    del iterator, module.loader


ITERATES = """
import torch

from mpwds.loader.data_loader import DataLoader

context = {context!r}

class Dataset(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index

total = sum(DataLoader(Dataset(), None, num_workers=1, multiprocessing_context=context))
"""


def test_a_module_that_iterates_when_it_is_imported_has_workers_that_do_not_import_it(tmp_path, monkeypatch):
    (tmp_path / "iterates.py").write_text(ITERATES.format(context=None))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(RuntimeWarning, match=r"module 'iterates' is still being imported, so .* forks"):
        import iterates
    assert iterates.total == 6
    loader = DataLoader(iterates.Dataset(), None, num_workers=1)
    assert list(loader) == [0, 1, 2, 3]


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_where_forks_are_not_wanted_that_is_an_error(context, tmp_path, monkeypatch):
    package = tmp_path / f"iterating_{context}"
    package.mkdir()
    (package / "__init__.py").write_text(f"import {package.name}.inner")
    (package / "inner.py").write_text(ITERATES.format(context=context))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RuntimeError, match=rf"module '{package.name}', which is still being imported"):
        importlib.import_module(package.name)


CLOSED = """
    import os

    import mpwds

    os.close(0), os.close(1)
    loader = mpwds.DataLoader(range(4), None, num_workers=1)
    raise SystemExit(list(loader) != [0, 1, 2, 3])
"""


def test_a_program_without_standard_streams_has_one_too(script):
    assert script(CLOSED).finish() == (0, "", "")
