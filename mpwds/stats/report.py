"""The result of a loader's ``stats()``: measures, a table of them, and a line on what bounds the training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpwds.stats.diagnosis import LITTLE, copied, diagnose
from mpwds.stats.measures import LoaderMeasures, StageStats, WorkerStats
from mpwds.viewing.wording import Table, as_html, as_text, counted, duration, three_digits


@dataclass(frozen=True, repr=False)
class LoaderStats(LoaderMeasures):
    """The work of a loader in an epoch, or since it was made.

    ``print(stats)`` shows a table, as a notebook does, and ``stats.verdict`` says what to do. Shares and
    rates leave out the time to an epoch's first batch, in which workers start. A batch may also be a single
    element.

    Attributes:
        epoch: Number of the epoch that began last.
        first_batch_s: Seconds from the beginning of the epoch to its first batch; summed over epochs.
        waited_s: Seconds in which the training process waited for batches.
        received_s: Seconds in which it made tensors of what had arrived, private copies included.
        elsewhere_s: Seconds in which it did something else: the training step.
        stages_s: Seconds in stages after the loader, such as ``rebatched``; estimated for small elements.
        batches: Batches delivered, to the first stage after the loader if there is one; also those that a
            resumed epoch makes again.
        samples: Samples in them: the length of a batch's columns, 1 for a single sample, or what the
            dataset's last stage with a method ``samples_in`` returns.
        nbytes: Bytes of their arrays, as workers send them, each array with a header of some 180.
        batches_per_s: Batches delivered per second, as ``samples_per_s`` and ``bytes_per_s``.
        private_copies: Batches that were copied out of shared memory because the program keeps too many.
        in_order: Whether workers take turns.
        in_process: Whether there are no worker processes.
        cores: Processors that this process may use.
        others_cpu_s: Seconds of their time that other processes took; 0 where the system does not tell.
        workers: The workers; without worker processes, this process.
        stages_skipped: As ``skipped``, of stages after the loader only.
        epochs: Number of epochs that the figures cover.
        buffered: Elements that the ``shuffle`` buffers of all streams of this loader hold, at the most. Each
            stream has its own, and a worker may carry several (``streams=``).

    Example:
        >>> from mpwds import MultiLoader
        >>> stats = MultiLoader([1, 2], workers=0).stats()
        >>> print(stats)
        epoch 0 has not begun
        >>> stats.as_dict()["samples"]
        0
    """

    @property
    def verdict(self) -> str:
        """One line: what bounds the training, and what to do about it."""
        return diagnose(self)

    @property
    def in_short(self) -> str:
        """One line: the rate, and the verdict."""
        return f"{self.samples_per_s:,.1f} samples/s; {self.verdict}"

    def as_dict(self) -> dict[str, Any]:
        """The same as dicts, lists, numbers and strings, for logging."""
        own = ("seconds", "waiting_share", "workers_waiting_share", "skipped", "lost", "restarts", "verdict")
        return {
            **dataclasses.asdict(self),
            **{name: getattr(self, name) for name in own},
            "workers": [dataclasses.asdict(worker) for worker in self.workers],
            "stages": [dataclasses.asdict(stage) for stage in self.stages],
        }

    def __repr__(self) -> str:
        batches = counted(self.batches, "batch")
        return f"<{type(self).__name__}: epoch {self.epoch}, {batches}, {self.in_short}>"

    def __str__(self) -> str:
        return as_text(_parts(self))

    def _repr_html_(self) -> str:
        return as_html(_parts(self))


# The table

NEGLIGIBLE = 0.005
"""Share of workers' time below which a stage is not shown."""

_LONGEST_NAME = 48


def _parts(stats: LoaderStats) -> list[str | Table]:
    """The trainer, the workers, the stages that take half a percent or more, and the verdict."""
    if not stats.workers:
        return [f"epoch {stats.epoch} has not begun"]
    seconds = stats.seconds or 1.0
    in_stages = f"is in stages {stats.stages_s / seconds:.0%}, " if stats.stages_s else ""
    epochs, first_batch, which = f"epoch {stats.epoch}", "the first batch", "which"
    if stats.epochs > 1:
        epochs = f"{stats.epochs} epochs, the last of them number {stats.epoch}"
        first_batch, which = "the first batches", "which together"
    parts: list[str | Table] = [
        f"{epochs}: {counted(stats.batches, 'batch')}, {counted(stats.samples, 'sample')}, "
        f"in {stats.seconds:.1f} s after {first_batch}, {which} took {stats.first_batch_s:.1f} s",
        f"{stats.samples_per_s:,.1f} samples/s, {stats.batches_per_s:,.1f} batches/s, "
        f"{stats.bytes_per_s / 1e6:,.1f} MB/s",
        f"trainer: waits {stats.waiting_share:.0%}, receives {stats.received_s / seconds:.0%}, "
        f"{in_stages}is elsewhere {stats.elsewhere_s / seconds:.0%} of the time",
    ]
    if stats.private_copies:
        parts.append(f"{copied(stats)}: many are kept")
    if stats.buffered:
        parts.append(f"shuffle buffers hold up to {counted(stats.buffered, 'element')}")
    if stats.others_share > LITTLE:
        parts.append(f"other processes take {stats.others_share:.0%} of the {stats.cores} processors")
    remote = any(worker.server for worker in stats.workers)
    of_workers = {**_OF_WORKER, "server": _server_of} if remote else _OF_WORKER
    parts.append(Table.of("", 1, of_workers, stats.workers))
    if shown := [stage for stage in stats.stages if stage.share >= NEGLIGIBLE]:

        def by_worker(stage: StageStats) -> str:
            same = (each for worker in stats.workers for each in worker.stages if each.name == stage.name)
            return " ".join(f"{each.share:.0%}" for each in same)

        parts.append(Table.of("", 1, {**_OF_STAGE, "by worker": by_worker}, shown))
    parts += [f"left out: {count:,} in {kind}" for kind, count in stats.skipped.items()]
    return [*parts, f"verdict: {stats.verdict}"]


def _server_of(worker: WorkerStats) -> str:
    lost = f" (no answer for {duration(worker.lost_s)})" if worker.lost_s else ""
    return f"{worker.server or 'here'}{lost}"


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."


_OF_WORKER: dict[str, Callable[[WorkerStats], str]] = {
    "worker": lambda each: str(each.worker),
    "pid": lambda each: str(each.pid),
    "batches": lambda each: f"{each.batches:,}",
    "samples/s": lambda each: f"{each.samples_per_s:,.1f}",
    "MB": lambda each: f"{each.nbytes / 1e6:,.1f}",
    "active": lambda each: f"{each.active_s:.1f} s",
    "waits": lambda each: f"{each.waiting_share:.0%}",
    "cpu": lambda each: f"{each.cpu_s:.1f} s",
    "queued": lambda each: f"{each.queued_s:.1f} s",
    "skipped": lambda each: str(sum(each.skipped.values())),
    "restarts": lambda each: str(each.restarts),
    "shard": lambda each: each.shard.rpartition("/")[2] or "-",
}
_OF_STAGE: dict[str, Callable[[StageStats], str]] = {
    "stage": lambda each: _short(each.name),
    "share": lambda each: f"{each.share:.0%}",
    "time": lambda each: f"{each.seconds:.1f} s",
    "elements": lambda each: f"{each.elements:,}",
    "ms each": lambda each: three_digits(each.seconds / each.elements * 1e3) if each.elements else "-",
    "elements/s": lambda each: f"{each.elements_per_s:,.0f}" if each.elements else "-",
    "MB/s": lambda each: f"{each.bytes_per_s / 1e6:,.1f}" if each.nbytes else "-",
}
