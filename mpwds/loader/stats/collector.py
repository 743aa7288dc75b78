"""Collects the figures of a loader's epochs, from which its stats are made."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from mpwds.loader.stats.trainer_times import TrainerReading, TrainerTimes
from mpwds.loader.worker.counters import WorkerReading
from mpwds.loader.worker.meter import name_of
from mpwds.pipeline.context import Context
from mpwds.pipeline.stream import Stream

if TYPE_CHECKING:
    from mpwds.loader.stats.stats import LoaderStats

Since = Literal["epoch", "start"]


class StatsCollector:
    """Adds up epochs, and tells the current one from those before.

    ``in_order`` and ``in_process`` may change between epochs. ``times`` is the clock of the last epoch.
    """

    def __init__(
        self,
        read_workers: Callable[[], Sequence[WorkerReading]],
        read_copies: Callable[[], int],
        *,
        in_order: bool,
        in_process: bool,
    ) -> None:
        self._read_workers = read_workers
        self._read_copies = read_copies
        self.in_order, self.in_process = in_order, in_process
        self._epoch = self._epochs = 0
        self._earlier = TrainerReading()
        self.times = TrainerTimes()
        self._workers_before: dict[int, WorkerReading] = {}
        self._copies_before = 0
        self._skipped: Counter[str] = Counter()
        self._skipped_before: Counter[str] = Counter()

    def begin(self, epoch: int, times: TrainerTimes) -> None:
        """Begins an epoch with the clock of its iterator. To be called before the workers begin."""
        if self._epochs:
            self.times.end()
            self._earlier += self.times.read()
        self._epoch, self.times = epoch, times
        self._epochs += 1
        self._workers_before = {worker.index: worker for worker in self._read_workers()}
        self._copies_before = self._read_copies()
        self._skipped_before = self._skipped.copy()

    def watch(self, part: Any, stream: Stream[Any], context: Context) -> Stream[Any]:
        """Counts what the error handler of a stage behind the loader leaves out: see ``Context.watch``."""
        if hasattr(stream, "on_skipped"):
            stream.on_skipped = functools.partial(self._count_skipped, name_of(part))
        return stream

    def _count_skipped(self, stage: str, error: Exception) -> None:
        self._skipped[f"{stage}: {type(error).__name__}"] += 1

    def stats(self, since: Since) -> LoaderStats:
        """Figures since the epoch began, or since the loader was made."""
        from mpwds.loader.stats.stats import LoaderStats, worker_stats

        if since not in ("epoch", "start"):
            raise ValueError(f"stats: since must be 'epoch' or 'start', got {since!r}")
        whole = since == "start"
        trainer = self.times.read() if self._epochs else TrainerReading()
        trainer = self._earlier + trainer if whole else trainer
        before = {} if whole else self._workers_before
        workers = [worker_stats(now.since(before.get(now.index))) for now in self._read_workers()]
        own_ns = trainer.cpu_ns + sum(
            worker.cpu_s * 1e9 for worker in workers if not (self.in_process or worker.server)
        )
        seconds = (trainer.waited_ns + trainer.received_ns + trainer.elsewhere_ns + trainer.stages_ns) / 1e9

        def rate(count: int, first: int) -> float:
            return (count - first) / seconds if seconds else 0.0

        return LoaderStats(
            epoch=self._epoch,
            first_batch_s=trainer.first_ns / 1e9,
            waited_s=trainer.waited_ns / 1e9,
            received_s=trainer.received_ns / 1e9,
            elsewhere_s=trainer.elsewhere_ns / 1e9,
            stages_s=trainer.stages_ns / 1e9,
            batches=trainer.batches,
            samples=trainer.samples,
            nbytes=trainer.nbytes,
            batches_per_s=rate(trainer.batches, trainer.first_batches),
            samples_per_s=rate(trainer.samples, trainer.first_samples),
            bytes_per_s=rate(trainer.nbytes, trainer.first_nbytes),
            private_copies=self._read_copies() - (0 if whole else self._copies_before),
            in_order=self.in_order,
            in_process=self.in_process,
            cores=len(os.sched_getaffinity(0)),
            workers=tuple(workers) if self._epochs else (),
            stages_skipped=dict(self._skipped if whole else self._skipped - self._skipped_before),
            epochs=self._epochs if whole else 1,
            others_cpu_s=max(0.0, trainer.busy_ns - own_ns) / 1e9,
        )
