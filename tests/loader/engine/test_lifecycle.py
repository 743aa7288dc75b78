"""Workers end when their trainer ends, however it ends, and leave nothing: no process, file or memory."""

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mpwds
from mpwds.loader.launching import forkserver
from mpwds.sharedmem import segment
from tests.loader.faults.processes import children, runs, wait_until_gone
from tests.marks import slow
from tests.open_files import descriptors

start_methods = pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])


def endless():
    while True:
        yield np.zeros(20_000)


def test_workers_end_when_the_loop_raises():
    with pytest.raises(ZeroDivisionError), mpwds.MultiLoader(endless, workers=2) as loader:
        for _ in loader:
            workers = loader.worker_pids
            1 / 0
    assert not any(map(runs, workers))


def test_workers_end_when_the_loop_over_a_loader_without_a_name_is_left():
    forkserver.ready([])
    others = children(recursive=True)
    for number, _ in enumerate(mpwds.MultiLoader(endless, workers=2)):
        workers = children(recursive=True) - others
        if number == 3:
            break
    gc.collect()
    assert len(workers) == 2
    wait_until_gone(workers)


def test_workers_end_when_loader_and_iterator_are_deleted():
    loader = mpwds.MultiLoader(endless, workers=2)
    iterator = iter(loader)
    next(iterator)
    workers = loader.worker_pids
    del loader
    next(iterator)
    del iterator
    gc.collect()
    wait_until_gone(workers)


def test_the_dataset_is_closed_when_its_worker_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("mpwds.loader.messages.protocol.GRACE_S", 120)
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


@pytest.mark.parametrize("seconds", ["0.05", *slow("0", "0.02", "0.1", "0.5")])
def test_a_thread_that_iterates_at_interpreter_exit_says_nothing(seconds, program):
    started = program(
        """
        import itertools, sys, threading, time
        import mpwds

        def iterate():
            for _ in loader:
                pass

        loader = mpwds.MultiLoader(itertools.count, workers=2, output="numpy")
        threading.Thread(target=iterate, daemon=True).start()
        time.sleep(float(sys.argv[1]))
        """,
        seconds,
    )
    assert started.finish() == (0, "", "")


def test_classes_of_a_script_are_not_written_over_by_what_workers_send(program):
    for start_method in ("spawn", "fork"):
        started = program(
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


def test_forked_workers_do_not_write_again_what_the_trainer_had_buffered(program):
    started = program(
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


def test_needs_no_guard_and_takes_what_a_script_defines(program):
    started = program(
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


@pytest.mark.parametrize(("start_method", "most"), [("fork", 0), ("forkserver", 1_000_000)])
def test_workers_for_which_there_is_no_shared_memory_leave_no_descriptor(start_method, most, monkeypatch):
    def full(descriptor, offset, nbytes):
        if nbytes > most:
            raise mpwds.SharedMemoryError("no memory")

    forkserver.ready(["numpy"])
    loader = mpwds.MultiLoader([np.zeros(200_000), 2], workers=2, start_method=start_method)
    before = descriptors()
    with monkeypatch.context() as patched:
        patched.setattr(segment, "commit", full)
        with pytest.raises(mpwds.SharedMemoryError, match="no memory"):
            iter(loader)
    assert not descriptors() - before
    assert len(list(loader)) == 2
    loader.close()


def test_hundred_epochs_and_loaders_leave_memory_and_descriptors_as_they_were():
    def footprint():
        gc.collect()
        return descriptors(), len(Path("/proc/self/maps").read_text().splitlines())

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
    assert not after[0] - before[0]
    assert after[1] - before[1] <= 4
