"""Iterates one epoch: batches of all workers, in order or as they come."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from mpwds.errors import MpwdsError, WorkerDied
from mpwds.loader.engine import failures, protocol
from mpwds.loader.engine.channel import Message
from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.engine.options import LoaderOptions
from mpwds.loader.engine.worker_handle import WorkerHandle, message_here, next_message
from mpwds.loader.processes.processes import interrupts_deferred
from mpwds.loader.resume.progress import EpochProgress, WorkerProgress
from mpwds.loader.stats.trainer_times import TrainerTimes
from mpwds.sharedmem import interrupts
from mpwds.tracebacks import shorten

T = TypeVar("T")

NOT_YET = object()
"""No batch is here, and there may be more."""


TAKE_TURNS = "another thread is in the middle of next() of this iteration: take turns"


class OneThread:
    """A context for one thread at a time: for a second one it is an error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(TAKE_TURNS)

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


class EpochIterator(Iterator[Any]):
    """The batches of one epoch.

    In order, the workers take turns, so that the order depends on nothing but the dataset, the seed, the
    epoch and the number of workers; a worker that has ended is left out. Out of order, the first batch to
    arrive is next.

    It ends with its last batch, with an error (KeyboardInterrupt among them), by :meth:`close`, or when it
    is dropped.

    Args:
        owner: Kept alive as long as this iterator is.
        group: The workers, which begin the epoch now.
        progress: Where the workers begin. It is updated with every batch.
        options: The loader's.
        in_order: Whether workers take turns.
        times: Records how long the trainer waits.

    Attributes:
        progress: How far the epoch is delivered.
        place: Worker and number of the batch that was delivered last.
    """

    def __init__(
        self,
        owner: object,
        group: WorkerGroup,
        progress: EpochProgress,
        options: LoaderOptions,
        in_order: bool,
        times: TrainerTimes,
    ) -> None:
        self._times = times
        try:
            workers, self._generation = group.begin_epoch(progress.epoch, progress.positions())
        except BaseException:
            times.end()
            raise
        self._turns = deque(workers)
        self._turns.rotate(-progress.turn)
        self.progress = progress
        self._in_order = in_order
        self._timeout = options.timeout
        self._persistent = options.persistent
        self._group = group
        self._replacement: Callable[[WorkerDied], WorkerHandle] | None = None
        if options.on_worker_death == "restart":
            from mpwds.loader.engine.restarts import Restarts

            self._replacement = Restarts(group, self._generation, progress, in_order)
        self._owner = owner
        self._process = os.getpid()
        self.place = (-1, -1)
        progress.running = True
        self._one_thread = OneThread()
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
        """Whether ``next()`` is an error: the loader was closed, or iterated anew."""
        return bool(self._ended_because)

    def _advance(self, wait: bool) -> Any:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this iteration belongs to process {self._process}, of which this one ({os.getpid()}) is a "
                "fork: make a loader of its own here"
            )
        with self._one_thread:
            return self._next(wait)

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
                        raise failures.revive(message.fields, worker.index, worker.pid)
                    else:
                        self._check_end(worker, message)
                        self._turns.remove(worker)
                self.progress.finish()
                self._leave()
        except BaseException:
            if self._running:
                self._running = self.progress.running = False
                self._times.end()
                self._group.close()
                raise
            # Another thread, or the interpreter's exit, has closed it meanwhile: that broke something.
        if self._ended_because:
            raise RuntimeError(self._ended_because)
        raise StopIteration

    def remake(self, worker: int) -> tuple[int, Any]:
        """The number and the batch that ``worker`` sends next, delivered before this iteration.

        Raises:
            MpwdsError: It made fewer batches than before.
        """
        try:
            self._times.asked()
            turn = [each for each in self._turns if each.index == worker]
            handle, message = self._survived(self._awaited, turn)
            if message.fields["kind"] == protocol.ERROR:
                raise failures.revive(message.fields, worker, handle.pid)
            if message.fields["kind"] == protocol.END:
                raise made_fewer(worker, message.fields["sent"], self.progress.workers[worker].delivered)
            progress = self._count(handle, message)
            self._times.arrived()
            batch = handle.batch(message)
            self._times.delivered(message.fields["samples"], message.fields["nbytes"])
            return progress.received - 1, batch
        except BaseException:
            self._running = self.progress.running = False
            self._group.close()
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
        if not self._persistent:
            self._group.close()

    def _awaited(self, candidates: list[WorkerHandle]) -> tuple[WorkerHandle, Message]:
        return next_message(candidates, self._generation, self._timeout, self._turns)

    def _here(self, candidates: list[WorkerHandle]) -> tuple[WorkerHandle, Message] | None:
        return message_here(candidates, self._generation)

    def _survived(self, receive: Callable[[list[WorkerHandle]], T], candidates: list[WorkerHandle]) -> T:
        """Receives from the candidates, and replaces one that died where the options allow it."""
        while True:
            try:
                return receive(candidates)
            except WorkerDied as death:
                if self._replacement is None:
                    raise
                new = self._replacement(death)
                candidates = [new if worker.index == new.index else worker for worker in candidates]
                for number, worker in enumerate(self._turns):
                    if worker.index == new.index:
                        self._turns[number] = new

    def _count(self, worker: WorkerHandle, message: Message) -> WorkerProgress:
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

    def _batch(self, worker: WorkerHandle, message: Message, progress: WorkerProgress) -> Any:
        while self._turns[0] is not worker:
            self._turns.rotate(-1)
        self._turns.rotate(-1)
        batch = worker.batch(message)
        self.place = worker.index, progress.received - 1
        self.progress.count(worker.index, self._turns[0].index, message.fields.get("state"))
        return batch

    def _check_end(self, worker: WorkerHandle, message: Message) -> None:
        sent, received = message.fields["sent"], self.progress.workers[worker.index].received
        if sent != received:
            raise MpwdsError(
                f"worker {worker.index} sent {sent} batches, {received} arrived: batches were lost"
            )
        delivered = self.progress.workers[worker.index].delivered
        if received < delivered:
            raise made_fewer(worker.index, received, delivered)


def made_fewer(worker: int, made: int, delivered: int) -> MpwdsError:
    """The error for a dataset that ends before the position where it has to continue."""
    return MpwdsError(
        f"worker {worker} made {made} batches, {delivered} were delivered before: the dataset has changed, "
        "or gives other elements each time it runs, so the epoch cannot be continued"
    )
