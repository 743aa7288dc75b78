"""Processes of tests that are forks of one that has imported everything: they start a second sooner."""

import multiprocessing
import os
import signal
import subprocess
from multiprocessing import forkserver
from multiprocessing.connection import Connection


def prepare():
    """Starts the process that is forked, unless it runs."""
    forkserver.set_forkserver_preload(["tests.feed.run_server", "tests.feed.serving", "pytest"])
    forkserver.ensure_running()


class ForkedProcess:
    """``function(argument)`` in a process of its own, with what tests use of ``subprocess.Popen``."""

    def __init__(self, function, argument, log):
        output, its_output = os.pipe()
        self.stdout, self.returncode = open(output, "rb"), None  # noqa: SIM115  # closed by who reads it
        ends = Connection(its_output, readable=False), Connection(os.dup(log.fileno()), readable=False)
        context = multiprocessing.get_context("forkserver")
        arguments = function, argument, dict(os.environ), *ends
        self._process = context.Process(target=_run_forked, args=arguments, daemon=True)
        self._process.start()
        self.pid = self._process.pid
        for end in ends:
            end.close()

    def poll(self):
        if self.returncode is None and self._process.exitcode is not None:
            self.returncode = self._process.exitcode
            self._process.close()
        return self.returncode

    def wait(self, timeout=None):
        if self.poll() is None:
            self._process.join(timeout)
            if self.poll() is None:
                raise subprocess.TimeoutExpired(self.pid, timeout)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def _run_forked(function, argument, environment, *ends):
    os.environ.clear()
    os.environ.update(environment)
    for number, end in enumerate(ends, 1):
        os.dup2(end.fileno(), number)
        end.close()
    function(argument)
