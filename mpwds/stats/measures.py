"""Times and counts of stages, workers and a loader, and what follows from them by arithmetic."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from mpwds.stats.snapshot import THE_DATASET, WRITING_BATCHES, CounterSnapshot
from mpwds.viewing.wording import per


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
        nbytes: Bytes of their arrays, as workers send them, each array with a header of some 180.
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


@dataclass(frozen=True)
class Rates:
    """Batches that were delivered or sent in some time, in all and per second."""

    batches: int
    samples: int
    nbytes: int
    batches_per_s: float
    samples_per_s: float
    bytes_per_s: float


def rates_of(batches: int, samples: int, nbytes: int, seconds: float) -> dict[str, Any]:
    """The fields of :class:`Rates`, for what was sent in some seconds."""
    sent = {"batches": batches, "samples": samples, "bytes": nbytes}
    per_s = {f"{name}_per_s": per(amount, seconds) for name, amount in sent.items()}
    return {"batches": batches, "samples": samples, "nbytes": nbytes, **per_s}


@dataclass(frozen=True, repr=False)
class LoaderMeasures(Rates):
    """The measures of a loader's work: see ``LoaderStats``, which describes the attributes."""

    cores: int
    workers: tuple[WorkerStats, ...]
    waited_s: float
    epoch: int = 0
    first_batch_s: float = 0.0
    received_s: float = 0.0
    elsewhere_s: float = 0.0
    stages_s: float = 0.0
    private_copies: int = 0
    in_order: bool = True
    in_process: bool = False
    stages_skipped: dict[str, int] = field(default_factory=dict)
    epochs: int = 1
    others_cpu_s: float = 0.0
    buffered: int = 0

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
            elements, nbytes = sum(stage.elements for stage in same), sum(stage.nbytes for stage in same)
            share, storage = per(seconds, working_s), same[0].storage
            stages.append(StageStats(name, seconds, share, elements, storage, nbytes))
        return tuple(stages)

    @property
    def skipped(self) -> dict[str, int]:
        """Elements that error handlers left out, by ``"stage: exception"``, in workers and after them."""
        return dict(sum((Counter(worker.skipped) for worker in self.workers), Counter(self.stages_skipped)))

    @property
    def lost(self) -> dict[str, float]:
        """The servers that do not answer, by URL, and for how many seconds."""
        return {worker.server: worker.lost_s for worker in self.workers if worker.lost_s}

    @property
    def restarts(self) -> int:
        """Number of restarts of workers."""
        return sum(worker.restarts for worker in self.workers)


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
