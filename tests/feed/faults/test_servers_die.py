"""Servers that are killed, stopped, ended or started again: every batch comes once, or an error says why."""

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import psutil
import pytest

import mpwds
from tests.feed.faults.checking import assigned, at, losses, rows, undisturbed, wait_for_status, warned
from tests.feed.serving import ROOT, ServerProcess, delivered, free_port
from tests.loader.faults.processes import runs, state, wait_until

SILENCE_S = 3.0
"""After which a server counts as lost: also a busy machine answers within."""


def loader_of(*servers, **options):
    options = {"output": "numpy", "heartbeat_timeout": SILENCE_S, "server_timeout": 600, **options}
    return mpwds.RemoteLoader([server.url for server in servers], **options)


def test_lengths_are_asked_again_of_a_server_that_has_restarted():
    dataset = mpwds.DataPipeline(range(20)).batched(2)
    with ServerProcess(dataset, workers=1) as server, loader_of(server) as loader:
        server.signal(signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            length = pool.submit(len, loader)
            wait_until(lambda: loader._remote.servers._questions, "the question")
            server.start_again()
            assert length.result() == 10


# ---------------------------------------------------------------- on_server_loss="wait"


@pytest.mark.slow
def test_a_server_that_is_killed_and_started_again_goes_on_in_the_middle_of_an_epoch(memory):
    with ServerProcess(rows(), workers=2) as server, loader_of(server, **memory) as loader:
        again = dict.fromkeys([1, 20, 21, 40], server.start_again)
        with warned() as texts:
            assert [delivered(loader, at(again)), delivered(loader)] == undisturbed(2, epochs=2)
    assert 1 <= losses(texts, server.url) <= len(again)


@pytest.mark.slow
def test_a_server_that_is_away_while_an_epoch_begins_is_waited_for():
    with ServerProcess(rows(), workers=2) as server, loader_of(server) as loader:
        server.stop()
        batches = []
        epoch = threading.Thread(target=lambda: batches.append(delivered(loader)))
        with warned() as texts:
            epoch.start()
            wait_until(lambda: loader._remote.servers.connections[0].warned, "the trainer to miss it")
            server.start_again()
            epoch.join()
        assert batches == undisturbed(2)
    assert losses(texts, server.url) == 1
    assert "is lost (it has ended)" in texts[0]


@pytest.mark.slow
def test_a_trainer_that_waits_for_a_server_sleeps():
    with ServerProcess(rows(), workers=1) as server, loader_of(server, server_timeout=4.0) as loader:
        server.stop()
        thread_time = []

        def wait():
            with pytest.raises(mpwds.ServerLost):
                delivered(loader)
            thread_time.append(time.thread_time())

        with warned():
            waiting = threading.Thread(target=wait)
            waiting.start()
            waiting.join()
    assert thread_time[0] < 1


@pytest.mark.slow
def test_a_server_that_is_stopped_and_continued_goes_on(memory):
    with ServerProcess(rows(), workers=2, client_timeout=SILENCE_S) as server:
        with loader_of(server, **memory) as loader, warned() as texts:

            def stop_for_a_while():
                server.signal(signal.SIGSTOP)
                wait_until(lambda: not loader._remote.servers.connections[0].is_up, "the trainer to miss it")
                server.signal(signal.SIGCONT)

            assert delivered(loader, at({10: stop_for_a_while})) == undisturbed(2)[0]
    assert all(server.url in text for text in texts)


@pytest.mark.slow
def test_who_waits_for_a_server_is_told_so_every_few_seconds(monkeypatch):
    monkeypatch.setattr("mpwds.feed.client.connections.SAY_EVERY_S", 0.4)
    monkeypatch.setattr("mpwds.feed.client.remote_worker.SAY_EVERY_S", 0.4)
    with ServerProcess(rows(), workers=2) as server, loader_of(server, server_timeout=4.0) as loader:
        server.stop()
        with pytest.warns(RuntimeWarning) as lost, pytest.raises(mpwds.ServerLost):
            delivered(loader)
        with pytest.warns(RuntimeWarning) as begins, pytest.raises(mpwds.ServerLost):
            delivered(loader)
    texts = [f"{warning.message}" for warning in (*lost, *begins)]
    assert "is lost (it has ended): waiting for it to come back" in texts[0]
    assert len([t for t in texts if t.startswith(f"still waiting for the server {server.url} (it has")]) > 1
    assert len([t for t in texts if t.startswith(f"waiting for the server at {server.url} (it does not")]) > 1
    assert not any("mpwds/" in warning.filename for warning in (*lost, *begins))


def test_a_timeout_bounds_the_wait_for_a_server(monkeypatch):
    monkeypatch.setattr("mpwds.feed.client.connections.SAY_EVERY_S", 0)
    with pytest.warns(RuntimeWarning, match=r"waiting for the server at .* \(.*\), for \d s") as waits:
        with pytest.raises(mpwds.ServerLost, match="no server is ready at .* after 0.5 s"):
            mpwds.RemoteLoader(f"tcp://127.0.0.1:{free_port()}", timeout=0.5)
    assert len(waits) <= 4
    monkeypatch.undo()
    with ServerProcess(rows(), workers=2) as server, loader_of(server, timeout=60) as loader, warned():
        batches, remote = iter(loader), loader._remote
        next(batches)
        server.stop()
        wait_until(lambda: not remote.servers.connections[0].is_up, "the trainer to miss it")
        batches.timeout = 0.5  # from now on
        remote.options = replace(remote.options, timeout=0.5)
        with pytest.raises(mpwds.WorkerTimeout, match=f"on {server.url}, which is lost"):
            list(batches)
        with pytest.raises(mpwds.ServerLost, match="no server is ready at .* after 0.5 s"):
            delivered(loader)


@pytest.mark.slow
def test_a_server_that_does_not_come_back_is_an_error_that_names_it():
    with ServerProcess(rows(), workers=2) as server, loader_of(server, server_timeout=3.0) as loader:
        with warned(), pytest.raises(mpwds.ServerLost, match="did not come back within 3 s") as caught:
            delivered(loader, at({5: server.kill}))
        assert server.url in str(caught.value)
        server.start_again()
        assert len(delivered(loader)) == len(undisturbed(2)[0])  # and the next epoch begins


STEP_THAT_HOLDS_THE_LOCK = """
import ctypes, sys, warnings
import mpwds
warnings.simplefilter("ignore")
with mpwds.RemoteLoader(sys.argv[1], output="numpy", prefetch=200, shared_memory=False) as loader:
    got = []
    for number, batch in enumerate(loader):
        got.append(batch[0])
        if number in (200, 600, 1000):
            print("holds the lock", flush=True)
            ctypes.PyDLL(None).usleep(4_000_000)
    print(*got)
"""


@pytest.mark.slow
def test_a_server_that_dies_during_a_step_that_holds_the_interpreter_lock_loses_nothing():
    """The thread that receives stands still, perhaps in the middle of a message."""
    dataset = mpwds.DataPipeline(range(40_000)).map(lambda number: np.full(20, number))
    with ServerProcess(dataset, workers=2) as server:
        command = [sys.executable, "-c", STEP_THAT_HOLDS_THE_LOCK, server.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as trainer:
            for _ in range(3):
                assert trainer.stdout.readline() == "holds the lock\n"
                time.sleep(0.5)
                server.start_again()
            got = trainer.stdout.read().split()
        assert trainer.returncode == 0
    assert got == list(map(str, range(40_000)))


# ---------------------------------------------------------------- "raise" and "move"


@pytest.mark.slow
def test_a_loss_is_an_error_if_that_is_wanted():
    with ServerProcess(rows(), workers=2) as server, loader_of(server, on_server_loss="raise") as loader:
        with pytest.raises(mpwds.ServerLost, match="in the middle of an epoch: continue from the last state"):
            delivered(loader, at({5: server.kill}))
        state = loader.state_dict()
        server.start_again()
        loader.load_state_dict(state)
        got = sum(worker["delivered"] for worker in state["streams"])
        assert delivered(loader) == undisturbed(2)[0][got:]


def test_a_server_that_is_lost_before_the_first_epoch_keeps_its_part():
    dataset = rows()
    with ServerProcess(dataset, workers=1) as one, ServerProcess(dataset, workers=1) as other:
        with loader_of(one, other, on_server_loss="raise") as loader:
            lost = loader._remote.servers.connections[0]
            one.kill()
            wait_until(lambda: not lost.is_up, "the trainer to miss it")
            with pytest.raises(mpwds.ServerLost, match=f"the server {one.url} is lost"):
                list(loader)


@pytest.mark.parametrize("in_order", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_part_of_a_lost_server_moves_to_the_others(memory, in_order):
    dataset = rows()
    with ServerProcess(dataset, workers=2) as one, ServerProcess(dataset, workers=1) as other:
        options = {"on_server_loss": "move", "in_order": in_order, **memory}
        with loader_of(one, other, **options) as loader, warned():
            as_wanted = list if in_order else sorted
            expected = [as_wanted(epoch) for epoch in undisturbed(3, epochs=3)]
            assert as_wanted(delivered(loader, at({10: one.kill}))) == expected[0]
            for connection in loader._remote.servers.connections:  # from now on, none is lost
                connection.options = replace(connection.options, heartbeat_timeout=120)
            assert as_wanted(delivered(loader)) == expected[1]  # on the server that is left
            one.start_again()
            wait_until(lambda: loader._remote.servers.connections[0].is_up, "the trainer to see it")
            assert as_wanted(delivered(loader)) == expected[2]
            wait_for_status(one, lambda figures: len(assigned(figures)) == 2, "its workers to run again")


@pytest.mark.slow
def test_parts_move_to_and_fro(memory):
    dataset = rows()
    with ServerProcess(dataset, workers=1) as one, ServerProcess(dataset, workers=1) as other:
        with loader_of(one, other, on_server_loss="move", **memory) as loader, warned() as texts:
            expected = undisturbed(2, epochs=4)
            for epoch in range(4):
                lost = (one, other)[epoch % 2]
                assert delivered(loader, at({10: lost.kill})) == expected[epoch]
                lost.start_again()
                links = loader._remote.servers.connections
                wait_until(lambda links=links: all(link.is_up for link in links), "both servers to be back")
    assert f"the server {one.url} is lost" in texts[0]
    assert f"{other.url} takes over the part of worker 0 from batch" in texts[0]


# ---------------------------------------------------------------- beginning and end


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_told_to_end_says_so_and_leaves_nothing(number, memory):
    with ServerProcess(rows(), workers=2) as server, loader_of(server, **memory) as loader:

        def end():
            server.signal(number)
            assert server.process.wait(600) == 0
            wait_until(
                lambda: loader._remote.servers.connections[0].why == "it has ended", "the trainer to hear it"
            )
            server.start_again()

        with warned():
            assert delivered(loader, at({7: end})) == undisturbed(2)[0]
        assert "Traceback" not in server.log


def test_what_a_server_had_sent_when_it_ends_arrives():
    with ServerProcess(rows(batches=3), workers=1) as server:
        options = {"shared_memory": False, "prefetch": 8, "heartbeat_timeout": 120}
        with loader_of(server, on_server_loss="raise", **options) as loader:
            batches = iter(loader)
            next(batches)
            wait_for_status(server, lambda now: assigned(now)[0]["state"] == "idle", "all to be sent")
            assert server.stop() == 0
            assert len(list(batches)) == 2


def test_a_trainer_may_be_started_before_its_servers():
    url = f"tcp://127.0.0.1:{free_port()}"
    made = []

    def train():
        with mpwds.RemoteLoader(url, output="numpy", server_timeout=600) as loader:
            made.append(delivered(loader))

    trainer = threading.Thread(target=train)
    trainer.start()
    with ServerProcess(rows(), url, workers=2):
        trainer.join()
    assert made == undisturbed(2)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_a_server_that_is_started_twice_says_so_and_the_first_goes_on(scheme, tmp_path):
    url = f"ipc://{tmp_path}/feed" if scheme == "ipc" else None
    with ServerProcess(rows(), url, workers=2) as server, loader_of(server) as loader:
        with pytest.raises(mpwds.MpwdsError, match="cannot serve at .*another server") as caught:
            mpwds.Server(rows(), server.url)
        assert server.url in str(caught.value)
        assert delivered(loader) == undisturbed(2)[0]
    assert list(tmp_path.iterdir()) == []


def test_a_server_over_ipc_that_was_killed_takes_its_files_again_and_removes_them_at_its_end(
    tmp_path, memory
):
    with ServerProcess(rows(), f"ipc://{tmp_path}/feed", workers=2) as server:

        def start_again():
            server.kill()
            assert {path.name for path in tmp_path.iterdir()} == {"feed", "feed.memory"}
            server.start_again()

        with loader_of(server, **memory) as loader, warned():
            assert delivered(loader, at({10: start_again})) == undisturbed(2)[0]
    assert list(tmp_path.iterdir()) == []


def test_workers_end_with_a_server_that_is_killed():
    with ServerProcess(rows(), workers=2) as server, loader_of(server) as loader:
        next(batches := iter(loader))
        pids = [child.pid for child in psutil.Process(server.pid).children(recursive=True)]
        server.kill()
        wait_until(lambda: not any(map(runs, pids)), "its workers to end")
        del batches
    assert not state(server.pid)
