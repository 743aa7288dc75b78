"""Starts another process in the place of a worker that died."""

from __future__ import annotations

from dataclasses import dataclass, field

from mpwds.errors import WorkerDied
from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.engine.worker_handle import WorkerHandle
from mpwds.loader.resume.progress import EpochProgress
from mpwds.warn import warn

MOST_DEATHS = 3
"""A worker that dies this often without delivering a batch in between is not started again."""


@dataclass
class Restarts:
    """Replaces workers that die during an epoch.

    A worker's death is reported only after everything that it had sent was delivered. So the new process
    starts from the worker's last state, and drops the batches that were delivered since.
    """

    group: WorkerGroup
    generation: int
    progress: EpochProgress
    in_order: bool
    _deaths: dict[int, tuple[int, int]] = field(default_factory=dict)  # at which batch, how often there

    def __call__(self, death: WorkerDied) -> WorkerHandle:
        index = death.worker
        progress = self.progress.workers[index]
        batch, count = self._deaths.get(index, (-1, 0))
        count = count + 1 if batch == progress.received else 1
        self._deaths[index] = progress.received, count
        if count >= MOST_DEATHS:
            raise WorkerDied(
                f"{death}. It died {count} times in a row before batch {progress.received} of this epoch, so "
                "it is not started again: leave out the sample that kills it, or give it more memory",
                index,
                death.pid,
                death.exitcode,
            ) from None
        worker = self.group.restart(index)
        worker.start(self.progress.epoch, self.generation, progress.position(progress.received))
        order = " and the order is unchanged" if self.in_order else ""
        warn(
            f"{death}. A new process (pid {worker.pid}, restart {self.group.restarts[index]}) took its "
            f"place: no batch is lost or delivered twice{order}"
        )
        return worker
