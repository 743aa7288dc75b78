"""Workers end when their trainer ends, however it ends, and leave nothing: no process, file or memory."""

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import mpwds

PROGRAM = """
    import itertools, os, signal, sys, time
    import numpy as np
    import mpwds

    def numbers():
        for number in itertools.count():
            yield np.full({size}, number)

    loader = mpwds.MultiLoader(numbers, workers=2, start_method="{start_method}", output="numpy")
    iterator = iter(loader)
    for _ in range(10):
        batch = next(iterator)
    print("running", flush=True)
"""

start_methods = pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])


def program(size=50_000, start_method="spawn", then="    time.sleep(60)\n"):
    return PROGRAM.format(size=size, start_method=start_method) + then


def endless():
    while True:
        yield np.zeros(20_000)


def runs(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # dead, and its new parent has not looked yet
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(processes, within_s):
    deadline = time.monotonic() + within_s
    while any(map(runs, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [process for process in processes if runs(process)]


def running(loader):
    return [psutil.Process(pid) for pid in loader.worker_pids]


def test_workers_end_with_the_with_block():
    with mpwds.MultiLoader(endless, workers=2) as loader:
        next(iter(loader))
        workers = running(loader)
    wait_until_gone(workers, 0)


def test_workers_end_when_the_loop_raises():
    with pytest.raises(ZeroDivisionError), mpwds.MultiLoader(endless, workers=2) as loader:
        for _ in loader:
            workers = running(loader)
            1 / 0
    wait_until_gone(workers, 0)


def test_workers_end_when_the_loop_over_a_loader_without_a_name_is_left():
    for number, _ in enumerate(mpwds.MultiLoader(endless, workers=2)):
        workers = psutil.Process().children()
        if number == 3:
            break
    gc.collect()
    assert len(workers) == 2
    wait_until_gone(workers, 1)


def test_workers_end_when_loader_and_iterator_are_deleted():
    loader = mpwds.MultiLoader(endless, workers=2)
    iterator = iter(loader)
    next(iterator)
    workers = running(loader)
    del loader
    next(iterator)
    del iterator
    gc.collect()
    wait_until_gone(workers, 1)


def test_workers_end_when_their_loader_is_part_of_a_reference_cycle():
    holder = [mpwds.MultiLoader(endless, workers=1)]
    holder.append(holder)
    next(iter(holder[0]))
    workers = running(holder[0])
    del holder
    gc.collect()
    wait_until_gone(workers, 1)


def test_a_worker_that_is_busy_for_long_does_not_hold_up_the_end():
    def generate():
        yield 1
        time.sleep(60)

    with mpwds.MultiLoader(generate, workers=1) as loader:
        next(iter(loader))
        workers = running(loader)
        start = time.monotonic()
    assert time.monotonic() - start < 1.5
    wait_until_gone(workers, 0)


def test_a_stopped_worker_does_not_hold_up_the_end():
    with mpwds.MultiLoader(endless, workers=1) as loader:
        next(iter(loader))
        workers = running(loader)
        workers[0].suspend()
        start = time.monotonic()
    assert time.monotonic() - start < 1.5
    wait_until_gone(workers, 0)


def test_the_dataset_is_closed_when_its_worker_ends(tmp_path):
    mark = tmp_path / "closed"

    def generate():
        try:
            while True:
                yield 1
        finally:
            mark.write_text("yes")

    with mpwds.MultiLoader(generate, workers=1) as loader:
        next(iter(loader))
    assert mark.read_text() == "yes"


@start_methods
def test_interpreter_exit_ends_workers_without_a_word(script, start_method):
    started = script(program(start_method=start_method, then=""))
    status, output, errors = started.finish()
    assert (status, output, errors) == (0, "running\n", "")


@start_methods
def test_ctrl_c_ends_workers_and_shows_the_trainers_traceback_alone(script, start_method):
    started = script(program(start_method=start_method))
    assert started.line() == "running"
    workers = started.workers()
    started.interrupt()
    status, _, errors = started.finish()
    assert (status, len(workers)) == (-signal.SIGINT, 3 if start_method == "forkserver" else 2)
    assert errors.count("Traceback") == errors.count("KeyboardInterrupt") == 1
    wait_until_gone(workers, 1)


def test_ctrl_c_while_workers_start_is_as_quiet(script):
    for delay_s in (0.02, 0.1, 0.2):
        started = script("import sys; print('go', flush=True)\n" + textwrap.dedent(program()))
        assert started.line() == "go"
        time.sleep(delay_s)
        started.interrupt()
        _, _, errors = started.finish()
        # A worker's traceback would begin in the program that it is started with.
        assert 'Traceback (most recent call last):\n  File "<string>"' not in errors


@start_methods
@pytest.mark.parametrize("size", [1, 50_000])
def test_sigkill_of_the_trainer_leaves_nothing(script, start_method, size, tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    started = script(program(size=size, start_method=start_method))
    assert started.line() == "running"
    workers = started.workers()
    assert len(workers) >= 2
    started.process.kill()
    wait_until_gone(workers, 2)
    assert list(temporary.iterdir()) == []
    assert [name for name in os.listdir("/dev/shm") if "mpwds" in name] == []


def test_sigkill_of_the_trainer_ends_stopped_workers_too(script):
    started = script(program())
    assert started.line() == "running"
    workers = started.workers()
    workers[0].suspend()
    started.process.kill()
    wait_until_gone(workers, 2)


def test_sigkill_of_the_trainer_ends_workers_though_a_fork_of_it_lives_on(script):
    started = script(
        program(then="    child = os.fork()\n    os.write(1, b'%d\\n' % child)\n    time.sleep(60)\n")
    )
    assert started.line() == "running"
    numbers = [int(started.line()) for _ in range(2)]
    fork = psutil.Process(max(numbers))
    workers = [worker for worker in started.workers() if worker != fork]
    started.process.kill()
    try:
        wait_until_gone(workers, 2)
        assert fork.is_running()
    finally:
        fork.kill()


def test_sigkill_of_the_trainer_while_workers_start_leaves_nothing(script):
    for delay_s in (0.0, 0.05, 0.15):
        started = script(
            """
            import mpwds
            loader = mpwds.MultiLoader(lambda: iter(range(10**9)), workers=2, output="numpy")
            print("go", flush=True)
            for _ in loader:
                pass
            """
        )
        assert started.line() == "go"
        time.sleep(delay_s)
        workers = started.workers()
        started.process.kill()
        wait_until_gone(workers, 2)


def test_workers_live_on_when_the_thread_that_started_them_ends():
    loader = mpwds.MultiLoader([1, 2, 3], workers=2)
    first = []
    thread = threading.Thread(target=lambda: first.extend(loader))
    thread.start()
    thread.join()
    pids = loader.worker_pids
    time.sleep(0.7)
    assert (first, list(loader), loader.worker_pids) == ([1, 2, 3], [1, 2, 3], pids)
    loader.close()


def test_a_fork_of_the_trainer_neither_stops_workers_nor_touches_batches():
    loader = mpwds.MultiLoader(lambda: (np.full(20_000, number) for number in range(50)), workers=1)
    iterator = iter(loader)
    held = next(iterator)
    pid = os.fork()
    if pid == 0:
        try:
            del held, iterator
            loader.close()
            with pytest.raises(RuntimeError, match="make a loader of its own here"):
                iter(loader)
            del loader
            gc.collect()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert [int(array[0]) for array in iterator] == list(range(1, 50))
    assert int(held[-1]) == 0
    loader.close()


def test_a_fork_of_the_trainer_cannot_take_its_batches():
    loader = mpwds.MultiLoader(lambda: (np.full(20_000, number) for number in range(20)), workers=1)
    iterator = iter(loader)
    next(iterator)
    pid = os.fork()
    if pid == 0:
        try:
            next(iterator)
        except RuntimeError as error:
            os._exit(0 if "is a fork: make a loader of its own here" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert [int(array[0]) for array in iterator] == list(range(1, 20))
    loader.close()


class Interrupts:
    """Sends this process Ctrl-C again and again, at odd times, while its block runs."""

    def __enter__(self):
        self.sent = 0
        self.going = True
        self.thread = threading.Thread(target=self.send)
        self.thread.start()
        return self

    def send(self):
        times = random.Random(7)
        while self.going:
            time.sleep(times.uniform(0, 0.05))
            self.sent += 1
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def __exit__(self, *exception):
        while self.thread.is_alive():
            with contextlib.suppress(KeyboardInterrupt):
                self.going = False
                self.thread.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_at_any_moment_leaves_nothing_and_the_loader_works_again():
    loaders = []
    caught = 0
    deadline = time.monotonic() + 3
    with Interrupts() as interrupts:
        while time.monotonic() < deadline:
            try:
                loader = mpwds.MultiLoader(endless, workers=2, start_method="fork", timeout=20)
                loaders.append(loader)
                for _ in loader:
                    pass
            except KeyboardInterrupt:
                caught += 1
    assert 10 < caught <= interrupts.sent
    last = loaders[-1]
    assert sum(1 for _ in zip(range(50), last, strict=False)) == 50
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_ctrl_c_is_heard_while_a_dataset_takes_long_to_arrive(script, start_method):
    started = script(
        """
        import sys, time
        import mpwds

        class Slow:
            def __reduce__(self):
                return time.sleep, (30,)

        slow = Slow()
        loader = mpwds.MultiLoader(lambda: iter([slow]), workers=2, output="numpy", start_method=sys.argv[1])
        print("go", flush=True)
        list(loader)
        """,
        start_method,
    )
    assert started.line() == "go"
    time.sleep(0.5)
    workers = started.workers()
    started.interrupt()
    start = time.monotonic()
    status, _, errors = started.finish()
    assert (status, errors.count("Traceback")) == (-signal.SIGINT, 1)
    assert time.monotonic() - start < 3
    wait_until_gone(workers, 1)


def test_forking_works_with_stdout_closed(script):
    started = script(
        """
        import sys
        import mpwds
        sys.stdout.close()
        batches = list(mpwds.MultiLoader([1], workers=1, output="numpy", start_method="fork"))
        print(batches, file=sys.stderr)
        """
    )
    status, _, errors = started.finish()
    assert (status, errors) == (0, "[1]\n")


def test_a_loader_closed_by_another_thread_ends_its_iteration():
    for _ in range(10):
        loader = mpwds.MultiLoader(endless, workers=2, start_method="fork")
        iterator = iter(loader)
        next(iterator)
        closer = threading.Timer(0.02, loader.close)
        closer.start()
        with pytest.raises(RuntimeError, match="the loader was closed"):
            for _ in iterator:
                pass
        closer.join()
        assert loader.worker_pids == []


def test_a_thread_that_iterates_at_interpreter_exit_says_nothing(script):
    started = script(
        """
        import itertools, threading, time
        import mpwds

        def iterate():
            for _ in loader:
                pass

        loader = mpwds.MultiLoader(itertools.count, workers=2, output="numpy")
        threading.Thread(target=iterate, daemon=True).start()
        time.sleep(0.5)
        """
    )
    assert started.finish() == (0, "", "")


def test_a_trainer_that_does_not_ignore_sigpipe_survives_its_workers(script):
    started = script(
        """
        import os, signal, time
        import mpwds
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        loader = mpwds.MultiLoader([1, 2], workers=1, output="numpy")
        list(loader)
        os.kill(loader.worker_pids[0], signal.SIGKILL)
        time.sleep(0.2)
        try:
            list(loader)
        except mpwds.WorkerDied:
            print("told")
        """
    )
    assert started.finish() == (0, "told\n", "")


def test_classes_of_a_script_are_not_written_over_by_what_workers_send(script):
    for start_method in ("spawn", "fork"):
        started = script(
            """
            import sys
            import mpwds

            counter = 0

            class Sample(set):
                seen = 0
                def count(self):
                    global counter
                    counter += 1

            class Bad(Exception):
                raised = 0

            def generate():
                yield Sample()
                raise Bad

            Sample.seen, Bad.raised = 1, 1
            loader = mpwds.MultiLoader(generate, workers=1, output="numpy", start_method=sys.argv[1])
            try:
                for sample in loader:
                    Sample.seen += 1
                    Bad.raised += 1
                    sample.count()
                    assert type(sample) is Sample
            except Bad:
                print(counter, Sample.seen, Bad.raised)
            """,
            start_method,
        )
        assert started.finish() == (0, "1 2 2\n", "")


def test_forked_workers_do_not_write_again_what_the_trainer_had_buffered(script, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    started = script(
        """
        import mpwds
        print("once")
        list(mpwds.MultiLoader([1], workers=3, output="numpy", start_method="fork"))
        """
    )
    assert started.finish() == (0, "once\n", "")


@start_methods
def test_nothing_is_said_with_all_warnings_on(tmp_path, start_method):
    text = (
        "import mpwds\n"
        f"loader = mpwds.MultiLoader([1], workers=2, output='numpy', start_method='{start_method}')\n"
        "list(loader), loader.close(), list(loader)"
    )
    command = [sys.executable, "-W", "error", "-X", "dev", "-c", text]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_needs_no_guard_and_takes_what_a_script_defines(script):
    started = script(
        """
        import dataclasses, sys
        import numpy as np
        import mpwds

        class TooLarge(Exception):
            def __init__(self, number):
                super().__init__(f"{number} is too large")
                self.number = number

        @dataclasses.dataclass
        class Sample:
            image: np.ndarray
            name: str

        class Dataset:
            def __init__(self, count):
                self.samples = [Sample(np.arange(number), str(number)) for number in range(count)]
            def __len__(self):
                return len(self.samples)
            def __getitem__(self, index):
                if index > limit:
                    raise TooLarge(index)
                return self.samples[index]

        limit = 5
        loader = mpwds.MultiLoader(Dataset(6), workers=2, output="numpy")
        print([(type(s) is Sample, s.name, s.image.tolist()) for s in loader][2:4], sys.argv[1:])
        try:
            list(mpwds.MultiLoader(Dataset(9), workers=2, output="numpy"))
        except TooLarge as error:
            print("caught", error.number, error)
        """,
        "--option",
    )
    status, output, errors = started.finish()
    assert (status, errors) == (0, "")
    assert output == "[(True, '2', [0, 1]), (True, '3', [0, 1, 2])] ['--option']\ncaught 6 6 is too large\n"


def test_works_with_few_descriptors_and_without_stdin():
    text = """import mpwds
loader = mpwds.MultiLoader(list(range(40)), workers=20, output="numpy")
print(list(loader) == list(range(40)))"""
    run = subprocess.run(
        ["bash", "-c", f"ulimit -n 256; exec {sys.executable} -c '{text}' 0<&-"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout, run.stderr) == ("True\n", "")


def test_hundred_epochs_and_loaders_leave_memory_and_descriptors_as_they_were():
    def footprint():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(Path("/proc/self/maps").read_text().splitlines())

    dataset = [np.zeros(10_000) for _ in range(4)]

    def run():
        with mpwds.MultiLoader(dataset, workers=1, start_method="fork") as loader:
            for _ in range(20):
                for _ in loader:
                    pass

    run()
    before = footprint()
    for _ in range(5):
        run()
    after = footprint()
    assert after[0] == before[0]
    assert after[1] - before[1] <= 4
