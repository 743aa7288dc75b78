"""Waiting for the next message of some workers: on their channels and on their processes, at once."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Sequence

from mpwds.loader.channel import Message
from mpwds.loader.remote import RemoteWorker

_LONGEST_POLL_S = 86_400.0


def next_message(
    candidates: Sequence[RemoteWorker],
    generation: int,
    timeout: float | None,
    others: Iterable[RemoteWorker] = (),
) -> tuple[RemoteWorker, Message]:
    """The next message of a generation, and the worker that sent it.

    Args:
        candidates: The workers whose messages are wanted, the most wanted first.
        generation: The epoch's.
        timeout: Seconds to wait; ``None`` waits for ever.
        others: Workers that are meanwhile told what they have not heard yet.

    Raises:
        WorkerDied: A candidate is gone, and everything it had sent has been received.
        WorkerTimeout: None of them sent anything for ``timeout`` seconds.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        for worker in candidates:
            message = worker.receive(generation)
            if message is not None:
                return worker, message
        poller = select.poll()
        for worker in candidates:
            poller.register(worker, select.POLLIN | (select.POLLOUT if worker.unheard else 0))
            poller.register(worker.process, select.POLLIN)
        deaf = [worker for worker in others if worker.unheard and worker not in candidates]
        for worker in deaf:
            poller.register(worker, select.POLLOUT)
        remaining_s = _LONGEST_POLL_S if deadline is None else deadline - time.monotonic()
        if remaining_s <= 0:
            raise candidates[0].timed_out(timeout or 0.0)
        poller.poll(min(remaining_s, _LONGEST_POLL_S) * 1000)
        for worker in deaf:
            worker.tell()
