"""What a loader's ``stats()`` returns: figures, a table of them, and one line on what bounds the training."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from mpwds.stats.diagnosis import LITTLE, diagnose
from mpwds.stats.snapshot import THE_DATASET, WRITING_BATCHES, CounterSnapshot
from mpwds.viewing.wording import Table, as_html, as_text, counted, duration, per, three_digits


@dataclass(frozen=True)
class StageStats:
    """A stage of the pipeline, in one worker or in all of them.

    Attributes:
        name: The stage as it prints, ``map(crop)``, or ``map(crop) #2`` if another prints alike. ``"the
            dataset"`` is one that is not a pipeline of this package, ``"writing batches"`` collation by
            ``batched`` and the copy into shared memory.
        seconds: Time it took, without the stages before it.
        share: The same as a share of the workers' own work, 0 to 1.
        elements: Elements it made, delivered or not.
        storage: Whether it reads shards.
        nbytes: Bytes of shards that it read, after decompression of the shard.
    """

    name: str
    seconds: float
    share: float
    elements: int
    storage: bool = False
    nbytes: int = 0

    @property
    def elements_per_s(self) -> float:
        """Elements that one worker would make in a second if it did nothing else."""
        return per(self.elements, self.seconds)

    @property
    def bytes_per_s(self) -> float:
        """Bytes of shards that one worker would read in a second if it did nothing else."""
        return per(self.nbytes, self.seconds)


@dataclass(frozen=True)
class WorkerStats:
    """A worker.

    Attributes:
        worker: Its index.
        pid: Its process id; the latest one if it was restarted.
        batches: Batches, or single elements, that it sent.
        samples: Samples in them.
        nbytes: Bytes of their arrays.
        active_s: Seconds in which it had an epoch to do.
        waiting_s: Seconds of these in which it waited for the trainer to take batches.
        cpu_s: Seconds of processor time, of all its threads.
        queued_s: Seconds in which its main thread waited for a processor; 0 where the system does not tell.
        skipped: Elements that error handlers left out, by ``"stage: exception"``.
        restarts: How often it was restarted.
        stages: Its stages, in order.
        shard: The shard that it read last.
        server: URL of its server; empty if it runs on this machine, beside the trainer.
        lost_s: Seconds for which its server has not answered; 0 if it answers.
    """

    worker: int
    pid: int
    batches: int
    samples: int
    nbytes: int
    active_s: float
    waiting_s: float
    cpu_s: float
    queued_s: float
    skipped: dict[str, int]
    restarts: int
    stages: tuple[StageStats, ...]
    shard: str = ""
    server: str = ""
    lost_s: float = 0.0

    @property
    def working_s(self) -> float:
        """Seconds in which it worked: active and not waiting."""
        return self.active_s - self.waiting_s

    @property
    def waiting_share(self) -> float:
        """Share of its active time in which it waited for the trainer, 0 to 1."""
        return per(self.waiting_s, self.active_s)

    @property
    def samples_per_s(self) -> float:
        """Samples sent for each second of active time."""
        return per(self.samples, self.active_s)


@dataclass(frozen=True, repr=False)
class LoaderStats:
    """What a loader did in an epoch, or since it was made.

    ``print(stats)`` shows a table, as a notebook does, and ``stats.verdict`` says what to do. Shares and
    rates leave out the time to an epoch's first batch, in which workers start. A batch may also be a single
    element.

    Attributes:
        epoch: Number of the epoch that began last.
        first_batch_s: Seconds from the beginning of the epoch to its first batch; summed over epochs.
        waited_s: Seconds in which the training process waited for batches.
        received_s: Seconds in which it made tensors of what had arrived, private copies included.
        elsewhere_s: Seconds in which it did something else: the training step.
        stages_s: Seconds in stages behind the loader, such as ``rebatched``; estimated for small elements.
        batches: Batches delivered, to the first stage behind the loader if there is one; also those that a
            resumed epoch makes again.
        samples: Samples in them: the length of a batch's columns, 1 for a single sample, or what the
            dataset's last stage with a method ``samples_in`` returns.
        nbytes: Bytes of their arrays.
        batches_per_s: Batches delivered per second, as ``samples_per_s`` and ``bytes_per_s``.
        private_copies: Batches that were copied out of shared memory because the program keeps too many.
        in_order: Whether workers take turns.
        in_process: Whether there are no worker processes.
        cores: Processors that this process may use.
        others_cpu_s: Seconds of their time that other processes took; 0 where the system does not tell.
        workers: The workers; without worker processes, this process.
        stages_skipped: As ``skipped``, of stages behind the loader only.
        epochs: Number of epochs that the figures cover.

    Example:
        >>> from mpwds import MultiLoader
        >>> stats = MultiLoader([1, 2], workers=0).stats()
        >>> print(stats)
        epoch 0 has not begun
        >>> stats.as_dict()["samples"]
        0
    """

    epoch: int
    first_batch_s: float
    waited_s: float
    received_s: float
    elsewhere_s: float
    stages_s: float
    batches: int
    samples: int
    nbytes: int
    batches_per_s: float
    samples_per_s: float
    bytes_per_s: float
    private_copies: int
    in_order: bool
    in_process: bool
    cores: int
    workers: tuple[WorkerStats, ...]
    stages_skipped: dict[str, int] = dataclasses.field(default_factory=dict)
    epochs: int = 1
    others_cpu_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the first batch."""
        return self.waited_s + self.received_s + self.elsewhere_s + self.stages_s

    @property
    def waiting_share(self) -> float:
        """Share of the time in which the training process waited for batches, 0 to 1."""
        return per(self.waited_s, self.seconds)

    @property
    def workers_waiting_share(self) -> float:
        """Share of the workers' time in which they waited for the training process, 0 to 1."""
        active_s = sum(worker.active_s for worker in self.workers)
        return per(sum(worker.waiting_s for worker in self.workers), active_s)

    @property
    def others_share(self) -> float:
        """Share of the processors' time that other processes took, 0 to 1."""
        return min(1.0, per(self.others_cpu_s, self.seconds * self.cores))

    @property
    def stages(self) -> tuple[StageStats, ...]:
        """The stages, of all workers together."""
        working_s = sum(worker.working_s for worker in self.workers)
        by_name: dict[str, list[StageStats]] = {}
        for worker in self.workers:
            for stage in worker.stages:
                by_name.setdefault(stage.name, []).append(stage)
        stages = []
        for name, same in by_name.items():
            seconds = sum(stage.seconds for stage in same)
            elements, nbytes = (
                sum(getattr(stage, what) for stage in same) for what in ("elements", "nbytes")
            )
            share, storage = per(seconds, working_s), same[0].storage
            stages.append(StageStats(name, seconds, share, elements, storage, nbytes))
        return tuple(stages)

    @property
    def skipped(self) -> dict[str, int]:
        """Elements that error handlers left out, by ``"stage: exception"``, in workers and behind them."""
        return dict(sum((Counter(worker.skipped) for worker in self.workers), Counter(self.stages_skipped)))

    @property
    def lost(self) -> dict[str, float]:
        """The servers that do not answer, by URL, and for how many seconds."""
        return {worker.server: worker.lost_s for worker in self.workers if worker.lost_s}

    @property
    def restarts(self) -> int:
        """How often workers were restarted."""
        return sum(worker.restarts for worker in self.workers)

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


def worker_stats(worker: int, counters: CounterSnapshot) -> WorkerStats:
    """A worker's statistics. Its working time is divided as the stages' estimated times are."""
    rest = "between stages" if counters.stages else THE_DATASET if counters.batches else ""  # not known yet
    stages = {
        rest: replace(counters.other, elements=counters.batches),
        **counters.stages,
        WRITING_BATCHES: replace(counters.writing, elements=counters.batches),
    }
    total_ns = sum(stage.time_ns for stage in stages.values())
    working_s = (counters.active_ns - counters.waiting_ns) / 1e9
    shares = {name: per(stage.time_ns, total_ns) for name, stage in stages.items() if name}
    return WorkerStats(
        worker=worker,
        pid=counters.pid,
        batches=counters.batches,
        samples=counters.samples,
        nbytes=counters.nbytes,
        active_s=counters.active_ns / 1e9,
        waiting_s=counters.waiting_ns / 1e9,
        cpu_s=counters.cpu_ns / 1e9,
        queued_s=counters.queued_ns / 1e9,
        skipped=dict(counters.skipped),
        restarts=counters.restarts,
        shard=counters.shard,
        server=counters.server,
        lost_s=counters.lost_s,
        stages=tuple(
            StageStats(name, share * working_s, share, each.elements, each.storage, each.nbytes)
            for name, share in shares.items()
            for each in (stages[name],)
        ),
    )


# The table

_NEGLIGIBLE = 0.005
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
        were = "was" if stats.private_copies == 1 else "were"
        copied = counted(stats.private_copies, "batch")
        parts.append(f"{copied} {were} copied out of shared memory: many are kept")
    if stats.others_share > LITTLE:
        parts.append(f"other processes take {stats.others_share:.0%} of the {stats.cores} processors")
    columns: tuple[str, ...] = ("worker", "pid", "batches", "samples/s", "MB", "active", "waits")
    columns += ("cpu", "queued", "skipped", "restarts", "shard")
    remote = any(worker.server for worker in stats.workers)
    rows = tuple(_worker_row(worker) + (_server_of(worker),) * remote for worker in stats.workers)
    parts.append(Table("", columns + ("server",) * remote, 1, rows))
    stages = tuple(_stage_row(stage, stats.workers) for stage in stats.stages if stage.share >= _NEGLIGIBLE)
    columns = ("stage", "share", "time", "elements", "ms each", "elements/s", "MB/s", "by worker")
    parts.append(Table("", columns if stages else (), 1, stages))
    parts += [f"left out: {count:,} in {kind}" for kind, count in stats.skipped.items()]
    return [*parts, f"verdict: {stats.verdict}"]


def _worker_row(worker: WorkerStats) -> tuple[str, ...]:
    return (
        str(worker.worker),
        str(worker.pid),
        f"{worker.batches:,}",
        f"{worker.samples_per_s:,.1f}",
        f"{worker.nbytes / 1e6:,.1f}",
        f"{worker.active_s:.1f} s",
        f"{worker.waiting_share:.0%}",
        f"{worker.cpu_s:.1f} s",
        f"{worker.queued_s:.1f} s",
        str(sum(worker.skipped.values())),
        str(worker.restarts),
        worker.shard.rpartition("/")[2] or "-",
    )


def _server_of(worker: WorkerStats) -> str:
    lost = f" (no answer for {duration(worker.lost_s)})" if worker.lost_s else ""
    return f"{worker.server or 'here'}{lost}"


def _stage_row(stage: StageStats, workers: tuple[WorkerStats, ...]) -> tuple[str, ...]:
    name = stage.name
    same = [each for worker in workers for each in worker.stages if each.name == name]
    return (
        name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "...",
        f"{stage.share:.0%}",
        f"{stage.seconds:.1f} s",
        f"{stage.elements:,}",
        three_digits(stage.seconds / stage.elements * 1e3) if stage.elements else "-",
        f"{stage.elements_per_s:,.0f}" if stage.elements else "-",
        f"{stage.bytes_per_s / 1e6:,.1f}" if stage.nbytes else "-",
        " ".join(f"{each.share:.0%}" for each in same),
    )
