"""Iterates one epoch: batches of all workers, in order or as they come."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from mpwds.errors import MpwdsError, WorkerDied, shorten
from mpwds.interrupts import deferring, interrupts_deferred
from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.engine.worker_handle import WorkerHandle, WorkerLost, next_message
from mpwds.loader.messages import protocol
from mpwds.loader.messages.channel import Message
from mpwds.loader.resume.progress import EpochProgress, made_fewer
from mpwds.stats.collector import RECEIVED, WAITED, ConsumerTimer
from mpwds.warn import warn

if TYPE_CHECKING:
    from mpwds.loader.engine.dealing import StreamDealer

NOT_YET = object()
"""No batch is here, and there may be more."""

MOST_DEATHS = 3
"""A worker that dies this often without delivering a batch in between is not started again."""

TAKE_TURNS = "another thread is in the middle of next() of this iteration: take turns"


class EpochBatches(Iterator[Any]):
    """Batches of an epoch, of which a later step may take some that have arrived before they are asked for.

    Attributes:
        closed: Why ``next()`` is an error, if the loader was closed, or iterated again.
    """

    closed = ""

    def next_now(self) -> Any:
        """As ``next()``, but ``NOT_YET`` if no batch has arrived, which is the default."""
        return NOT_YET


@dataclass(eq=False, repr=False)
class EpochIterator(EpochBatches):
    """The batches of one epoch of a loader, made by its workers; it keeps ``owner`` alive.

    Each worker carries streams of the dataset, by default one. With ``in_order``, which is false for datasets
    that have no order, streams take turns until they end. Otherwise the first batch to arrive is next, and a
    worker whose stream has ended gets one that no worker has begun. With ``moves_streams``, a slow or lost
    worker hands streams to others.

    The iteration ends with its last batch, with an error (also KeyboardInterrupt), by :meth:`close`, or when
    it is dropped. Then the workers stop, and what they have sent is discarded; they end unless they are
    ``persistent`` and there was no error. With ``restarts``, another worker takes the place of a dead one.

    ``dataloader.iterator.TaskEpoch`` is an epoch whose workers do tasks.

    Attributes:
        progress: Where the epoch begins, and then how far it is delivered.
        place: Stream and number of the batch that was delivered last.
        repeats: That batch came after the end of its stream, to make an epoch even.
    """

    owner: object
    progress: EpochProgress
    times: ConsumerTimer
    group: WorkerGroup
    _: KW_ONLY
    in_order: bool
    timeout: float | None
    persistent: bool
    restarts: bool = False
    moves_streams: bool = False
    staged: bool = False  # stages after the loader may hold elements when its last batch is delivered

    _running = False
    _in_fork = "make a loader of its own here"

    def __post_init__(self) -> None:
        progress, group = self.progress, self.group
        self.place = (-1, -1)
        self.repeats = False
        self._dealer: StreamDealer | None = None  # of streams that may move to other workers
        self._lock = threading.RLock()  # a signal's handler may close what its thread waits for
        self._process = os.getpid()
        try:
            group.begin_epoch()
            self._workers = group.workers
            self._turns = progress.turns()
            self._carriers = {stream: stream % len(self._workers) for stream in self._turns}
            self._waiting: deque[int] = deque()  # streams that no worker has begun
            makes_again = any(stream.received < stream.delivered for stream in progress.streams)
            if len(progress.streams) > len(self._workers) and not (self.in_order or makes_again):
                self._carriers = {stream: index for index, stream in enumerate(self._turns)}
                self._waiting = deque(list(self._turns)[len(self._workers) :])
                self._turns = deque(list(self._turns)[: len(self._workers)])
            with interrupts_deferred():
                for index in self._all_carriers():
                    self._start(self._workers[index])
        except BaseException:
            self.times.end()
            # At the interpreter's exit, the fork server and the workers may end while this thread still runs.
            if not threading.main_thread().is_alive():
                raise SystemExit from None
            raise
        if self.moves_streams and self._turns:
            from mpwds.loader.engine.dealing import StreamDealer

            self._dealer = StreamDealer(group.snapshots)
        self._deaths: Counter[tuple[int, int]] = Counter()  # by the worker and the batch that it owed
        self._running = progress.running = True

    def __next__(self) -> Any:
        if os.getpid() != self._process:
            self.group.check_owner("iteration", self._in_fork)
        if not self._lock.acquire(blocking=not self._running):  # another thread closes it
            raise RuntimeError(TAKE_TURNS)
        try:
            return self._next(waits=True)
        except (Exception, KeyboardInterrupt) as error:
            shorten(error)
            raise
        finally:
            self._lock.release()

    def next_now(self) -> Any:
        if self.group.in_process:
            return NOT_YET
        with self._lock:
            return self._next(waits=False)

    def _next(self, waits: bool) -> Any:
        try:
            if self._running:
                self.times.enter(WAITED)
                while self._turns:
                    if self._dealer is not None and self.group.has_changed:
                        self._follow_workers()
                    arrived = self._received(waits=waits)
                    if arrived is None:
                        self.times.left()
                        return NOT_YET
                    worker, message = arrived
                    if self._is_batch(worker, message):
                        progress = self.progress.streams[message.fields.get("stream", worker.index)]
                        if progress.received > progress.delivered:
                            return self._delivered(worker, message)
                        worker.discard(message)
                self.progress.finish()
                self._leave(stops_clock=not self.staged)
        except BaseException:
            if self._running:
                self._leave(failed=True)
                raise
            # Another thread, or the interpreter's exit, has closed it meanwhile: that broke something.
        if self.closed:
            raise RuntimeError(self.closed)
        raise StopIteration

    def remake(self, stream: int) -> tuple[int, int, Any]:
        """The next batch that the worker of ``stream`` makes again, after its stream and its number."""
        try:
            self.times.enter(WAITED)
            arrived = self._received(stream)
            assert arrived is not None
            worker, message = arrived
            self._is_batch(worker, message)  # or an error is raised: it has delivered more
            made = message.fields.get("stream", worker.index)
            return made, self.progress.streams[made].received - 1, self._batch(worker, message)
        except BaseException:
            self._leave(failed=True)
            raise

    def close(self, because: str = "") -> None:
        """Leaves the epoch; a later ``next()`` raises RuntimeError with ``because``, if one is given."""
        if self._running and self.group.is_owner():
            self.closed, self._running = because, False
            with self._lock:  # a thread that waits for a batch takes none of the next epoch's
                for index in self._all_carriers():
                    self._workers[index].stop()
                self._leave()
        self.times.end()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # this module may be gone, and the workers have been told to end
            return
        with deferring(), interrupts_deferred():
            self.close()

    def _leave(self, failed: bool = False, stops_clock: bool = True) -> None:
        self._running = self.progress.running = False
        if stops_clock:
            self.times.end()
        else:  # the stages drop this iteration when they end
            self.times.left()
        if failed or not self.persistent:
            self.group.close()

    def _received(self, stream: int | None = None, waits: bool = True) -> tuple[WorkerHandle, Message] | None:
        """The next message, from the worker of ``stream`` or of the stream whose turn it is, or any worker.

        Replaces a worker that died where the options allow it. Others take over the streams of a lost one.
        """
        if stream is None and self.in_order:
            stream = self._turns[0]
        while True:
            carriers = self._all_carriers() if stream is None else [self._carriers[stream]]
            candidates = [self._workers[index] for index in carriers]
            try:
                for worker in candidates:
                    message = worker.receive()
                    if message is not None:
                        return worker, message
                if not waits:
                    return None
                if self._dealer is None:
                    return self._next_message(candidates)
                if self.in_order and self._dealer.look() and self._deal():
                    continue
                began_ns = time.monotonic_ns()
                arrived = self._next_message(candidates)
                self._dealer.waited(arrived[0].index, time.monotonic_ns() - began_ns)
                return arrived
            except WorkerLost:
                self._follow_workers()
            except WorkerDied as death:
                if not self.restarts:
                    raise
                self._restarted(death)

    def _next_message(self, candidates: list[WorkerHandle]) -> tuple[WorkerHandle, Message]:
        return next_message(candidates, self.timeout, self._workers, is_left=lambda: not self._running)

    def _follow_workers(self) -> None:
        """Gives work to workers that have come, and the streams of those that are lost to others."""
        self._workers = self.group.follow()
        for worker in self._workers:
            if worker.is_available and not self._carried(worker.index):
                self._start_waiting(worker)
        if self.in_order or any(not self._workers[index].is_available for index in self._all_carriers()):
            self._deal(must=True)

    def _deal(self, must: bool = False) -> bool:
        """Deals the streams again if it must, or if that makes rounds shorter; true if some have moved."""
        assert self._dealer is not None
        before = {stream: self._carriers[stream] for stream in self._turns}
        available = [worker.index for worker in self._workers if worker.is_available]
        after = self._dealer.deal(before, available, must)
        moved = [stream for stream, worker in after.items() if worker != before[stream]]
        self._carriers.update(after)
        with interrupts_deferred():
            for index in {carrier[stream] for carrier in (before, after) for stream in moved}:
                self._start(self._workers[index])
        return bool(moved)

    def _start_waiting(self, worker: WorkerHandle) -> None:
        """Has a worker that carries no stream begin one that no worker has begun, if there is one."""
        if self._waiting:
            self._turns.append(waiting := self._waiting.popleft())
            self._carriers[waiting] = worker.index
            self._start(worker)

    def _restarted(self, death: WorkerDied) -> None:
        """Starts a new process for a worker, with a warning, unless it died too often.

        A death is reported only after everything that the worker had sent was received. So the new process
        starts its streams from their last states, and drops the batches that were received since.
        """
        index = death.worker
        received = sum(self.progress.streams[stream].received for stream in self._carried(index))
        self._deaths[index, received] += 1
        if self._deaths[index, received] >= MOST_DEATHS:
            raise died_too_often(death, received) from None
        worker = self._workers[index] = self.group.restart(index)
        self._start(worker)
        order = " and the order is unchanged" if self.in_order else ""
        restarts = self.group.snapshots()[index].restarts
        warn(
            f"{death}. A new process (pid {worker.pid}, restart {restarts}) took its place: no batch is lost "
            f"or delivered twice{order}"
        )

    def _all_carriers(self) -> list[int]:
        """The workers that have streams to make, those whose turn is next first."""
        return list(dict.fromkeys(map(self._carriers.__getitem__, self._turns)))

    def _carried(self, worker: int) -> list[int]:
        """The streams that a worker has to make, in the order of their turns."""
        return [stream for stream in self._turns if self._carriers[stream] == worker]

    def _start(self, worker: WorkerHandle) -> None:
        positions = {stream: self.progress.position(stream) for stream in self._carried(worker.index)}
        if positions:
            worker.start(self.progress.epoch, positions)
        else:
            worker.stop()

    def _is_batch(self, worker: WorkerHandle, message: Message) -> bool:
        """Counts a batch, or a task's error, as received; false if the message is its stream's end."""
        fields = message.fields
        stream = fields.get("stream", worker.index)  # by default a worker has one, of its own number
        progress = self.progress.streams[stream]
        kind = fields["kind"]
        if kind == protocol.ERROR:
            raise worker.error(message)
        number = fields["sent"] if kind == protocol.END else fields["sequence"]
        if number != progress.received:
            raise MpwdsError(
                f"worker {worker.index} sent {kind} {number}, expected {progress.received}: batches were lost"
            )
        if kind != protocol.END:
            progress.received += 1
            return True
        if progress.received < progress.delivered:
            raise made_fewer(f"worker {worker.index}", progress.received, progress.delivered)
        progress.total = progress.received
        self._turns = deque(other for other in self._turns if other != stream)
        self.group.check_end(message)
        if self._waiting and not self._carried(worker.index):
            self._start_waiting(worker)
        return False

    def _delivered(self, worker: WorkerHandle, message: Message) -> Any:
        stream = message.fields.get("stream", worker.index)
        while self._turns[0] != stream:
            self._turns.rotate(-1)
        self._turns.rotate(-1)
        batch = self._batch(worker, message)
        self.place = stream, self.progress.streams[stream].received - 1
        self.repeats = message.fields.get("repeats", False)
        self.progress.count(stream, message.fields.get("state"))
        return batch

    def _batch(self, worker: WorkerHandle, message: Message) -> Any:
        self.times.enter(RECEIVED)
        batch = worker.batch(message)
        self.times.delivered(message.fields["samples"], message.fields["nbytes"])
        return batch


def died_too_often(death: WorkerDied, batch: int) -> WorkerDied:
    """The error for a worker that died ``MOST_DEATHS`` times before the same batch."""
    return WorkerDied(
        f"{death}. It died {MOST_DEATHS} times in a row before batch {batch} of the epoch, so it is not "
        "started again: leave out the sample that kills it, or give it more memory",
        death.worker,
        death.pid,
        death.exitcode,
    )


def leave_all(iterations: WeakSet[EpochIterator], because: str = "") -> None:
    for iteration in list(iterations):
        iteration.close(because)
    iterations.clear()


def finish(iterations: WeakSet[EpochIterator], group: WorkerGroup) -> None:
    """Ends the workers when their loader is collected, or the interpreter exits."""
    with deferring(), interrupts_deferred():
        leave_all(iterations)
        group.close()
