"""Iterating one epoch: batches of all workers, in order or as they come."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from mpwds.errors import MpwdsError, WorkerDied
from mpwds.loader.engine import failures, protocol
from mpwds.loader.engine.channel import Message
from mpwds.loader.engine.local_worker import RemoteWorker
from mpwds.loader.engine.waiting import message_here, next_message
from mpwds.loader.output.one_thread import TAKE_TURNS
from mpwds.loader.processes.processes import interrupts_deferred
from mpwds.loader.resume.progress import EpochProgress, WorkerProgress
from mpwds.loader.stats.trainer_times import TrainerTimes
from mpwds.sharedmem import interrupts
from mpwds.tracebacks import shorten

T = TypeVar("T")

NOT_YET = object()
"""No batch is here, and there may be more."""


class EpochIterator(Iterator[Any]):
    """The batches of one epoch.

    In order, the workers take turns, so that the order depends on nothing but the dataset, the seed, the
    epoch and the number of workers; a worker that has ended is left out. Out of order, whoever has a batch
    is next.

    It ends with its last batch, with an error (KeyboardInterrupt among them), by :meth:`close`, or when it
    is dropped.

    Args:
        workers: The workers, started on this epoch.
        generation: The generation of this epoch's messages.
        progress: Where the workers begin, and what is brought up to date with every batch.
        in_order: Whether workers take turns.
        timeout: Seconds to wait for a batch; ``None`` waits for ever.
        on_leave: Called when the epoch ends, unless it is by an error.
        on_failure: Called before an error is raised.
        on_death: Called with the error of a worker that died; returns the worker that takes its place, which
            begins behind the batches that ``progress.received`` counts, or raises.
        owner: Kept alive as long as this iterator is.
        times: Told what this process waits for.

    Attributes:
        progress: How far the epoch is delivered.
        place: Worker and number of the batch that was delivered last.
    """

    def __init__(
        self,
        workers: list[RemoteWorker],
        generation: int,
        progress: EpochProgress,
        *,
        in_order: bool,
        timeout: float | None,
        on_leave: Callable[[], None],
        on_failure: Callable[[], None],
        on_death: Callable[[WorkerDied], RemoteWorker],
        owner: object,
        times: TrainerTimes,
    ) -> None:
        self._times = times
        self._turns = deque(workers)
        self._turns.rotate(-progress.turn)
        self._generation = generation
        self.progress = progress
        self._in_order = in_order
        self._timeout = timeout
        self._on_leave = on_leave
        self._on_failure = on_failure
        self._on_death = on_death
        self._owner = owner
        self._process = os.getpid()
        self.place = (-1, -1)
        progress.running = True
        self._entrance = threading.Lock()
        self._running = True
        self._ended_because = ""

    def __next__(self) -> Any:
        try:
            return self._advance(wait=True)
        except Exception as error:
            shorten(error)
            raise

    def next_now(self) -> Any:
        """As ``next()``, but ``NOT_YET`` if that would wait."""
        return self._advance(wait=False)

    @property
    def closed(self) -> bool:
        """Whether ``next()`` is an error by now: the loader was closed, or iterated anew."""
        return bool(self._ended_because)

    def _advance(self, wait: bool) -> Any:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this iteration belongs to process {self._process}, of which this one ({os.getpid()}) is a "
                "fork: make a loader of its own here"
            )
        if not self._entrance.acquire(blocking=False):
            raise RuntimeError(TAKE_TURNS)
        try:
            return self._next(wait)
        finally:
            self._entrance.release()

    def _next(self, wait: bool) -> Any:
        try:
            if self._running:
                self._times.asked()
                while self._turns:
                    candidates = [self._turns[0]] if self._in_order else list(self._turns)
                    arrived = self._survived(self._awaited if wait else self._here, candidates)
                    if arrived is None:
                        self._times.left()
                        return NOT_YET
                    worker, message = arrived
                    kind = message.fields["kind"]
                    if kind == protocol.BATCH:
                        progress = self._count(worker, message)
                        if progress.received > progress.delivered:
                            self._times.arrived()
                            batch = self._batch(worker, message, progress)
                            self._times.delivered(message.fields["samples"], message.fields["nbytes"])
                            return batch
                        worker.discard(message)
                    elif kind == protocol.ERROR:
                        raise failures.revive(message.fields, worker.index, worker.process.pid)
                    else:
                        self._check_end(worker, message)
                        self._turns.remove(worker)
                self.progress.finish()
                self._leave()
        except BaseException:
            if self._running:
                self._running = self.progress.running = False
                self._times.end()
                self._on_failure()
                raise
            # Closed meanwhile, by another thread or at the interpreter's exit: what broke by that is no news.
        if self._ended_because:
            raise RuntimeError(self._ended_because)
        raise StopIteration

    def remake(self, worker: int) -> tuple[int, Any]:
        """The number and the batch that a worker sends next, which was delivered before this iteration.

        Raises:
            MpwdsError: It made fewer batches than before.
        """
        try:
            self._times.asked()
            turn = [remote for remote in self._turns if remote.index == worker]
            remote, message = self._survived(self._awaited, turn)
            if message.fields["kind"] == protocol.ERROR:
                raise failures.revive(message.fields, worker, remote.process.pid)
            if message.fields["kind"] == protocol.END:
                raise made_fewer(worker, message.fields["sent"], self.progress.workers[worker].delivered)
            progress = self._count(remote, message)
            self._times.arrived()
            batch = remote.batch(message)
            self._times.delivered(message.fields["samples"], message.fields["nbytes"])
            return progress.received - 1, batch
        except BaseException:
            self._running = self.progress.running = False
            self._on_failure()
            raise

    def close(self, because: str = "") -> None:
        """Leaves the epoch: the workers stop; what they have sent is discarded.

        Args:
            because: What a later ``next()`` raises RuntimeError with; without it the iterator is just
                exhausted.
        """
        if self._running and os.getpid() == self._process:
            self._ended_because = because
            for worker in tuple(self._turns):
                worker.stop(self._generation)
            self._leave()

    def __del__(self) -> None:
        if hasattr(self, "_ended_because"):
            with interrupts.kept(), interrupts_deferred():
                self.close()

    def _leave(self) -> None:
        self._running = self.progress.running = False
        self._times.end()
        self._on_leave()

    def _awaited(self, candidates: list[RemoteWorker]) -> tuple[RemoteWorker, Message]:
        return next_message(candidates, self._generation, self._timeout, self._turns)

    def _here(self, candidates: list[RemoteWorker]) -> tuple[RemoteWorker, Message] | None:
        return message_here(candidates, self._generation)

    def _survived(self, receive: Callable[[list[RemoteWorker]], T], candidates: list[RemoteWorker]) -> T:
        """What is received of the candidates, or of the worker that takes the place of one that died."""
        while True:
            try:
                return receive(candidates)
            except WorkerDied as death:
                remote = self._on_death(death)
                candidates = [remote if worker.index == remote.index else worker for worker in candidates]
                for number, worker in enumerate(self._turns):
                    if worker.index == remote.index:
                        self._turns[number] = remote

    def _count(self, worker: RemoteWorker, message: Message) -> WorkerProgress:
        """Counts a batch as received."""
        progress = self.progress.workers[worker.index]
        sequence = message.fields["sequence"]
        if sequence != progress.received:
            raise MpwdsError(
                f"worker {worker.index} sent batch {sequence}, expected {progress.received}: "
                "batches were lost"
            )
        progress.received += 1
        return progress

    def _batch(self, worker: RemoteWorker, message: Message, progress: WorkerProgress) -> Any:
        while self._turns[0] is not worker:
            self._turns.rotate(-1)
        self._turns.rotate(-1)
        batch = worker.batch(message)
        self.place = worker.index, progress.received - 1
        self.progress.count(worker.index, self._turns[0].index, message.fields.get("state"))
        return batch

    def _check_end(self, worker: RemoteWorker, message: Message) -> None:
        sent, received = message.fields["sent"], self.progress.workers[worker.index].received
        if sent != received:
            raise MpwdsError(
                f"worker {worker.index} sent {sent} batches, {received} arrived: batches were lost"
            )
        delivered = self.progress.workers[worker.index].delivered
        if received < delivered:
            raise made_fewer(worker.index, received, delivered)


def made_fewer(worker: int, made: int, delivered: int) -> MpwdsError:
    """The error for a dataset that ends before the place where it is to be continued."""
    return MpwdsError(
        f"worker {worker} made {made} batches, {delivered} were delivered before: the dataset has changed, "
        "or gives other elements each time it runs, so the epoch cannot be continued"
    )
