"""The workers of one loader, which start, run and end together."""

from __future__ import annotations

import errno
import functools
import os
import sys
import time
from collections.abc import Callable

from mpwds.interrupts import interrupts_deferred
from mpwds.loader.engine.local_worker import BatchReceiver, LocalWorker, Output
from mpwds.loader.engine.worker_handle import WorkerHandle, next_message
from mpwds.loader.launching.launchers import Launcher
from mpwds.loader.messages import protocol
from mpwds.loader.messages.channel import Message
from mpwds.loader.processes import environment, processes
from mpwds.loader.processes.setup import WorkerSetup, fingerprint
from mpwds.pipeline.context import warn_of_idle
from mpwds.sharedmem.arena import EventFd
from mpwds.sharedmem.lease import CopiedBatches
from mpwds.stats.snapshot import CounterSnapshot, added

_LIMITS = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}


class WorkerGroup:
    """The workers of a loader, which start with its first epoch.

    :meth:`_make_worker` alone knows where they run; all else uses them as a ``WorkerHandle``. ``make_setup``
    is called at each start.
    """

    in_process = False  # the work is done where the batches are asked for

    def __init__(
        self,
        make_setup: Callable[[], WorkerSetup],
        launcher: Callable[[WorkerSetup], Launcher],
        output: Output,
        copies: CopiedBatches,
        *,
        warn_of_copies: bool = True,
    ) -> None:
        self._make_setup = make_setup
        self._make_launcher = launcher
        self._output = output
        self._owner = os.getpid()
        self._workers: list[WorkerHandle] = []
        self._launcher: Launcher | None = None
        self._blocks = 0
        self._rank = 0, 1  # of the workers that run, and the number of ranks
        self._copies = copies
        self._make_receiver = functools.partial(
            BatchReceiver, output=output, copies=copies, warn=warn_of_copies
        )
        self._fingerprint: bytes | None = None
        self._ended: dict[int, CounterSnapshot] = {}
        self._warned_of_idle = False

    def is_owner(self) -> bool:
        """False in a fork of the process that the workers belong to."""
        return os.getpid() == self._owner

    def check_owner(self, what: str, instead: str = "make a loader of its own here") -> None:
        if not self.is_owner():
            raise RuntimeError(
                f"this {what} belongs to process {self._owner}, of which this one ({os.getpid()}) is a fork: "
                f"{instead}"
            )

    @property
    def workers(self) -> list[WorkerHandle]:
        return list(self._workers)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def private_copies(self) -> int:
        """Batches that were copied out of shared memory since the group was made."""
        return self._copies.made

    def snapshots(self) -> dict[int, CounterSnapshot]:
        """Returns the counts of all workers since the group was made, also of those that have ended."""
        return added(self._ended, {worker.index: worker.snapshot() for worker in self._workers})

    def begin_epoch(self) -> None:
        """Starts the workers if they are not running; again if the rank has changed since.

        In an interactive session, it does so too if the dataset or its code has changed.
        """
        if self._workers and environment.is_interactive():
            self._end_outdated()
        if self._workers:
            setup = self._make_setup()
            if self._rank != (setup.rank, setup.world_size):
                self.close()
        self.start()

    def restart(self, index: int) -> WorkerHandle:
        """Starts a worker in the place of one that has died. What the consumer holds of that stays valid."""
        if self._launcher is None:
            raise RuntimeError("the workers have ended")
        dead = self._workers[index]
        with interrupts_deferred():
            dead.disconnect()
            processes.end_all([dead], protocol.GRACE_S)
            worker = self._workers[index] = self._make_worker(index, self._launcher)
            self._ended = added(self._ended, {index: dead.snapshot() + CounterSnapshot(restarts=1)})
            dead.release()
        return worker

    def start(self, wait: bool = True) -> None:
        """Starts the workers if they are not running.

        Without ``wait``, the next call does so if the fork server has to import the dataset's modules first.
        """
        self.check_owner("loader")
        if self._workers:
            return
        setup = self._make_setup()
        self._fingerprint = fingerprint(setup) if environment.is_interactive() else None
        self._blocks, self._rank = setup.blocks, (setup.rank, setup.world_size)
        try:
            processes.fill_standard_descriptors()
            launcher = self._launcher = self._make_launcher(setup)
            if not launcher.prepare(wait):
                return
            with interrupts_deferred():
                for index in range(setup.workers):
                    self._workers.append(self._make_worker(index, launcher))
                if self._output == "torch":
                    # While the workers start; and an import of torch that is interrupted breaks the next one.
                    import torch  # noqa: F401
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError) or error.errno not in _LIMITS:
                raise
            advice = "use fewer, or raise the limit of processes (ulimit -u) or open files (ulimit -n)"
            text = f"{error.strerror}: {setup.workers} workers cannot start; {advice}"
            raise OSError(error.errno, text) from error

    @property
    def has_changed(self) -> bool:
        """True if workers have come, or are lost, since the last :meth:`follow`."""
        return False

    def follow(self) -> list[WorkerHandle]:
        """The workers, with those that have come in the meantime. Some may be away."""
        return self.workers

    def wait_until_ready(self, timeout: float | None) -> None:
        """Waits until all workers have their dataset; raises what unpickling it in a worker raised."""
        began = time.monotonic()
        for worker in self._workers:
            if not worker.is_ready:
                worker.awaits_ready = True
                try:
                    _, message = next_message([worker], timeout, since=began)
                finally:  # it may come in an epoch that has begun
                    worker.awaits_ready = False
                if message.fields["kind"] == protocol.ERROR:
                    raise worker.error(message)

    def check_end(self, message: Message) -> None:
        """Warns, once, if a worker's ``end`` tells that it was idle."""
        if message.fields.get("idle") and not self._warned_of_idle:
            self._warned_of_idle = True
            warn_of_idle("workers" if self._make_setup().streams is None else "streams")

    def close(self) -> None:
        """Ends all workers, within about ``protocol.GRACE_S``. In a fork of the owner, does nothing."""
        if not self.is_owner():
            return
        with interrupts_deferred():
            self._ended = self.snapshots()
            workers, self._workers = self._workers, []
            for worker in workers:
                worker.disconnect()
            processes.end_all(workers, protocol.GRACE_S)
            for worker in workers:
                worker.release()
            launcher, self._launcher = self._launcher, None
            if launcher is not None:
                launcher.close()

    def _make_worker(self, index: int, launcher: Launcher) -> WorkerHandle:
        # The consumer may hold all blocks but one, so that the worker has one to write to.
        return LocalWorker(index, launcher, self._make_receiver(EventFd(), keep=self._blocks - 1))

    def _end_outdated(self) -> None:
        self.check_owner("loader")
        if fingerprint(self._make_setup()) != self._fingerprint:
            text = "mpwds: the dataset, or code that it uses, has changed: its workers start again"
            print(text, file=sys.stderr)
            self.close()
