"""The workers of one loader: started together, told together, ended together."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpwds.loader.engine import protocol, warming
from mpwds.loader.engine.local_worker import RemoteWorker
from mpwds.loader.engine.receiving import BatchReceiver, Output
from mpwds.loader.processes import loaded_code, processes
from mpwds.loader.processes import setup as worker_setup
from mpwds.loader.processes.launchers import Launcher
from mpwds.loader.processes.setup import WorkerSetup
from mpwds.loader.resume.progress import START, Position
from mpwds.loader.stats.collector import WorkerReading
from mpwds.loader.worker.counters import Reading
from mpwds.sharedmem.bell import Bell
from mpwds.sharedmem.pinning import Pinning
from mpwds.sharedmem.private import PrivateCopies

BLOCKS_OF_CONSUMER = 2
"""Blocks that a plain ``for`` loop holds: the batch in use, and the next one until its name is bound anew."""


@dataclass(frozen=True)
class GroupOptions:
    """How workers are started and their batches received; see ``MultiLoader``.

    Args:
        launcher: Makes what starts them.
        output: What arrays become.
        warn_of_copies: Warn when more batches are kept than the arenas have blocks for.
        pinning: What pins the memory that batches lie in.
    """

    launcher: Callable[[WorkerSetup], Launcher]
    output: Output
    warn_of_copies: bool = True
    pinning: Pinning | None = None


class WorkerGroup:
    """The worker processes of a loader, started when the first epoch begins.

    Args:
        make_setup: Makes what the workers get; called at each start.
        options: How they are started.

    Attributes:
        restarts: How often a worker was started again within an epoch, by its index; counted by whoever does
            that, after :meth:`keep_reading`.
    """

    def __init__(self, make_setup: Callable[[], WorkerSetup], options: GroupOptions) -> None:
        self._make_setup = make_setup
        self._options = options
        self._owner = os.getpid()
        self._generation = 0
        self._workers: list[RemoteWorker] = []
        self._launcher: Launcher | None = None
        self._copies = PrivateCopies(pinning=options.pinning)
        self._make_receiver: Callable[[Bell], BatchReceiver]
        self.restarts: Counter[int] = Counter()
        self._fingerprint: bytes | None = None
        self._ended: dict[int, WorkerReading] = {}

    @property
    def pids(self) -> list[int]:
        """Process ids of the running workers."""
        return [remote.process.pid for remote in self._workers]

    def private_copies(self) -> int:
        """Batches that were copied out of shared memory, since the group was made."""
        return self._copies.made

    def readings(self) -> list[WorkerReading]:
        """What the workers have counted since the group was made, those that have ended too."""
        readings = {**self._ended, **{remote.index: self._read(remote) for remote in self._workers}}
        return [readings[index] for index in sorted(readings)]

    def begin_epoch(self, epoch: int, positions: Sequence[Position] = ()) -> tuple[list[RemoteWorker], int]:
        """Starts the workers if they are not running, and an epoch in all of them.

        In an interactive session it starts them anew if what they would get now is not what they got.

        Args:
            epoch: Its number.
            positions: Where each worker begins in it; at its start by default.

        Returns:
            The workers, and the generation of the messages that belong to this epoch.

        Raises:
            RuntimeError: This process is a fork of the one that the loader belongs to.
            TypeError: The dataset cannot be sent to workers.
            SharedMemoryError, OSError: The system has no more memory, processes or descriptors to give.
        """
        if self._workers and loaded_code.is_interactive():
            self._end_outdated()
        self.start()
        with processes.interrupts_deferred():
            self._generation += 1
            for remote in self._workers:
                position = positions[remote.index] if positions else START
                remote.start(epoch, self._generation, position)
        return self._workers, self._generation

    def restart(self, index: int) -> RemoteWorker:
        """Starts a process in the place of a worker's that has died, or that nobody hears any more.

        What the consumer holds of its batches stays valid.

        Raises:
            SharedMemoryError, OSError: The system has no more memory, processes or descriptors to give.
        """
        launcher = self._launcher
        if launcher is None:
            raise RuntimeError("the workers have ended")
        dead = self._workers[index]
        with processes.interrupts_deferred():
            dead.disconnect()
            processes.end_all([dead.process], protocol.GRACE_S)
            remote = RemoteWorker(index, launcher, self._make_receiver)
            remote.restarts = dead.restarts + 1
            self._workers[index] = remote
            self._keep_reading(dead)
            self.restarts[index] += 1
            dead.release()
        return remote

    def start(self) -> None:
        """Starts the workers if they are not running.

        Raises:
            RuntimeError, TypeError, SharedMemoryError, OSError: As :meth:`begin_epoch`.
        """
        self._check_owner()
        if not self._workers:
            self._start()

    def wait_until_ready(self, timeout: float | None) -> None:
        """Waits until all workers, which :meth:`start` started, have their dataset.

        Raises:
            Exception: What unpickling the dataset in a worker raised.
            WorkerDied, WorkerTimeout: One never will.
        """
        warming.wait_until_ready(self._workers, timeout)

    def close(self) -> None:
        """Ends all workers, within about ``protocol.GRACE_S``. In a fork of the owner, does nothing."""
        if os.getpid() != self._owner:
            return
        with processes.interrupts_deferred():
            workers, self._workers = self._workers, []
            for remote in workers:
                remote.disconnect()
            processes.end_all([remote.process for remote in workers], protocol.GRACE_S)
            for remote in workers:
                self._keep_reading(remote)
                remote.release()
            launcher, self._launcher = self._launcher, None
            if launcher is not None:
                launcher.close()

    def _keep_reading(self, remote: RemoteWorker) -> None:
        """Keeps what a worker has counted: to be called before it is released."""
        self._ended[remote.index] = self._read(remote)

    def _read(self, remote: RemoteWorker) -> WorkerReading:
        index = remote.index
        before = self._ended[index].reading if index in self._ended else Reading()
        return WorkerReading(index, remote.process.pid, before + remote.reading(), self.restarts[index])

    def _end_outdated(self) -> None:
        self._check_owner()
        if worker_setup.fingerprint(self._make_setup()) != self._fingerprint:
            print(
                "mpwds: the dataset, or code that it uses, has changed: its workers start anew",
                file=sys.stderr,
            )
            self.close()

    def _start(self) -> None:
        setup = self._make_setup()
        self._fingerprint = worker_setup.fingerprint(setup) if loaded_code.is_interactive() else None
        keep = setup.blocks - 1
        self._make_receiver = functools.partial(
            BatchReceiver,
            output=self._options.output,
            keep=keep,
            copies=self._copies,
            warn=self._options.warn_of_copies,
            pinning=self._options.pinning,
        )
        launcher = self._options.launcher(setup)
        try:
            with processes.interrupts_deferred():
                processes.fill_standard_descriptors()
                self._launcher = launcher
                launcher.open()
            launcher.wait()
            with processes.interrupts_deferred():
                for index in range(setup.workers):
                    self._workers.append(RemoteWorker(index, launcher, self._make_receiver))
                if self._options.output == "torch":
                    # While the workers start; and an import of torch that is interrupted breaks the next one.
                    import torch  # noqa: F401
        except OSError as error:
            self.close()
            if (explained := _explained(error, setup.workers)) is None:
                raise
            raise explained from error
        except BaseException:
            self.close()
            raise

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise RuntimeError(
                f"this loader belongs to process {self._owner}, of which this one ({os.getpid()}) is a fork: "
                "make a loader of its own here"
            )


_LIMITS = {
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "the whole machine has no file descriptor left",
    errno.EAGAIN: "raise the limit of processes (ulimit -u, or that of the container)",
    errno.ENOMEM: "there is no memory left",
}


def _explained(error: OSError, workers: int) -> OSError | None:
    """The error with what to do about it, if it tells of a limit of the system."""
    if error.errno not in _LIMITS:
        return None
    text = f"{error.strerror}: {workers} workers cannot start; {_LIMITS[error.errno]}, or use fewer"
    return OSError(error.errno, text)
