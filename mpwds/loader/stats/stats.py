"""What a loader's ``stats()`` returns: who waited for whom, and for what."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StageStats:
    """A stage of the pipeline, in one worker or in all of them.

    Attributes:
        name: The stage as it prints, ``map(crop)``; a second one that prints alike is ``map(crop) #2``.
            ``"the dataset"`` is what no stage of ours does, ``"writing batches"`` what puts them into shared
            memory, collation by ``batched`` with it.
        seconds: What it took, without the stages before it.
        share: The same as a share of the workers' own work, 0 to 1.
        elements: What came out of it, more than was delivered if some is still on its way, or made again.
        storage: Whether it reads shards.
    """

    name: str
    seconds: float
    share: float
    elements: int
    storage: bool = False

    @property
    def elements_per_s(self) -> float:
        """Elements that one worker would make in a second if it did nothing else."""
        return _per(self.elements, self.seconds)


@dataclass(frozen=True)
class WorkerStats:
    """A worker.

    Attributes:
        worker: Its index.
        pid: Its process id; of the last one, if it was started again.
        batches: Batches, or single elements, that it sent.
        samples: Samples in them.
        nbytes: Bytes of their arrays.
        active_s: Seconds in which it had an epoch to do.
        waiting_s: Seconds of these in which it waited for the trainer: for a free block, or for room in its
            channel.
        cpu_s: Seconds of processor time, of all its threads.
        queued_s: Seconds in which its main thread could run, but others had the processors; 0 where the
            system does not tell.
        skipped: Elements that error handlers left out, by ``"stage: exception"``.
        restarts: How often it was started again.
        stages: What it works on, in the order of the pipeline.
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

    @property
    def working_s(self) -> float:
        """Seconds that it worked: the active ones without waiting."""
        return self.active_s - self.waiting_s

    @property
    def waiting_share(self) -> float:
        """Share of its active time in which it waited for the trainer, 0 to 1."""
        return _per(self.waiting_s, self.active_s)

    @property
    def samples_per_s(self) -> float:
        """Samples sent for each second of active time."""
        return _per(self.samples, self.active_s)


@dataclass(frozen=True)
class LoaderStats:
    """What a loader did since some moment. ``print(stats)`` shows a table, ``stats.verdict`` says what to do.

    The time to the first batch of an epoch, in which workers start, is counted by itself: shares and rates
    are of the time after it. Batches are what is delivered, be it single elements.

    Attributes:
        epoch: Number of the epoch, the last one that began.
        first_batch_s: Seconds from the beginning of the epoch to its first batch; of several epochs, the sum.
        waited_s: Seconds that the training process waited for batches.
        received_s: Seconds that it took to make tensors of what had come, private copies with it.
        elsewhere_s: Seconds that it spent outside: the training step.
        stages_s: Seconds that it spent in stages behind the loader, such as ``rebatched``. Where these yield
            many small elements, it is estimated from some of them.
        batches: Batches delivered; behind stages, to the first of them. Batches that a resumed epoch makes
            again, because stages held rows of them, count here too.
        samples: Samples in them: the length that all columns of a batch have, 1 for a single sample, or what
            the dataset's last stage with a method ``samples_in`` says.
        nbytes: Bytes of their arrays.
        batches_per_s: Batches delivered for each second.
        samples_per_s: Samples delivered for each second.
        bytes_per_s: Bytes delivered for each second.
        private_copies: Batches that were copied out of shared memory because too many are kept.
        in_order: Whether workers take turns.
        in_process: Whether there are no worker processes.
        cores: Processors that this process may use.
        workers: The workers. Without worker processes there is one, which is this process.
        stages_skipped: Elements that error handlers of stages behind the loader left out, by
            ``"stage: exception"``.
        epochs: How many epochs it is about.
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

    @property
    def seconds(self) -> float:
        """Seconds since the first batch."""
        return self.waited_s + self.received_s + self.elsewhere_s + self.stages_s

    @property
    def waiting_share(self) -> float:
        """Share of the time in which the training process waited for batches, 0 to 1."""
        return _per(self.waited_s, self.seconds)

    @property
    def workers_waiting_share(self) -> float:
        """Share of the workers' time in which they waited for the training process, 0 to 1."""
        active_s = sum(worker.active_s for worker in self.workers)
        return _per(sum(worker.waiting_s for worker in self.workers), active_s)

    @property
    def stages(self) -> tuple[StageStats, ...]:
        """The stages, of all workers together."""
        names = dict.fromkeys(stage.name for worker in self.workers for stage in worker.stages)
        working_s = sum(worker.working_s for worker in self.workers)
        return tuple(self._stage(name, working_s) for name in names)

    @property
    def skipped(self) -> dict[str, int]:
        """Elements that error handlers left out, by ``"stage: exception"``, in workers and behind them."""
        total: dict[str, int] = {}
        for skipped in (*(worker.skipped for worker in self.workers), self.stages_skipped):
            for kind, count in skipped.items():
                total[kind] = total.get(kind, 0) + count
        return total

    @property
    def restarts(self) -> int:
        """How often workers were started again."""
        return sum(worker.restarts for worker in self.workers)

    @property
    def verdict(self) -> str:
        """One line: what bounds the training, and what to do about it."""
        from mpwds.loader.stats.verdict import verdict_on

        return verdict_on(self)

    @property
    def in_short(self) -> str:
        """One line: the rate, and the verdict."""
        return f"{self.samples_per_s:,.1f} samples/s; {self.verdict}"

    def as_dict(self) -> dict[str, Any]:
        """The same as dicts, lists, numbers and strings, for logging.

        Example:
            >>> from mpwds import MultiLoader
            >>> loader = MultiLoader([1, 2], workers=0)
            >>> batches = list(loader)
            >>> loader.stats().as_dict()["samples"]
            2
        """
        own = ("seconds", "waiting_share", "workers_waiting_share", "skipped", "restarts", "verdict")
        return {
            **dataclasses.asdict(self),
            **{name: getattr(self, name) for name in own},
            "workers": [dataclasses.asdict(worker) for worker in self.workers],
            "stages": [dataclasses.asdict(stage) for stage in self.stages],
        }

    def __str__(self) -> str:
        from mpwds.loader.stats.stats_table import table_of

        return table_of(self)

    def _stage(self, name: str, working_s: float) -> StageStats:
        same = [stage for worker in self.workers for stage in worker.stages if stage.name == name]
        seconds = sum(stage.seconds for stage in same)
        elements = sum(stage.elements for stage in same)
        return StageStats(name, seconds, _per(seconds, working_s), elements, same[0].storage)


def _per(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0
