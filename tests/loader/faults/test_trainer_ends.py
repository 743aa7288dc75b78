"""The trainer ends, in whatever way and at whatever moment: so do its workers, and nothing is left."""

import os
import random
import signal

import pytest

from tests.loader.faults.processes import runs, wait_until_gone
from tests.marks import slow

MULTI = 'mpwds.MultiLoader(Numbers({size}), workers=2, start_method="%s", output="numpy")'
LOADERS = {
    "spawn": MULTI % "spawn",
    "fork": MULTI % "fork",
    "forkserver": MULTI % "forkserver",
    "DataLoader": "mpwds.DataLoader(Numbers({size}), 4, num_workers=2)",
}
loaders = pytest.mark.parametrize("kind", ["fork", *slow("spawn", "forkserver", "DataLoader")])
multi_loaders = pytest.mark.parametrize("kind", ["fork", *slow("spawn", "forkserver")])

PROGRAM = """
    import os, signal, sys, time
    import numpy as np
    import mpwds

    class Numbers:
        def __init__(self, size):
            self.size = size
        def __len__(self):
            return 10**6
        def __getitem__(self, index):
            return np.full(self.size, index)

    def make():
        return {loader}
"""
RUNNING = """
    loader = make()
    iterator = iter(loader)
    for _ in range(10):
        batch = next(iterator)
    print("running", flush=True)
"""
# In one long sleep, a signal that comes just before the system call would be heard at its end.
WAITING = RUNNING + "    while True:\n        time.sleep(0.05)\n"


def text(kind, then, size=50_000):
    return PROGRAM.format(loader=LOADERS[kind].format(size=size)) + then


def waiting(program, kind, size=50_000):
    """A program whose loader runs, which waits."""
    running = program(text(kind, WAITING, size))
    assert running.line() == "running"
    return running


@multi_loaders
def test_the_interpreters_exit_ends_workers_without_a_word(program, kind):
    assert program(text(kind, RUNNING)).finish() == (0, "running\n", "")


@loaders
def test_ctrl_c_ends_workers_and_shows_the_trainers_traceback_alone(program, kind):
    running = waiting(program, kind)
    running.interrupt()
    status, _, errors = running.finish()
    assert (status, errors.count("Traceback"), errors.count("KeyboardInterrupt")) == (-signal.SIGINT, 1, 1)


HANDLING = """
    heard = []
    for number in map(int, sys.argv[1:]):
        signal.signal(number, lambda *_: heard.append(1))
    loader = make()
    count = 0
    for batch in loader:
        if count % 10 == 0 and count < 10 * len(sys.argv[1:]):
            os.killpg(0, int(sys.argv[1 + count // 10]))
        count += 1
        if count == 100:
            print(len(heard), flush=True)
            break
    os.kill(os.getpid(), signal.SIGKILL)
"""
JOBS = [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]


@loaders
def test_workers_outlive_signals_to_the_whole_job_that_the_trainer_handles(program, kind):
    running = program(text(kind, HANDLING), *map(str, map(int, JOBS)))
    assert running.finish() == (-signal.SIGKILL, "6\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, *slow(*JOBS[1:3], *JOBS[4:])])
def test_signals_that_end_the_trainer_end_its_workers(program, number):
    running = waiting(program, "fork")
    os.killpg(running.process.pid, number)
    assert running.finish() == (-number, "", "")


@pytest.mark.parametrize("kind", ["spawn", "fork", *slow("forkserver", "DataLoader")])
def test_a_killed_trainer_leaves_nothing(program, kind):
    running = waiting(program, kind)
    assert len(running.descendants()) >= 2
    running.signal(signal.SIGKILL)
    assert running.finish() == (-signal.SIGKILL, "", "")


@pytest.mark.slow
@pytest.mark.parametrize(("then", "status"), [("", 0), ("    os.kill(os.getpid(), signal.SIGKILL)", -9)])
def test_a_trainer_that_ends_leaves_no_fork_server_that_waits_for_another_loader(program, then, status):
    ends = """
    from mpwds.loader.launching import forkserver
    list(mpwds.DataLoader(range(4), num_workers=1))
    assert not forkserver._current.is_gone
"""
    assert program(PROGRAM.format(loader="None") + ends + then).finish() == (status, "", "")


def test_a_killed_trainer_whose_batches_are_small_leaves_nothing(program):
    running = waiting(program, "fork", size=1)
    running.signal(signal.SIGKILL)
    assert running.finish() == (-signal.SIGKILL, "", "")


def test_a_killed_trainer_leaves_no_stopped_worker(program):
    running = waiting(program, "forkserver")
    for pid in running.descendants():
        os.kill(pid, signal.SIGSTOP)
    running.signal(signal.SIGKILL)
    assert running.finish() == (-signal.SIGKILL, "", "")


@pytest.mark.parametrize("kind", ["spawn", "forkserver"])
def test_a_killed_trainer_leaves_no_worker_though_a_fork_of_it_lives_on(program, kind):
    fork = """
    child = os.fork()
    os.write(1, b"%d\\n" % child)
    time.sleep(600)
"""
    running = program(text(kind, RUNNING + fork))
    assert running.line() == "running"
    child = max(int(running.line()) for _ in range(2))
    others = [pid for pid in running.descendants() if pid != child]
    running.signal(signal.SIGKILL)
    wait_until_gone(others)
    assert runs(child)
    os.kill(child, signal.SIGKILL)
    assert running.finish() == (-signal.SIGKILL, "", "")


TURNING = """
    number = int(sys.argv[1])
    for delay_s in map(float, sys.argv[2:]):
        running, told = os.pipe()
        trainer = os.fork()  # each goes on without importing everything again
        if trainer == 0:
            os.setsid()
            loader = make()
            os.write(told, b"x")
            while True:
                for count, batch in enumerate(loader):
                    if count == 3:
                        break
                if isinstance(loader, mpwds.MultiLoader):
                    loader.close()
        os.read(running, 1)
        time.sleep(delay_s)
        if number == signal.SIGINT:
            os.killpg(trainer, number)
        else:
            os.kill(trainer, number)
        assert os.waitstatus_to_exitcode(os.waitpid(trainer, 0)[1]) == -number
        os.close(running), os.close(told)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
@loaders
def test_trainers_that_a_signal_ends_while_they_start_iterate_and_close_leave_nothing(program, kind, number):
    times = random.Random(f"{os.environ.get('MPWDS_FAULT_SEED', '7')}/{kind}/{number}")
    rounds = int(os.environ.get("MPWDS_FAULT_ROUNDS", "2"))
    delays = [f"{times.uniform(0, 0.5):.3f}" for _ in range(rounds)]
    size = times.choice([1, 50_000])
    status, _, errors = program(text(kind, TURNING, size), str(int(number)), *delays).finish()
    if number == signal.SIGINT:
        # A worker's traceback would begin in the program that it is started with.
        assert 'Traceback (most recent call last):\n  File "<string>"' not in errors
        assert (status, errors.count("Traceback")) == (0, rounds)
    else:
        assert (status, errors) == (0, "")
