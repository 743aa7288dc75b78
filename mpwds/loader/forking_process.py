"""A process that forks workers when it is asked: how it starts, answers and ends, and how its workers end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from mpwds.errors import MpwdsError
from mpwds.loader import forks, processes
from mpwds.loader.processes import WorkerProcess

STOPPED_S = 5.0
"""How long such a process may be stopped while it is asked for something, before it is killed."""

_LOOK_EVERY_S = 0.25
_EXIT_WAIT_S = 5.0
_END_GRACE_S = 0.2


class ForkingProcess:
    """A fresh interpreter that forks workers. It ends with this process, or by :meth:`close`.

    Args:
        entry: The function it runs, as ``"module:name"``, called with ``descriptors``, its end of the socket
            and its end of the lifeline.
        descriptors: What it inherits besides.

    Raises:
        OSError: It cannot be started.

    Attributes:
        process: The process.
        socket: Where it is asked, and answers.
    """

    def __init__(self, entry: str, *descriptors: int) -> None:
        self._owner = os.getpid()
        with contextlib.ExitStack() as its_ends, contextlib.ExitStack() as ours:
            self.socket, connection = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            its_ends.callback(connection.close)
            ours.callback(self.socket.close)
            held, lifeline = os.pipe()
            its_ends.callback(os.close, held)
            ours.callback(os.close, lifeline)
            for end in (self.socket.fileno(), lifeline):
                forks.guard(end)
                ours.callback(forks.unguard, end)
            arguments = [*descriptors, connection.fileno(), held]
            self.process = processes.spawn(entry, arguments, arguments)
            self._ends = ours.pop_all()

    def receive(self, nbytes: int, has_come: Callable[[], bool] = lambda: False) -> bytes:
        """The next answer. One that is at work is waited for: what it imports may take long.

        One that is stopped would never answer. As a signal that stops all processes of a job wakes them again
        one by one, what counts is how often it was found stopped, not how much time has passed.

        Args:
            nbytes: The longest answer.
            has_come: Whether the answer has come another way: a finalizer may run in the middle of this,
                ask something as well, and receive what comes until it has its own answer. Nothing is returned
                then.

        Raises:
            MpwdsError: It is gone, or was stopped for ``STOPPED_S``, and has been killed for that.
        """
        answered = select.poll()
        answered.register(self.socket, select.POLLIN)
        patience_s = STOPPED_S
        while not has_come():
            if answered.poll(_LOOK_EVERY_S * 1000):
                try:
                    reply = self.socket.recv(nbytes, socket.MSG_DONTWAIT)
                except BlockingIOError:  # a finalizer has received it since
                    continue
                except ConnectionResetError:
                    reply = b""
                if reply:
                    return reply
                raise MpwdsError("the process that forks the workers is gone: see its message above")
            patience_s = patience_s - _LOOK_EVERY_S if _is_stopped(self.process.pid) else STOPPED_S
            if patience_s <= 0:
                self.process.kill()
                self.process.wait(_EXIT_WAIT_S)
                raise MpwdsError(
                    f"the process that forks the workers (pid {self.process.pid}) was stopped (by SIGSTOP or "
                    f"the like), and gave no answer for {STOPPED_S:g} s: it was killed, which ends its "
                    "workers too. The next epoch starts a new one"
                )
        return b""

    def close(self) -> None:
        """Ends it, and with it the workers that are left."""
        self._ends.close()
        if os.getpid() == self._owner:
            processes.end_all([self.process], _END_GRACE_S)


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
