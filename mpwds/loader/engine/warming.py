"""Waiting until workers have their dataset."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

from mpwds.loader.engine import failures
from mpwds.loader.engine.local_worker import RemoteWorker
from mpwds.loader.engine.waiting import LONGEST_POLL_S


def wait_until_ready(workers: Sequence[RemoteWorker], timeout: float | None) -> None:
    """Returns when all workers are ready.

    Args:
        workers: The workers, started.
        timeout: Seconds to wait for all of them; ``None`` waits for ever.

    Raises:
        Exception: What unpickling the dataset in a worker raised.
        WorkerDied: A worker is gone.
        WorkerTimeout: The time is over.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    for worker in workers:
        poller = select.poll()
        poller.register(worker, select.POLLIN)
        poller.register(worker.process, select.POLLIN)
        while not _is_ready(worker):
            remaining_s = LONGEST_POLL_S if deadline is None else deadline - time.monotonic()
            if remaining_s <= 0:
                raise worker.timed_out(
                    timeout or 0.0, "was not ready within", "starting and unpickling the dataset"
                )
            poller.poll(min(remaining_s, LONGEST_POLL_S) * 1000)


def _is_ready(worker: RemoteWorker) -> bool:
    message = worker.receive_ready()
    if message is not None:
        raise failures.revive(message.fields, worker.index, worker.process.pid)
    return worker.is_ready
