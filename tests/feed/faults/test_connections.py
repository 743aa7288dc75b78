"""Connections that break, many of them, and many trainers at once."""

import contextlib
import threading
import time
from collections import deque

import psutil
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

import mpwds
from mpwds.feed.client.connection import RemoteOptions, ServerConnection
from tests.feed.faults.checking import (
    assigned,
    at,
    losses,
    rows,
    status,
    undisturbed,
    wait_for_status,
    warned,
)
from tests.feed.faults.proxy import Proxy
from tests.feed.serving import LONG, ServerProcess, delivered, free_port

MB = 1 << 20


@pytest.mark.slow
def test_a_connection_that_breaks_in_the_middle_of_messages_loses_nothing(memory):
    with ServerProcess(rows(), workers=2) as server, Proxy(server.url) as proxy:
        with mpwds.RemoteLoader(proxy.url, output="numpy", **memory) as loader, warned() as texts:
            breaks = dict.fromkeys([1, 2, 20, 30, 45], proxy.break_connections)
            got = [delivered(loader, at(breaks)), delivered(loader, at(breaks))]
            assert got == undisturbed(2, epochs=2)
    assert losses(texts, proxy.url) <= 2 * len(breaks)


@pytest.mark.slow
def test_many_trainers_share_a_server(memory):
    count, dataset = 24, rows(batches=12)
    with ServerProcess(dataset, workers=count) as server:
        got = [None] * count

        def train(number):
            options = {"workers": 1, "output": "numpy", "seed": number % 3, **memory}
            with mpwds.RemoteLoader(server.url, **options) as loader:
                got[number] = [delivered(loader) for _ in range(2)]

        threads = [threading.Thread(target=train, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for_status(server, lambda figures: not figures["clients"], "all to leave")
    expected = [undisturbed(1, dataset, epochs=2, seed=seed) for seed in range(3)]
    assert got == [expected[number % 3] for number in range(count)]


@pytest.mark.slow
@pytest.mark.timeout(1200 if LONG else 900)
def test_coming_and_going_leaves_nothing_in_server_and_trainer(memory):
    times = 10_000 if LONG else 300
    ours = psutil.Process()
    with ServerProcess(rows(batches=2, size=10), workers=2) as server:
        theirs = psutil.Process(server.pid)

        def come_and_go(times, trains):
            for _ in range(times):
                with mpwds.RemoteLoader(server.url, workers=1, output="numpy", **memory) as loader:
                    if trains:
                        assert len(delivered(loader)) == 2

        def figures():
            wait_for_status(server, lambda figures: not figures["clients"], "all to leave")
            wait_for_status(server, lambda figures: not assigned(figures), "all workers to end")
            descriptors = ours.num_fds(), theirs.num_fds()
            return descriptors, [process.memory_info().rss for process in (ours, theirs)]

        come_and_go(times // 5, trains=False)
        come_and_go(3, trains=True)
        descriptors, before = figures()
        come_and_go(times, trains=False)
        come_and_go(3, trains=True)
        deadline = time.monotonic() + 600  # for workers that have been told to end
        after_descriptors, after = figures()
        while any(now > then + 2 for now, then in zip(after_descriptors, descriptors, strict=True)):
            assert time.monotonic() < deadline, (after_descriptors, descriptors)
            time.sleep(0.1)
            after_descriptors, after = figures()
        assert all(now - then < 10 * MB for now, then in zip(after, before, strict=True))
        assert status(server)["dropped"] == {}


def test_what_is_said_to_a_server_that_is_away_does_not_reach_it_later():
    url = f"tcp://127.0.0.1:{free_port()}"
    with (
        zmq.Context() as context,
        context.socket(zmq.ROUTER) as router,
        contextlib.closing(
            ServerConnection(url, None, (0, 1), RemoteOptions(url), context, bytearray, deque())
        ) as connection,
    ):
        assert not connection.send(b"to nobody")
        router.bind(url)
        router.rcvtimeo = 30_000
        while not connection.is_connected:
            assert connection.breaks.poll(30_000)
            connection.note_handshake(recv_monitor_message(connection.breaks)["event"])
        assert connection.send(b"to the server")
        assert router.recv_multipart()[1:] == [b"to the server"]
