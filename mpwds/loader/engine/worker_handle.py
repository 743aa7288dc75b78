"""A worker as the trainer's epochs use it, wherever it runs, and waiting for messages of several."""

from __future__ import annotations

import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpwds.errors import MpwdsError, WorkerTimeout
from mpwds.loader.messages import protocol
from mpwds.loader.messages.channel import Message
from mpwds.loader.resume.progress import Position
from mpwds.stats.snapshot import CounterSnapshot

if TYPE_CHECKING:
    from mpwds.sharedmem.lease import LeasedArena


class WorkerLost(MpwdsError):
    """A worker is away, its streams are to be carried by others, and some are there."""


class WorkerHandle(ABC):
    """The trainer's end of one worker. ``messages.protocol`` describes the messages.

    Only :meth:`wait` may wait. Commands and tasks that the transport has no room for are kept until
    :meth:`flush` can send them. A worker's death must be reported only after every message that it had sent
    was returned. A worker without a transport, a process or memory of its own needs no method with a default.

    Attributes:
        index: The worker's index in its loader.
        generation: Counts what the worker was started on; messages of earlier generations are discarded.
        is_ready: The worker has told that it has its dataset.
        awaits_ready: The next ``ready`` is returned also if the worker was started before it came.
        unsent: Something is kept for :meth:`flush`.
        batch: Makes the batch that a message carries.
    """

    index: int
    batch: Callable[[Message], Any]
    generation = protocol.BEFORE_ANY
    is_ready = True
    awaits_ready = False
    unsent = False

    @property
    def is_available(self) -> bool:
        """True if the worker can be started now."""
        return True

    @property
    @abstractmethod
    def pid(self) -> int:
        """The process id, for messages and statistics."""

    @abstractmethod
    def start(self, epoch: int, positions: Mapping[int, Position]) -> None:
        """Has the worker leave what it does, and carry these streams, in the order of their turns."""

    @abstractmethod
    def stop(self) -> None:
        """Tells the worker to leave what it was started on."""

    @abstractmethod
    def receive(self) -> Message | None:
        """The next message of what the worker was started on, or ``None`` if none has arrived.

        Before it was started, it is the worker's ``ready``, or the error that came in its place.

        Raises:
            WorkerDied: The worker is gone, and every message that it had sent has been received.
            WorkerLost: The worker is away, and others are to carry its streams.
        """

    @abstractmethod
    def snapshot(self) -> CounterSnapshot:
        """The worker's counters; readable until :meth:`release`, also after its death."""

    @abstractmethod
    def disconnect(self) -> None:
        """Tells the worker to end."""

    def error(self, message: Message) -> BaseException:
        """The exception that an ``error`` or ``failed`` message carries."""
        return protocol.revive_error(message.fields, f"worker {self.index} (pid {self.pid})")

    def timed_out(self, timeout_s: float) -> WorkerTimeout:
        """The error for a worker that sent nothing for ``timeout_s`` seconds."""
        return WorkerTimeout(
            f"worker {self.index} delivered nothing for {timeout_s:g} s", self.index, self.pid
        )

    def give(self, task: bytes) -> None:
        """Gives the worker a pickled task of the epoch that it was started on last."""
        raise MpwdsError("these workers iterate their dataset; they take no tasks")

    def flush(self) -> None:
        """Sends what is kept, as far as there is room."""

    def register(self, poller: select.poll, *, receives: bool) -> None:
        """Registers what wakes the trainer: room for what is kept and, if it ``receives``, news."""

    def discard(self, message: Message, /) -> None:
        """Hands back the memory of a batch that nobody wants."""

    @property
    def arena(self) -> LeasedArena | None:
        """The worker's shared memory, as far as it is mapped here."""
        return None

    def wait(self, timeout_s: float) -> bool:
        """Waits for the worker to end; false if it still runs after ``timeout_s``."""
        return True

    def kill(self) -> None:
        """Ends a worker that does not end by itself."""

    def release(self) -> None:
        """Frees the trainer's end. Batches that the consumer holds stay valid."""


class EpochLeft(Exception):
    """Another thread has left the epoch."""


LONGEST_POLL_S = 1.0
"""A signal, such as Ctrl-C, that arrives just before the system call is handled only when that returns."""

_DEVICE_POLL_S = 0.001
_DEVICE_POLLS = 50


def next_message(
    candidates: Sequence[WorkerHandle],
    timeout: float | None,
    others: Iterable[WorkerHandle] = (),
    since: float | None = None,
    is_left: Callable[[], bool] = bool,
) -> tuple[WorkerHandle, Message]:
    """Waits for a message of one of the candidates, the most wanted first.

    ``timeout`` counts from ``since`` (by ``time.monotonic``) or now; ``others`` get what is kept for them
    meanwhile. Nothing tells when a device has read a block, so this looks, and after 50 looks waits for it.
    Raises EpochLeft if another thread has left the epoch meanwhile, before it takes what comes for the next.
    """
    began = time.monotonic() if since is None else since
    looks = 0
    while True:
        if is_left():
            raise EpochLeft
        for worker in candidates:
            message = worker.receive()
            if message is not None:
                return worker, message
        poller = select.poll()
        for worker in candidates:
            worker.register(poller, receives=True)
        full = [worker for worker in others if worker.unsent and worker not in candidates]
        for worker in full:
            worker.register(poller, receives=False)
        arenas = (worker.arena for worker in candidates)
        pending = next((arena for arena in arenas if arena is not None and arena.pending_device_reads), None)
        wait_s = LONGEST_POLL_S if pending is None else _DEVICE_POLL_S
        if timeout is not None:
            wait_s = min(wait_s, began + timeout - time.monotonic())
            if wait_s <= 0:
                raise candidates[0].timed_out(timeout)
        if not poller.poll(wait_s * 1000) and pending is not None:
            looks += 1
            if looks % _DEVICE_POLLS == 0:
                pending.release_finished()
        for worker in full:
            worker.flush()
