"""Trainers that are killed, stopped or closed free their workers, and others wait for these."""

import contextlib
import signal
import subprocess
import sys
import threading

import pytest

import mpwds
from tests.feed.faults.checking import assigned, rows, status, undisturbed, wait_for_status
from tests.feed.faults.trainers import Trainer
from tests.feed.serving import ROOT, ServerProcess, delivered, turned_away
from tests.loader.faults.processes import wait_until, wait_until_gone

SILENCE_S = 3.0


def clients_of(server):
    return len(status(server)["clients"])


@pytest.mark.slow
def test_a_trainer_that_is_killed_frees_its_workers(memory):
    with ServerProcess(rows(), workers=2, client_timeout=SILENCE_S) as server:
        with Trainer(server.url, **memory) as trainer:
            trainer.batch()
            pids = [worker["pid"] for worker in status(server)["workers"]]
            trainer.signal(signal.SIGKILL)
            wait_for_status(server, lambda figures: not figures["clients"], "the server to miss it")
        wait_until_gone(pids)
        with mpwds.RemoteLoader(server.url, workers=2, output="numpy", **memory) as loader:
            assert delivered(loader) == undisturbed(2)[0]
        assert "is silent: its workers are free" in server.log


@pytest.mark.slow
def test_a_trainer_that_is_stopped_for_long_frees_its_workers_and_goes_on_later(memory):
    with ServerProcess(rows(), workers=2, client_timeout=SILENCE_S) as server:
        with Trainer(server.url, **memory) as trainer:
            got = [trainer.batch()]
            trainer.signal(signal.SIGSTOP)
            wait_for_status(server, lambda figures: not figures["clients"], "the server to miss it")
            assert assigned(status(server)) == []
            trainer.signal(signal.SIGCONT)
            assert got + trainer.rest() == undisturbed(2)[0]


@pytest.mark.slow
def test_a_trainer_that_waits_gets_the_workers_of_one_that_leaves():
    with ServerProcess(rows(), workers=2) as server:
        with mpwds.RemoteLoader(server.url, output="numpy") as first:
            next(iter(first))
            waiting = []

            def train():
                with mpwds.RemoteLoader(server.url, output="numpy") as second:
                    waiting.append(delivered(second))

            thread = threading.Thread(target=train)
            thread.start()
            assert server.url in str(turned_away(server.url, "it has 0 of 2 workers free"))
            assert waiting == []
        thread.join()
        assert waiting == undisturbed(2)


def test_a_trainer_that_ends_after_its_server_has_restarted_says_nothing_wrong():
    with ServerProcess(rows(), workers=2) as server:
        with mpwds.RemoteLoader(server.url, output="numpy") as loader:
            next(iter(loader))
            server.start_again()
            wait_until(lambda: clients_of(server) == 1, "the trainer to come back")
        wait_until(lambda: clients_of(server) == 0, "the server to hear that it left")
        assert "malformed" not in status(server)["dropped"]


@pytest.mark.slow
def test_two_ranks_of_a_job_share_the_workers_of_all_servers(memory):
    dataset = rows()
    with ServerProcess(dataset, workers=2) as one, ServerProcess(dataset, workers=2) as other:
        urls = f"{{{one.url},{other.url}}}"
        ranks = [{"RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
        with Trainer(urls, environment=ranks[0], **memory) as first:
            with Trainer(urls, environment=ranks[1], **memory) as second:
                got = [first.rest(), second.rest()]
    for rank, environment in enumerate(ranks):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            assert got[rank] == undisturbed(2)[0]
    assert not set(got[0]) & set(got[1])


def test_a_trainer_that_leaves_properly_frees_its_workers_at_once():
    with ServerProcess(rows(), workers=2, client_timeout=3600.0) as server:
        with mpwds.RemoteLoader(server.url, output="numpy") as loader:
            next(iter(loader))
        wait_for_status(server, lambda figures: not figures["clients"], "it to leave")
        assert assigned(status(server)) == []


# ---------------------------------------------------------------- the trainer's own process


@contextlib.contextmanager
def program(url, statement):
    """A program with a ``loader`` of a URL, which runs a statement and ends."""
    text = (
        "import mpwds\nfrom mpwds.feed.client import connections, remote_worker\n"
        "connections.SAY_EVERY_S = remote_worker.SAY_EVERY_S = 600\n"
        f"loader = mpwds.RemoteLoader({url!r}, output='numpy', heartbeat_timeout=120)\n{statement}\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-W", "error", "-c", text], cwd=ROOT, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def test_ctrl_c_inside_next_ends_the_loader_and_frees_the_workers():
    with ServerProcess(rows(pause_s=30), workers=1, client_timeout=3600.0) as server:
        with program(server.url, "list(loader)") as trainer:
            wait_for_status(server, lambda figures: figures["workers"], "the trainer to wait for a batch")
            trainer.send_signal(signal.SIGINT)
            errors = trainer.communicate(timeout=600)[1]
        assert trainer.returncode == -signal.SIGINT
        assert errors.strip().endswith("KeyboardInterrupt")
        wait_for_status(server, lambda figures: not figures["clients"], "it to leave")


@pytest.mark.parametrize("statement", ["", "next(batches := iter(loader))", "raise SystemExit(3)"])
def test_a_program_that_never_closes_its_loader_ends_quietly(statement):
    with ServerProcess(rows(), workers=1, client_timeout=3600.0) as server:
        with program(server.url, statement) as trainer:
            output, errors = trainer.communicate(timeout=600)
        assert (trainer.returncode, output, errors) == (3 if "Exit" in statement else 0, "", "")
        wait_for_status(server, lambda figures: not figures["clients"], "it to leave")


def test_a_fork_of_the_trainer_disturbs_nothing():
    text = """if True:
        import os
        from tests.feed.serving import bits
        got, children = [], []
        for batch in loader:
            got.append(bits(batch))
            if len(got) in (5, 20):
                child = os.fork()
                if child == 0:
                    try:
                        next(iter(loader))
                    except RuntimeError as error:
                        assert "fork" in str(error)
                        loader.close()
                        del loader
                        raise SystemExit(7)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        print(*got)
    """
    with ServerProcess(rows(), workers=2) as server, program(server.url, text) as trainer:
        output, errors = trainer.communicate(timeout=600)
        assert errors == ""
        assert output.split() == undisturbed(2)[0]


def test_signals_that_a_program_handles_leave_no_threads_or_descriptors_of_what_it_closes():
    script = """if True:
        import os, signal, sys, mpwds
        from mpwds.feed.status_client import StatusClient

        def possessions():
            return [len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task")]

        def use():
            with mpwds.RemoteLoader(sys.argv[1], output="numpy", shared_memory=False) as loader:
                next(iter(loader))
            with StatusClient([sys.argv[1]], timeout=120) as client:
                client.status()
            with mpwds.Server(range(3), "tcp://127.0.0.1:0"):
                pass
            mpwds.tensorcom.Connection("zpub://127.0.0.1:0").close()

        use()
        before = possessions()
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
        for _ in range(10):
            use()
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(before, possessions())
    """
    with ServerProcess(rows(), workers=1) as server:
        words = [sys.executable, "-c", script, server.url]
        ran = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    before, after = ran.stdout.split("] [")
    assert before[1:] == after.strip()[:-1]
