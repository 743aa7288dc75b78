"""Wait for the next message of some workers, on their channels and their processes at once."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Sequence

from mpwds.loader.engine.channel import Message
from mpwds.loader.engine.local_worker import RemoteWorker

LONGEST_POLL_S = 1.0
"""A signal that arrives just before the system call, as of Ctrl-C, is handled only when that returns."""

_DEVICE_POLL_S = 0.001
_DEVICE_POLLS = 50


def next_message(
    candidates: Sequence[RemoteWorker],
    generation: int,
    timeout: float | None,
    others: Iterable[RemoteWorker] = (),
) -> tuple[RemoteWorker, Message]:
    """The next message of a generation, and the worker that sent it.

    A worker may lack a block that a device still reads. Nothing tells when the device is done, so this looks
    every millisecond, and after 50 looks waits for the device.

    Args:
        candidates: Workers whose messages are wanted, the most wanted first.
        generation: Generation of the epoch.
        timeout: Seconds to wait; ``None`` waits for ever.
        others: Workers that get commands meanwhile, if their channels were full.

    Raises:
        WorkerDied: A candidate is gone, and everything it had sent has been received.
        WorkerTimeout: None of them sent anything for ``timeout`` seconds.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    looks = 0
    while True:
        arrived = message_here(candidates, generation)
        if arrived is not None:
            return arrived
        poller = select.poll()
        for worker in candidates:
            poller.register(worker, select.POLLIN | (select.POLLOUT if worker.unheard else 0))
            poller.register(worker.process, select.POLLIN)
        deaf = [worker for worker in others if worker.unheard and worker not in candidates]
        for worker in deaf:
            poller.register(worker, select.POLLOUT)
        remaining_s = LONGEST_POLL_S if deadline is None else deadline - time.monotonic()
        if remaining_s <= 0:
            raise candidates[0].timed_out(timeout or 0.0)
        unsettled = next((worker for worker in candidates if worker.unsettled), None)
        longest_s = LONGEST_POLL_S if unsettled is None else _DEVICE_POLL_S
        if not poller.poll(min(remaining_s, longest_s) * 1000) and unsettled is not None:
            looks += 1
            if looks % _DEVICE_POLLS == 0:
                unsettled.settle()
        for worker in deaf:
            worker.tell()


def message_here(candidates: Sequence[RemoteWorker], generation: int) -> tuple[RemoteWorker, Message] | None:
    """The next message of a generation that has arrived, and the worker that sent it; never waits.

    Raises:
        WorkerDied: A candidate is gone, and everything it had sent has been received.
    """
    for worker in candidates:
        message = worker.receive(generation)
        if message is not None:
            return worker, message
    return None
