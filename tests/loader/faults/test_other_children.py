"""A trainer with children of its own, signals of its own, or no terminal: workers do not get in its way."""

import signal

import pytest

from tests.loader.faults.processes import runs, wait_until_gone
from tests.loader.faults.programs import with_loader

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["spawn", "fork", "forkserver", "DataLoader"])
def test_a_trainer_may_ignore_the_end_of_its_children(program, kind):
    text = with_loader("""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with nothing_left():
        run(run(loader())).close()
    print("whole")
""")
    assert program(text, kind).finish() == (0, "whole\n", "")


@pytest.mark.parametrize("kind", ["fork", "forkserver", "DataLoader"])
def test_a_trainer_may_reap_all_of_its_children_itself(program, kind):
    text = with_loader("""
    def reap(*_):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass

    signal.signal(signal.SIGCHLD, reap)
    with nothing_left():
        run(run(loader())).close()
    print("whole")
""")
    assert program(text, kind).finish() == (0, "whole\n", "")


@pytest.mark.parametrize("kind", ["spawn", "fork", "forkserver"])
def test_a_worker_that_the_trainer_reaped_itself_is_gone_for_an_unknown_reason(program, kind):
    text = with_loader("""
    def generate():
        yield 1
        os.kill(os.getpid(), signal.SIGKILL)

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        list(loader(generate))
    except mpwds.WorkerDied as error:
        print(error.exitcode)
""")
    expected = "-9" if kind == "forkserver" else "None"
    assert program(text, kind).finish() == (0, f"{expected}\n", "")


@pytest.mark.parametrize("kind", ["spawn", "DataLoader"])
def test_programs_that_the_training_loop_starts_are_not_disturbed(program, kind):
    text = with_loader("""
    statuses = []
    loading = loader()
    for number, array in enumerate(loading):
        assert int(array[-1]) == number
        child = subprocess.Popen(["sh", "-c", f"exit {number}"])
        statuses.append(child.wait())
        assert subprocess.run(["cat"], input="words", capture_output=True, text=True).stdout == "words"
    print(statuses == list(range(12)))
""")
    assert program(text, kind).finish() == (0, "True\n", "")


@pytest.mark.parametrize("kind", ["spawn", "fork"])
def test_a_program_that_outlives_its_trainer_keeps_no_worker_alive(program, kind):
    text = with_loader("""
    loading = loader(endless)
    next(iter(loading))
    print(*loading.worker_pids, flush=True)
    child = subprocess.Popen(["sleep", "600"], close_fds=False, stdin=-3, stdout=-3, stderr=-3)
    print(child.pid, flush=True)
    time.sleep(600)
""")
    running = program(text, kind)
    workers, child = map(int, running.line().split()), int(running.line())
    running.signal(signal.SIGKILL)
    wait_until_gone(list(workers))
    assert runs(child)
    running.end()


@pytest.mark.parametrize("kind", ["spawn", "fork"])
def test_a_trainer_may_be_a_daemon(program, kind, tmp_path):
    text = with_loader("""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    for descriptor in range(3):
        os.close(descriptor)
    run(loader()).close()
    open(sys.argv[2], "w").close()
""")
    done = tmp_path / "done"
    assert program(text, kind, str(done)).finish() == (0, "", "")
    assert done.exists()


@pytest.mark.parametrize("kind", ["spawn", "fork", "DataLoader"])
def test_an_exception_out_of_a_signals_handler_ends_the_iteration_and_its_workers(program, kind):
    text = with_loader("""
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    class Slow:
        def __len__(self):
            return 12
        def __getitem__(self, index):
            if index > 3:
                time.sleep(600)
            return numbers[index]

    signal.signal(signal.SIGALRM, ring)
    with nothing_left():
        loading = loader(Slow())
        iterator = iter(loading)
        for _ in range(4):
            next(iterator)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            next(iterator)
        except Alarm:
            print("rung")
        if hasattr(iterator, "worker_pids"):
            iterator.close()
        else:
            loading.close()
        del loading, iterator
    run(loader()).close()
""")
    assert program(text, kind).finish() == (0, "rung\n", "")


@pytest.mark.parametrize("kind", ["fork", "spawn"])
def test_signals_that_do_not_raise_disturb_nothing(program, kind):
    text = with_loader("""
    rung = []
    signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    with nothing_left():
        for _ in range(3):
            run(loader()).close()
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(len(rung) > 3)
""")
    assert program(text, kind).finish() == (0, "True\n", "")


def test_ctrl_c_that_python_swallows_in_a_users_finalizer_loses_no_block(program):
    text = with_loader("""
    class Interrupting:
        def __init__(self, array):
            self.array = array
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def train(loading):
        for number, array in enumerate(loading):
            if number == 50:
                return "went on"
            Interrupting(array)

    with loader(endless) as loading:
        print(train(loading))
""")
    status, output, errors = program(text, "fork").finish()
    assert (status, output) == (0, "went on\n")
    assert "mpwds" not in errors
