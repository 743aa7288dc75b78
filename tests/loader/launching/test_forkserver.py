"""The fork server: one process that forks the workers of all loaders of this process."""

import errno
import functools
import gc
import importlib
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
import time

import psutil
import pytest
from hypothesis.internal import reflection

import mpwds
from mpwds.errors import WorkerDied
from mpwds.loader.dataloader.data_loader import DataLoader
from mpwds.loader.launching import forkserver
from tests.loader.dataloader.data_loader_datasets import Numbers
from tests.loader.faults.processes import children, in_threads, wait_until, wait_until_gone
from tests.loader.launching.parents import Parent
from tests.marks import slow


def server_of(loader):
    (pid,) = set(loader)
    return pid


@pytest.fixture(autouse=True)
def _none_yet():
    forkserver.let_go()


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a user's module, which can then be imported here and in workers; returns its name."""

    def write(name, text):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        return name

    return write


def waits_for(path):
    """The text of a module whose import takes until there is a file."""
    return f"import os, time\nwhile not os.path.exists({str(path)!r}):\n    time.sleep(0.01)\n"


def test_it_starts_with_the_first_loader_and_serves_all_of_them():
    before = children()
    loader = DataLoader(Parent(4), None, num_workers=2)
    (server,) = children() - before
    assert server_of(loader) == server
    del loader
    assert server_of(DataLoader(Parent(4), None, num_workers=2)) == server
    with mpwds.MultiLoader(Parent(4), workers=2, start_method="forkserver") as multi_loader:
        assert server_of(map(int, multi_loader)) == server


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_keeps_it_from_starting_is_told_when_an_epoch_begins(monkeypatch):
    def fail(*ignored):
        raise OSError(errno.EMFILE, "no descriptors")

    monkeypatch.setattr("mpwds.loader.processes.processes.spawn", fail)
    loader = DataLoader(Numbers(), num_workers=1)
    with pytest.raises(OSError, match="no descriptors"):
        iter(loader)
    monkeypatch.undo()
    assert len(list(loader)) == len(Numbers())


class CollectorIsOn(Numbers):
    def __getitem__(self, index):
        return gc.isenabled()


@pytest.mark.slow
@pytest.mark.parametrize("context", [None, "spawn"])
def test_workers_collect_garbage_although_their_start_does_not(context):
    assert (
        list(DataLoader(CollectorIsOn(2), None, num_workers=1, multiprocessing_context=context)) == [True] * 2
    )


@pytest.mark.slow
def test_it_ends_when_it_has_had_no_worker_and_no_request_for_a_while(monkeypatch):
    monkeypatch.setattr(forkserver, "IDLE_S", 1)
    loader = DataLoader(Parent(4), None, num_workers=2)
    first = server_of(loader)
    wait_until(lambda: forkserver._current.is_gone, "the server to end")
    second = server_of(loader)
    assert second != first
    wait_until_gone([first])


@pytest.mark.slow
def test_it_stays_while_it_has_a_worker(monkeypatch):
    monkeypatch.setattr(forkserver, "IDLE_S", 1)
    iterator = iter(DataLoader(Numbers(10), None, num_workers=1))
    time.sleep(2.5)
    assert not forkserver._current.is_gone
    assert list(iterator) == list(range(10))


@pytest.mark.slow
def test_a_worker_that_died_is_started_again_although_the_server_has_ended_since(monkeypatch):
    monkeypatch.setattr(forkserver, "IDLE_S", 1)
    options = {"workers": 1, "start_method": "forkserver", "on_worker_death": "restart", "output": "numpy"}
    with mpwds.MultiLoader(range(100_000), **options) as loader:
        iterator = iter(loader)
        got = [next(iterator)]
        os.kill(loader.worker_pids[0], signal.SIGKILL)
        wait_until(lambda: forkserver._current.is_gone, "the server to end")
        with pytest.warns(RuntimeWarning, match="SIGKILL"):
            got.extend(iterator)
    assert got == list(range(100_000))


@pytest.mark.slow
def test_when_it_is_let_go_it_ends_with_its_last_worker():
    iterator = iter(DataLoader(Parent(10), None, num_workers=1))
    forkserver.let_go()
    server = next(iterator)
    assert psutil.pid_exists(server)
    del iterator
    gc.collect()
    assert not psutil.pid_exists(server)


@pytest.mark.slow
def test_its_workers_outlive_the_loader():
    iterator = iter(DataLoader(Numbers(6), None, num_workers=2))
    gc.collect()
    assert list(iterator) == list(range(6))


@pytest.mark.slow
def test_loaders_in_several_threads_may_start_workers_at_once():
    held = forkserver.ready([])
    got = []

    def iterate():
        for _ in range(2):
            got.append(list(DataLoader(Numbers(10), None, num_workers=2)))

    in_threads(iterate, iterate)
    assert got == [list(range(10))] * 4
    assert not held.is_gone


@pytest.mark.slow
def test_an_iterator_that_is_dropped_while_it_is_asked_for_something_has_its_worker_reaped(tmp_path, write):
    iterators = [iter(DataLoader(Numbers(), None, num_workers=1))]
    go_on = tmp_path / "go_on"

    def drop(*signal_and_frame):
        go_on.touch()
        iterators.clear()

    signals = f"import os, signal\nos.kill({os.getpid()}, signal.SIGUSR1)\n"
    before = signal.signal(signal.SIGUSR1, drop)
    try:
        forkserver.ready([write("signals_and_waits", signals + waits_for(go_on))])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not iterators


def test_when_it_is_killed_its_workers_end_and_the_next_epoch_has_a_new_one():
    loader = DataLoader(Parent(10**6), None, num_workers=1)
    iterator = iter(loader)
    first = next(iterator)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        list(iterator)
    assert psutil.Process(next(iter(loader))).ppid() == os.getpid()


@pytest.mark.slow
def test_a_fork_of_the_process_makes_its_own():
    held = forkserver.ready([])
    pid = os.fork()
    if pid == 0:
        os._exit(0 if forkserver.ready([]).pid != held.pid else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert forkserver.ready([]) is held


def test_a_module_that_cannot_be_imported_is_left_to_the_worker(write):
    server = forkserver.ready([write("exits", "raise SystemExit(3)"), "there_is_no_such_module"])
    assert not server.is_gone


def test_a_module_that_handles_signals_itself_keeps_no_worker_from_being_reaped(write):
    handles = (
        f"import os, signal, sys\nif os.getpid() != {os.getpid()}:\n"
        "    signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "    signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))\n"
    )
    server = forkserver.ready([write("handles_signals", handles)])
    with mpwds.MultiLoader(Parent(2), workers=1) as loader:
        assert server_of(map(int, loader)) == server.pid
        os.kill(server.pid, signal.SIGUSR1)
    assert forkserver.ready([]) is server


def test_workers_of_a_process_that_blocks_sigchld_are_reaped():
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        with mpwds.MultiLoader(Parent(2), workers=1) as loader:
            assert server_of(map(int, loader)) == forkserver.ready([]).pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


LOOKS_AROUND = """
import os, sys

print("imported")
found = [os.environ.get("A_NEW_VARIABLE"), os.getcwd(), sys.argv[1:], os.getpid()]

class Dataset(list):
    def __getitem__(self, index):
        return found, os.getppid()
"""


@pytest.mark.slow
def test_modules_find_around_them_what_this_process_has_now_and_print_nothing(
    tmp_path, monkeypatch, capfd, write
):
    forkserver.ready([])
    monkeypatch.setenv("A_NEW_VARIABLE", "yes")
    monkeypatch.setattr("sys.argv", ["train.py", "--root", "/data"])
    monkeypatch.chdir(tmp_path)
    looks_around = importlib.import_module(write("looks_around", LOOKS_AROUND))
    ((found, server),) = DataLoader(looks_around.Dataset([0]), None, num_workers=1)
    assert found == ["yes", str(tmp_path), ["--root", "/data"], server]
    assert capfd.readouterr().out == "imported\n"


@pytest.mark.slow
def test_a_module_that_is_imported_as_its_loader_is_made_finds_the_arguments(monkeypatch, write):
    monkeypatch.setattr("sys.argv", ["train.py", "--root", "/data"])
    looks_around = importlib.import_module(write("looks_around_early", LOOKS_AROUND))
    loader = DataLoader(looks_around.Dataset([0]), None, num_workers=1)
    monkeypatch.setattr("sys.argv", ["set", "since"])
    ((found, _),) = loader
    assert found[2] == ["--root", "/data"]


MAKES_A_LOADER = """
from mpwds.loader.dataloader.data_loader import DataLoader

class Dataset(list):
    pass

loader = DataLoader(Dataset(range(4)), None, num_workers=1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", [None, "spawn"])
def test_a_loader_that_a_module_makes_when_it_is_imported_starts_nothing_in_other_processes(context, write):
    before = children()
    module = importlib.import_module(write(f"makes_a_loader_{context}", MAKES_A_LOADER))
    (server,) = children() - before
    dataset = module.Dataset(range(4))
    iterator = iter(DataLoader(dataset, None, num_workers=1, multiprocessing_context=context))
    assert next(iterator) == 0
    (worker,) = iterator.worker_pids
    assert children(recursive=True) - before == {server, worker}
    del iterator, module.loader


ITERATES = """
from mpwds.loader.dataloader.data_loader import DataLoader

class Dataset(list):
    pass

total = sum(DataLoader(Dataset(range(4)), None, num_workers=1, multiprocessing_context={context!r}))
"""


@pytest.mark.slow
def test_a_module_that_iterates_when_it_is_imported_has_workers_that_do_not_import_it(write):
    name = write("iterates", ITERATES.format(context=None))
    with pytest.warns(RuntimeWarning, match=r"module 'iterates' is still being imported, so .* forks"):
        iterates = importlib.import_module(name)
    assert iterates.total == 6
    loader = DataLoader(iterates.Dataset(range(4)), None, num_workers=1)
    assert list(loader) == [0, 1, 2, 3]


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_where_forks_are_not_wanted_that_is_an_error(context, write):
    package = f"iterating_{context}"
    write(f"{package}/__init__", f"import {package}.inner")
    write(f"{package}/inner", ITERATES.format(context=context))
    with pytest.raises(RuntimeError, match=rf"module '{package}', which is still being imported"):
        importlib.import_module(package)


CLOSED = """
    import os

    import mpwds

    os.close(0), os.close(1)
    loader = mpwds.DataLoader(range(4), None, num_workers=1)
    raise SystemExit(list(loader) != [0, 1, 2, 3])
"""


@pytest.mark.slow
def test_a_program_without_standard_streams_has_one_too(program):
    assert program(CLOSED).finish() == (0, "", "")


class Exits(Numbers):
    def __init__(self, status):
        super().__init__(1)
        self.status = status

    def __getitem__(self, index):
        os._exit(self.status)


@pytest.mark.slow
def test_each_of_several_threads_is_told_the_exit_status_of_its_own_workers():
    told = []

    def iterate(status):
        for _ in range(10):
            with pytest.raises(WorkerDied) as raised:
                list(DataLoader(Exits(status), num_workers=1))
            told.append(raised.value.exitcode - status)

    in_threads(*(functools.partial(iterate, status) for status in (3, 4, 5)))
    assert told == [0] * 30


@pytest.mark.slow
def test_workers_end_with_a_finalizer_while_another_thread_waits_for_the_server(tmp_path, write):
    go_on = tmp_path / "go_on"
    module = write("takes_long", waits_for(go_on))
    iterator = iter(DataLoader(Numbers(), num_workers=1))
    pids = iterator.worker_pids
    server = forkserver.ready([])
    thread = threading.Thread(target=server.prepare, args=[[module]])
    thread.start()
    wait_until(server._lock.locked, "the thread to ask")
    del iterator
    gc.collect()
    assert not any(map(psutil.pid_exists, pids))
    assert thread.is_alive()
    go_on.touch()
    thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_very_long_path_reaches_the_workers(start_method, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, *(f"/nowhere/{number:0100}" for number in range(5000))])

    def look():
        yield sum(map(len, sys.path))

    with mpwds.MultiLoader(look, workers=1, start_method=start_method) as loader:
        assert list(loader) == [sum(map(len, sys.path))]


def test_a_path_whose_name_is_not_utf8_reaches_the_workers(monkeypatch):
    path = os.fsdecode(b"/nowhere/caf\xe9")
    monkeypatch.setattr(sys, "path", [*sys.path, path])

    def look():
        yield os.fsencode(path) in map(os.fsencode, sys.path)

    with mpwds.MultiLoader(look, workers=1, start_method="forkserver") as loader:
        assert list(loader) == [True]


RELOADED = """
class Dataset(list):
    def __getitem__(self, index):
        return {factor} * index
"""


@pytest.mark.slow
def test_after_a_reload_new_workers_have_the_new_code_while_those_of_other_loaders_go_on(write):
    module = importlib.import_module(write("to_be_reloaded", RELOADED.format(factor=10)))

    def loader():
        return DataLoader(module.Dataset([0, 0]), None, num_workers=1)

    older = iter(loader())
    assert list(loader()) == [0, 10]
    write("to_be_reloaded", RELOADED.format(factor=2000))
    importlib.reload(module)
    assert list(loader()) == [0, 2000]
    assert list(older) == [0, 10]


@pytest.mark.slow
def test_a_file_that_is_edited_during_a_training_does_not_change_it(write):
    module = importlib.import_module(write("to_be_edited", RELOADED.format(factor=10)))
    loader = DataLoader(module.Dataset([0, 0]), None, num_workers=1)
    assert list(loader) == [0, 10]
    write("to_be_edited", "this is not finished yet")
    assert list(loader) == [0, 10]


PARENTS = "import os\ndef parents():\n    yield os.getppid()\n"
SPOILERS = {
    "starts_a_thread": "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "opens_a_file": "file = open(__file__)",
    "makes_a_generator": "generator = random.Random()",
}


@pytest.mark.parametrize("name", ["starts_a_thread", *slow("opens_a_file", "makes_a_generator")])
def test_by_default_a_module_that_forks_should_not_share_is_imported_by_each_worker(name, write):
    spoiling = f"import os, random, threading\nif os.getpid() != {os.getpid()}:\n    {SPOILERS[name]}\n"
    spoiler = importlib.import_module(write(name, spoiling + PARENTS))
    for _ in range(2):  # it is known the second time
        with mpwds.MultiLoader(spoiler.parents, workers=2) as loader:
            assert server_of(map(int, loader)) == os.getpid()
    with mpwds.MultiLoader(Parent(2), workers=1) as loader:
        assert server_of(map(int, loader)) == forkserver.ready([]).pid


def test_by_default_a_worker_that_died_is_started_again_by_no_server_that_was_spoiled_since(write):
    spoiling = f"import os, threading\nif os.getpid() != {os.getpid()}:\n    {SPOILERS['starts_a_thread']}\n"
    options = {"workers": 1, "on_worker_death": "restart", "output": "numpy"}
    with mpwds.MultiLoader(range(100_000), **options) as loader:
        iterator = iter(loader)
        got = [next(iterator)]
        spoiled = forkserver.ready([write("starts_a_thread_later", spoiling)])
        os.kill(loader.worker_pids[0], signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match="SIGKILL"):
            got.extend(iterator)
        assert psutil.Process(loader.worker_pids[0]).ppid() != spoiled.pid
        assert forkserver.ready_and_safe(["json"]).pid != spoiled.pid
    assert got == list(range(100_000))


def test_by_default_a_module_that_fails_in_other_processes_is_reported_with_its_own_error(write):
    write("a_registry", "registered = []")
    fails = (
        "from a_registry import registered\n"
        "if registered:\n    raise KeyError('registered already')\nregistered.append('a name')\n"
        f"import os\nif os.getpid() != {os.getpid()}:\n    raise ValueError('its own error')\n"
    )
    module = importlib.import_module(write("registers_and_fails", fails + PARENTS))
    with mpwds.MultiLoader(module.parents, workers=1) as loader, pytest.raises(ValueError, match="its own"):
        list(loader)


def test_by_default_fresh_interpreters_take_over_where_the_server_dies(write):
    ends = (
        "import os, sys\n"
        f"if os.getpid() != {os.getpid()} and 'mpwds.loader.launching.forkserver_process' in sys.modules:\n"
        "    os._exit(3)\n"
    )
    module = importlib.import_module(write("ends_the_server", ends + PARENTS))
    with mpwds.MultiLoader(module.parents, workers=2) as loader:
        assert server_of(map(int, loader)) == os.getpid()


@pytest.mark.parametrize("start_method", [None, pytest.param("spawn", marks=pytest.mark.slow)])
def test_daemons_that_a_dataset_starts_by_multiprocessing_end_with_its_worker(start_method):
    def pids():
        daemon = multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,), daemon=True)
        daemon.start()
        yield daemon.pid

    with mpwds.MultiLoader(pids, workers=1, start_method=start_method) as loader:
        (pid,) = map(int, loader)
    wait_until_gone([pid])


def test_by_default_a_worker_starts_its_own_workers_itself():
    def nested():
        with mpwds.MultiLoader(Parent(2), workers=1) as loader:
            yield os.getpid(), server_of(map(int, loader))

    with mpwds.MultiLoader(nested, workers=1) as loader:
        ((worker, parent),) = loader
    assert worker == parent


def test_new_workers_have_the_limits_umask_and_time_zone_that_this_process_has_now():
    def look():
        umask = os.umask(0o022)
        yield umask, resource.getrlimit(resource.RLIMIT_CORE)[0], time.localtime(0).tm_gmtoff

    forkserver.ready([])
    umask, (soft, hard) = os.umask(0o027), resource.getrlimit(resource.RLIMIT_CORE)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0 if soft else 4096, hard))
        expected = (0o027, 0 if soft else 4096, 10800)
        with pytest.MonkeyPatch.context() as patch, mpwds.MultiLoader(look, workers=1) as loader:
            patch.setenv("TZ", "Etc/GMT-3")
            assert [tuple(each) for each in loader] == [expected]
    finally:
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def test_warming_up_without_waiting_returns_while_modules_are_imported(tmp_path, write):
    go_on = tmp_path / "go_on"
    go_on.touch()
    module = importlib.import_module(write("imported_slowly", waits_for(go_on) + PARENTS))
    go_on.unlink()
    with mpwds.MultiLoader(module.parents, workers=1) as loader:
        loader.warm_up(wait=False)
        assert loader.worker_pids == []
        go_on.touch()
        assert server_of(map(int, loader)) == forkserver.ready([]).pid


def test_a_random_generator_of_an_installed_package_spoils_no_server():
    assert any(type(value) is random.Random for value in vars(reflection).values())
    assert forkserver.ready_and_safe([reflection.__name__]) is not None
