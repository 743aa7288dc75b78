"""What happens when a worker dies: an error, or another process in its place."""

from __future__ import annotations

from typing import Literal

from mpwds.errors import WorkerDied
from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.engine.local_worker import RemoteWorker
from mpwds.loader.resume.progress import EpochProgress
from mpwds.warn import warn

OnWorkerDeath = Literal["raise", "restart"]

MOST_DEATHS = 3
"""A worker that dies this often without delivering a batch in between is not started again."""


class Restarts:
    """Replaces workers that die during an epoch.

    Everything that a worker had sent is delivered before its death is noticed. So the new process starts from
    the worker's last state, and drops the batches that were delivered since.

    Args:
        group: The workers.
        generation: The epoch's generation.
        progress: How much of the epoch was delivered.
        on_worker_death: ``"raise"`` raises the error.
        in_order: Whether workers take turns.
    """

    def __init__(
        self,
        group: WorkerGroup,
        generation: int,
        progress: EpochProgress,
        on_worker_death: OnWorkerDeath,
        in_order: bool,
    ) -> None:
        self._group = group
        self._generation = generation
        self._progress = progress
        self._allowed = on_worker_death == "restart"
        self._in_order = in_order
        self._deaths: dict[int, tuple[int, int]] = {}  # of each worker: at which batch, how often there

    def __call__(self, death: WorkerDied) -> RemoteWorker:
        """Starts a new process for a worker that died, and returns it.

        Warns:
            RuntimeWarning: Who died, of what, and that a new process took its place.

        Raises:
            WorkerDied: ``on_worker_death`` is ``"raise"``, or this worker died too often.
        """
        index = death.worker
        worker = self._progress.workers[index]
        batch, count = self._deaths.get(index, (-1, 0))
        count = count + 1 if batch == worker.received else 1
        self._deaths[index] = worker.received, count
        if not self._allowed:
            raise death
        if count >= MOST_DEATHS:
            raise WorkerDied(
                f"{death}. It died {count} times in a row before batch {worker.received} of this epoch, so "
                "it is not started again: leave out the sample that kills it, or give it more memory",
                index,
                death.pid,
                death.exitcode,
            ) from None
        position = worker.position(worker.received)
        remote = self._group.restart(index)
        remote.start(self._progress.epoch, self._generation, position)
        order = " and the order is unchanged" if self._in_order else ""
        warn(
            f"{death}. A new process (pid {remote.process.pid}, restart {remote.restarts}) took its place: "
            f"no batch is lost or delivered twice{order}"
        )
        return remote
