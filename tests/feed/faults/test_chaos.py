"""Servers and workers that are killed, stopped and started at random, and connections that break."""

import contextlib
import os
import random
import signal
import threading
import time

import pytest

import mpwds
from tests.feed.faults.checking import rows, status, undisturbed, warned
from tests.feed.faults.proxy import Proxy
from tests.feed.serving import LONG, ServerProcess, delivered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECONDS = 60 if LONG else 8


class Chaos:
    """Does harm to one server after the other, in a thread, and puts it right again."""

    def __init__(self, servers, proxies, seed):
        self._servers, self._proxies = servers, proxies
        self._dice = random.Random(seed)
        self._ending = threading.Event()
        self.done = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self):
        self._ending.set()
        self._thread.join()

    def _run(self):
        while not self._ending.wait(self._dice.uniform(0.1, 1.5)):
            harm = self._dice.choice([self._kill_worker, self._stop_server, self._kill_server, self._break])
            self.done.append(harm.__name__)
            harm(self._dice.randrange(len(self._servers)))

    def _kill_worker(self, number):
        workers = [worker["pid"] for worker in status(self._servers[number])["workers"] if worker["pid"]]
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._dice.choice(workers), signal.SIGKILL)

    def _stop_server(self, number):
        self._servers[number].signal(signal.SIGSTOP)
        time.sleep(self._dice.uniform(0, 5))
        self._servers[number].signal(signal.SIGCONT)

    def _kill_server(self, number):
        server = self._servers[number]
        if self._dice.random() < 0.5:
            server.kill()
        else:
            assert server.stop() == 0
        self._ending.wait(self._dice.uniform(0, 2))
        server.start_again()

    def _break(self, number):
        self._proxies[number].break_connections()


@pytest.mark.parametrize("loss", ["wait", "move"])
def test_whatever_happens_every_batch_comes_once_and_in_order(loss, memory):
    dataset = rows(pause_s=0.005)
    whole = undisturbed(4, rows(), epochs=1)[0]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(ServerProcess(dataset, workers=2, client_timeout=3.0)) for _ in "ab"]
        proxies = [stack.enter_context(Proxy(server.url)) for server in servers]
        options = {"heartbeat_timeout": 3.0, "on_server_loss": loss, "output": "numpy", **memory}
        loader = stack.enter_context(mpwds.RemoteLoader([proxy.url for proxy in proxies], **options))
        stack.enter_context(warned())
        chaos = Chaos(servers, proxies, seed=f"{loss}{memory}")
        try:
            deadline = time.monotonic() + SECONDS / 4
            while time.monotonic() < deadline or len(chaos.done) < 10:
                loader.set_epoch(0)
                assert delivered(loader) == whole, chaos.done
        finally:
            chaos.end()
