"""What a trainer asks of a process that forks workers: its answers, and the ends of the workers."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from mpwds.errors import MpwdsError
from mpwds.loader.processes import WorkerProcess

STOPPED_S = 5.0
"""How long such a process may be stopped while it is asked for something, before it is killed."""

_LOOK_EVERY_S = 0.25
_EXIT_WAIT_S = 5.0


def receive(
    server: socket.socket, nbytes: int, process: WorkerProcess, has_come: Callable[[], bool] = lambda: False
) -> bytes:
    """The next answer. One that is at work is waited for: what it imports may take long.

    One that is stopped would never answer. As a signal that stops all processes of a job wakes them again one
    by one, what counts is how often it was found stopped, not how much time has passed.

    Args:
        server: The socket it answers on.
        nbytes: The longest answer.
        process: The process.
        has_come: Whether the answer has come another way: a finalizer may run in the middle of this, ask
            something as well, and receive what comes until it has its own answer. Nothing is returned then.

    Raises:
        MpwdsError: It is gone, or was stopped for ``STOPPED_S``, and has been killed for that.
    """
    answered = select.poll()
    answered.register(server, select.POLLIN)
    patience_s = STOPPED_S
    while not has_come():
        if answered.poll(_LOOK_EVERY_S * 1000):
            try:
                reply = server.recv(nbytes, socket.MSG_DONTWAIT)
            except BlockingIOError:  # a finalizer has received it since
                continue
            except ConnectionResetError:
                reply = b""
            if reply:
                return reply
            raise MpwdsError("the process that forks the workers is gone: see its message above")
        patience_s = patience_s - _LOOK_EVERY_S if _is_stopped(process.pid) else STOPPED_S
        if patience_s <= 0:
            process.kill()
            process.wait(_EXIT_WAIT_S)
            raise MpwdsError(
                f"the process that forks the workers (pid {process.pid}) was stopped (by SIGSTOP or the "
                f"like), and gave no answer for {STOPPED_S:g} s: it was killed, which ends its workers too. "
                "The next epoch starts a new one"
            )
    return b""


class Grandchild(WorkerProcess):
    """A worker that such a process forked, and reaps.

    Args:
        pid: Its process id.
        reap: Has it reaped when it has ended, and returns its exit status.
    """

    def __init__(self, pid: int, reap: Callable[[int], int]) -> None:
        self._reap_there = reap
        super().__init__(pid)

    def _reap(self) -> int:
        try:
            return self._reap_there(self.pid)
        except MpwdsError as error:
            self.hint = self.hint or str(error)
        except OSError:
            self.hint = self.hint or "the process that forks the workers is gone, and they end with it"
        return -signal.SIGKILL


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False
