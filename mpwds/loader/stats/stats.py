"""What a loader's ``stats()`` returns: figures, a table of them, and one line on what bounds the training."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Any, TypeAlias

from mpwds.loader.worker.counters import THE_DATASET, WRITING_BATCHES, WorkerReading
from mpwds.viewing.wording import duration, three_digits


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
        return _per(self.elements, self.seconds)

    @property
    def bytes_per_s(self) -> float:
        """Bytes of shards that one worker would read in a second if it did nothing else."""
        return _per(self.nbytes, self.seconds)


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
        return _per(self.waiting_s, self.active_s)

    @property
    def samples_per_s(self) -> float:
        """Samples sent for each second of active time."""
        return _per(self.samples, self.active_s)


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
        return _per(self.waited_s, self.seconds)

    @property
    def workers_waiting_share(self) -> float:
        """Share of the workers' time in which they waited for the training process, 0 to 1."""
        active_s = sum(worker.active_s for worker in self.workers)
        return _per(sum(worker.waiting_s for worker in self.workers), active_s)

    @property
    def others_share(self) -> float:
        """Share of the processors' time that other processes took, 0 to 1."""
        return min(1.0, _per(self.others_cpu_s, self.seconds * self.cores))

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
            share, storage = _per(seconds, working_s), same[0].storage
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
        return _verdict(self)

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
        return f"<{type(self).__name__}: epoch {self.epoch}, {self.batches:,} batches, {self.in_short}>"

    def __str__(self) -> str:
        return "\n".join(line for part in _parts(self) for line in _lines(part))

    def _repr_html_(self) -> str:
        return "".join(_html(part) for part in _parts(self))


def worker_stats(worker: WorkerReading) -> WorkerStats:
    """A worker, by what it has counted. Its working time is divided as the stages' estimated times are."""
    reading = worker.reading
    rest = "between stages" if reading.stages else THE_DATASET if reading.batches else ""  # not known yet
    stages = {
        rest: replace(reading.other, elements=reading.batches),
        **reading.stages,
        WRITING_BATCHES: replace(reading.writing, elements=reading.batches),
    }
    total_ns = sum(stage.time_ns for stage in stages.values())
    working_s = (reading.active_ns - reading.waiting_ns) / 1e9
    shares = {name: _per(stage.time_ns, total_ns) for name, stage in stages.items() if name}
    return WorkerStats(
        worker=worker.index,
        pid=worker.pid,
        batches=reading.batches,
        samples=reading.samples,
        nbytes=reading.nbytes,
        active_s=reading.active_ns / 1e9,
        waiting_s=reading.waiting_ns / 1e9,
        cpu_s=reading.cpu_ns / 1e9,
        queued_s=reading.queued_ns / 1e9,
        skipped=dict(reading.skipped),
        restarts=worker.restarts,
        shard=reading.shard,
        server=worker.server,
        lost_s=worker.lost_s,
        stages=tuple(
            StageStats(name, share * working_s, share, each.elements, each.storage, each.nbytes)
            for name, share in shares.items()
            for each in (stages[name],)
        ),
    )


def _per(amount: float, total: float) -> float:
    return amount / total if total > 0 else 0.0


# The table

_NEGLIGIBLE = 0.005
_LONGEST_NAME = 48


_Part: TypeAlias = "str | list[dict[str, str]]"
"""A line, or rows of a table."""


def _parts(stats: LoaderStats) -> list[_Part]:
    """The trainer, the workers, the stages that take half a percent or more, and the verdict."""
    if not stats.workers:
        return [f"epoch {stats.epoch} has not begun"]
    seconds = stats.seconds or 1.0
    in_stages = f"is in stages {stats.stages_s / seconds:.0%}, " if stats.stages_s else ""
    epochs, first_batch, which = f"epoch {stats.epoch}", "the first batch", "which"
    if stats.epochs > 1:
        epochs = f"{stats.epochs} epochs, the last of them number {stats.epoch}"
        first_batch, which = "the first batches", "which together"
    parts: list[_Part] = [
        f"{epochs}: {stats.batches:,} batches, {stats.samples:,} samples, "
        f"in {stats.seconds:.1f} s after {first_batch}, {which} took {stats.first_batch_s:.1f} s",
        f"{stats.samples_per_s:,.1f} samples/s, {stats.batches_per_s:,.1f} batches/s, "
        f"{stats.bytes_per_s / 1e6:,.1f} MB/s",
        f"trainer: waits {stats.waiting_share:.0%}, receives {stats.received_s / seconds:.0%}, "
        f"{in_stages}is elsewhere {stats.elsewhere_s / seconds:.0%} of the time",
    ]
    if stats.private_copies:
        parts.append(f"{stats.private_copies} batches were copied out of shared memory: many are kept")
    if stats.others_share > _LITTLE:
        parts.append(f"other processes take {stats.others_share:.0%} of the {stats.cores} processors")
    remote = any(worker.server for worker in stats.workers)
    parts.append([_worker_row(worker, remote) for worker in stats.workers])
    shown = [stage for stage in stats.stages if stage.share >= _NEGLIGIBLE]
    parts.append([_stage_row(stage, stats.workers) for stage in shown])
    parts += [f"left out: {count:,} in {kind}" for kind, count in stats.skipped.items()]
    return [*parts, f"verdict: {stats.verdict}"]


def _worker_row(worker: WorkerStats, remote: bool) -> dict[str, str]:
    lost = f" (no answer for {duration(worker.lost_s)})" if worker.lost_s else ""
    return {
        "worker": str(worker.worker),
        "pid": str(worker.pid),
        "batches": f"{worker.batches:,}",
        "samples/s": f"{worker.samples_per_s:,.1f}",
        "MB": f"{worker.nbytes / 1e6:,.1f}",
        "active": f"{worker.active_s:.1f} s",
        "waits": f"{worker.waiting_share:.0%}",
        "cpu": f"{worker.cpu_s:.1f} s",
        "queued": f"{worker.queued_s:.1f} s",
        "skipped": str(sum(worker.skipped.values())),
        "restarts": str(worker.restarts),
        "shard": worker.shard.rpartition("/")[2] or "-",
        **({"server": f"{worker.server or 'here'}{lost}"} if remote else {}),
    }


def _stage_row(stage: StageStats, workers: tuple[WorkerStats, ...]) -> dict[str, str]:
    name = stage.name
    same = [each for worker in workers for each in worker.stages if each.name == name]
    return {
        "stage": name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "...",
        "share": f"{stage.share:.0%}",
        "time": f"{stage.seconds:.1f} s",
        "elements": f"{stage.elements:,}",
        "ms each": three_digits(stage.seconds / stage.elements * 1e3) if stage.elements else "-",
        "elements/s": f"{stage.elements_per_s:,.0f}" if stage.elements else "-",
        "MB/s": f"{stage.bytes_per_s / 1e6:,.1f}" if stage.nbytes else "-",
        "by worker": " ".join(f"{each.share:.0%}" for each in same),
    }


def _html(part: _Part) -> str:
    if isinstance(part, str):
        return f"<div>{escape(part)}</div>"
    cells = [[f"<td>{escape(cell)}</td>" for cell in row.values()] for row in part]
    head = [f"<th>{escape(name)}</th>" for name in part[0]] if part else []
    return f"<table><tr>{'</tr><tr>'.join(map(''.join, [head, *cells]))}</tr></table>"


def _lines(part: _Part) -> list[str]:
    """A table's rows below their names, in columns of one width; the first is aligned left, others right."""
    if isinstance(part, str):
        return [part]
    cells = [list(part[0]), *(list(row.values()) for row in part)] if part else []
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for first, *others in cells:
        aligned = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *aligned]).rstrip())
    return lines


# The verdict

_LEAST_BATCHES = 5
_LEAST_S = 0.2
_LITTLE = 0.1
_MUCH = 0.3
_MOST = 0.5
_SLOWER = 2.0
_FULL = 0.85
_SMALL_BATCH_NBYTES = 32 << 10
_SPARE = 1.2


def _verdict(stats: LoaderStats) -> str:
    """What bounds the training: the training process, if it waits for less than a tenth of its time."""
    if stats.lost:
        whose, are = ("its", "it is") if len(stats.lost) == 1 else ("their", "they are")
        return f"{no_answer(stats.lost)}: {whose} workers make nothing until {are} back"
    if stats.batches < _LEAST_BATCHES or stats.seconds < _LEAST_S:
        return _too_early(stats)
    if stats.received_s > _MUCH * stats.seconds:
        return _bound_by_receiving(stats)
    if stats.waiting_share < _LITTLE:
        return _bound_by_training(stats)
    bound = _bound_by_workers(stats, _slowest(stats))
    most = ", and no more can be gained" if stats.waiting_share < _MOST else ""
    return f"the trainer waits {stats.waiting_share:.0%} of the time{most}; {bound}"


def no_answer(lost: Mapping[str, float]) -> str:
    """Names servers that do not answer, and since when.

    Example:
        >>> no_answer({"tcp://cpu1:7880": 12.3, "tcp://cpu2:7880": 75})
        'no answer from tcp://cpu1:7880 for 12 s, from tcp://cpu2:7880 for 1 min 15 s'
    """
    return f"no answer {', '.join(f'from {url} for {duration(seconds)}' for url, seconds in lost.items())}"


def verdict_of_workers(
    stats: LoaderStats, waiting: float, one_trainer: bool = True, lost: bool = False
) -> str:
    """What bounds workers that wait for this share of the time. Only those of one trainer take turns.

    ``lost``: trainers may wait for the workers of a server that does not answer.
    """
    if stats.batches < _LEAST_BATCHES or stats.seconds < _LEAST_S:
        return _too_early(stats)
    slow = _slowest(stats) if one_trainer else None
    if slow is not None and (held_up := _held_up_by(stats, slow)):
        return held_up
    if waiting < _MUCH:
        return _bound_by_workers(stats, slow)
    wait = f"workers wait {waiting:.0%} of the time"
    if lost:
        return f"{wait}: trainers may wait for the servers that do not answer"
    return f"{wait}: the trainers, or the network to them, are the bound{_fewer_would_do(stats, waiting)}"


def _too_early(stats: LoaderStats) -> str:
    if not stats.batches:
        return "not enough data yet: 0 batches"
    so_far = f"not enough data yet: {stats.batches} batches in {stats.first_batch_s + stats.seconds:.1f} s"
    if stats.first_batch_s <= max(1.0, 2 * stats.seconds):
        return so_far
    first = f"of which the first took {stats.first_batch_s:.1f}, in which workers start"
    return f"{so_far}, {first}: keep the loader for all epochs"


def _bound_by_receiving(stats: LoaderStats) -> str:
    share = f"receiving takes {stats.received_s / stats.seconds:.0%} of the trainer's time"
    if stats.private_copies > _LITTLE * stats.batches:
        return (
            f"{share}: {stats.private_copies} batches were copied out of shared memory, as many are kept: "
            "drop them sooner, or raise prefetch"
        )
    return f"{share}: {_batches_are(stats)}: make them larger"


def _bound_by_training(stats: LoaderStats) -> str:
    trainer = f"the trainer waits {stats.waiting_share:.0%} of the time"
    if stats.in_process:
        return f"the training step is the bound: making batches takes {stats.waiting_share:.0%} of the time"
    if stats.stages_s > _MUCH * stats.seconds and stats.stages_s > stats.elsewhere_s:
        return (
            f"{trainer}; the stages behind the loader are the bound: they take "
            f"{stats.stages_s / stats.seconds:.0%} of the trainer's time: have the workers do more of it, or "
            "take rebatched(m, shuffle=n) in place of unbatched, shuffle and batched"
        )
    waiting = idle_share(stats)
    if waiting < _MUCH:
        return f"balanced: {trainer}, the workers {waiting:.0%}: a faster training step would wait for data"
    fewer = _fewer_would_do(stats, waiting)
    return f"workers wait for the trainer {waiting:.0%} of the time: the training step is the bound{fewer}"


def idle_share(stats: LoaderStats) -> float:
    """The share of the time in which workers wait, or have nothing left to do."""
    there_s = sum(max(worker.active_s, stats.seconds) for worker in stats.workers)
    return 1 - sum(worker.working_s for worker in stats.workers) / there_s


def _fewer_would_do(stats: LoaderStats, waiting: float) -> str:
    count = len(stats.workers)
    enough = max(1, math.ceil(count * (1 - waiting) * _SPARE))
    return f"; {enough} of {count} workers would do" if enough < count else ""


def _bound_by_workers(stats: LoaderStats, slow: WorkerStats | None) -> str:
    without = [worker for worker in stats.workers if not worker.batches]
    if without:
        return (
            f"{len(without)} of {len(stats.workers)} workers have sent nothing: there are fewer shards than "
            "workers, or their first batches take long"
        )
    if slow is not None and (held_up := _held_up_by(stats, slow)):
        return held_up
    writing = sum(stage.share for stage in stats.stages if stage.name == WRITING_BATCHES)
    if stats.nbytes <= _SMALL_BATCH_NBYTES * stats.batches and writing > _MOST:
        return f"{_batches_are(stats)}, and take longer to send than to make: make them larger"
    if stats.workers_waiting_share > _MUCH:
        return (
            f"the workers wait {stats.workers_waiting_share:.0%} of their time, as batches take unequal "
            f"time: raise prefetch{', or take in_order=False' if stats.in_order else ''}"
        )
    top = max(stats.stages, key=lambda stage: stage.share)
    speed = f" at {three_digits(top.bytes_per_s / 1e6)} MB/s each" if top.nbytes else ""
    takes = f"{_what(top)} takes {top.share:.0%} of worker time{speed}"
    if stats.in_process:
        return f"{takes}: take workers"
    working_s = sum(worker.working_s for worker in stats.workers)
    queued = _per(sum(worker.queued_s for worker in stats.workers), working_s)
    if queued > _MUCH:
        return (
            f"workers queue {queued:.0%} of their time for one of {stats.cores} processors{_held(stats)}, so "
            f"more would not help; {takes}: {_make_cheaper(top)}"
        )
    cpu_s = sum(worker.cpu_s for worker in stats.workers)
    busy = cpu_s + stats.others_cpu_s > _FULL * stats.cores * max(worker.active_s for worker in stats.workers)
    but = f" (on more than {stats.cores} processors, which are all busy{_held(stats)})" if busy else ""
    advice = f"{takes}: add workers{but} or {_make_cheaper(top)}"
    return advice if slow is None else f"{advice}; {_slowness(stats, slow)}: see what is in its shards"


def _held(stats: LoaderStats) -> str:
    share = stats.others_share
    return f", {share:.0%} of whose time other processes take" if share > _LITTLE else ""


def _slowest(stats: LoaderStats) -> WorkerStats | None:
    """The worker whose batches take much longer than those of the others, if there is one."""
    if len(stats.workers) < 2:
        return None
    slow = max(stats.workers, key=_batch_s)
    return slow if _batch_s(slow) >= _SLOWER * _usual(stats, slow, _batch_s) else None


def _held_up_by(stats: LoaderStats, slow: WorkerStats) -> str | None:
    """What to say if the other workers wait for a slow one, or have finished long before it."""
    waiting = _usual(stats, slow, lambda worker: worker.waiting_share)
    if stats.in_order and waiting >= _MUCH and slow.waiting_share <= waiting / 2:
        return (
            f"{_slowness(stats, slow)}, which wait for their turn {waiting:.0%} of the time: see what is in "
            "its shards, or let the others go on by in_order=False"
        )
    alone = 1 - _usual(stats, slow, lambda worker: worker.active_s) / slow.active_s
    if alone >= _MUCH and slow.waiting_share < _LITTLE:
        return (
            f"{_slowness(stats, slow)}, which had done all of theirs for the last {alone:.0%} of its time: "
            "see what is in its shards"
        )
    return None


def _usual(stats: LoaderStats, slow: WorkerStats, figure: Callable[[WorkerStats], float]) -> float:
    """The median of a figure of the other workers."""
    return statistics.median(figure(worker) for worker in stats.workers if worker is not slow)


def _slowness(stats: LoaderStats, slow: WorkerStats) -> str:
    times = "once" if slow.restarts == 1 else f"{slow.restarts} times"
    restarts = f", {times} started again" if slow.restarts else ""
    own_ms, usual_ms = (three_digits(each * 1e3) for each in (_batch_s(slow), _usual(stats, slow, _batch_s)))
    of = f" of {slow.server}" if len({worker.server for worker in stats.workers}) > 1 and slow.server else ""
    name = f"worker {slow.worker}{of} (pid {slow.pid}{restarts})"
    return f"{name} takes {own_ms} ms a batch, the others {usual_ms}"


def _batch_s(worker: WorkerStats) -> float:
    return worker.working_s / max(worker.batches, 1)


def _what(stage: StageStats) -> str:
    if stage.name == THE_DATASET:
        return stage.name
    if stage.name == WRITING_BATCHES:
        return "collation into shared memory"
    return f"storage: {stage.name}" if stage.storage else f"stage {stage.name}"


def _make_cheaper(stage: StageStats) -> str:
    if stage.name == WRITING_BATCHES:
        return "send less: uint8 in place of float32, converted on the device"
    if stage.storage:
        return "read from faster storage (cache_dir= keeps copies of shards that are elsewhere)"
    return "make it faster"


def _batches_are(stats: LoaderStats) -> str:
    samples, nbytes = stats.samples / stats.batches, stats.nbytes / stats.batches
    return f"batches have {three_digits(samples)} samples and {three_digits(nbytes / 1e3)} kB"
