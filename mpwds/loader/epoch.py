"""Iterating one epoch: batches of all workers, in order or as they come."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from mpwds.errors import MpwdsError
from mpwds.loader import failures, protocol
from mpwds.loader.channel import Message
from mpwds.loader.remote import RemoteWorker
from mpwds.loader.waiting import next_message


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
        in_order: Whether workers take turns.
        timeout: Seconds to wait for a batch; ``None`` waits for ever.
        on_leave: Called when the epoch ends, unless it is by an error.
        on_failure: Called before an error is raised.
        owner: Kept alive as long as this iterator is.
    """

    def __init__(
        self,
        workers: list[RemoteWorker],
        generation: int,
        *,
        in_order: bool,
        timeout: float | None,
        on_leave: Callable[[], None],
        on_failure: Callable[[], None],
        owner: object,
    ) -> None:
        self._turns = deque(workers)
        self._generation = generation
        self._in_order = in_order
        self._timeout = timeout
        self._on_leave = on_leave
        self._on_failure = on_failure
        self._owner = owner
        self._process = os.getpid()
        self._received = dict.fromkeys((worker.index for worker in workers), 0)
        self._entrance = threading.Lock()
        self._running = True
        self._ended_because = ""

    def __next__(self) -> Any:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this iteration belongs to process {self._process}, of which this one ({os.getpid()}) is a "
                "fork: make a loader of its own here"
            )
        if not self._entrance.acquire(blocking=False):
            raise RuntimeError("another thread is in the middle of next() of this iteration: take turns")
        try:
            return self._next()
        finally:
            self._entrance.release()

    def _next(self) -> Any:
        try:
            if self._running:
                while self._turns:
                    candidates = [self._turns[0]] if self._in_order else list(self._turns)
                    worker, message = next_message(candidates, self._generation, self._timeout)
                    kind = message.fields["kind"]
                    if kind == protocol.BATCH:
                        return self._batch(worker, message)
                    if kind == protocol.ERROR:
                        raise failures.revive(message.fields, worker.index, worker.process.pid)
                    self._check_end(worker, message)
                    self._turns.remove(worker)
                self._leave()
        except BaseException:
            if self._running:
                self._running = False
                self._on_failure()
                raise
            # Closed meanwhile, by another thread or at the interpreter's exit: what broke by that is no news.
        if self._ended_because:
            raise RuntimeError(self._ended_because)
        raise StopIteration

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
            self.close()

    def _leave(self) -> None:
        self._running = False
        self._on_leave()

    def _batch(self, worker: RemoteWorker, message: Message) -> Any:
        sequence, expected = message.fields["sequence"], self._received[worker.index]
        if sequence != expected:
            raise MpwdsError(
                f"worker {worker.index} sent batch {sequence}, expected {expected}: batches were lost"
            )
        self._received[worker.index] += 1
        while self._turns[0] is not worker:
            self._turns.rotate(-1)
        self._turns.rotate(-1)
        return worker.batch(message)

    def _check_end(self, worker: RemoteWorker, message: Message) -> None:
        sent, received = message.fields["sent"], self._received[worker.index]
        if sent != received:
            raise MpwdsError(
                f"worker {worker.index} sent {sent} batches, {received} arrived: batches were lost"
            )
