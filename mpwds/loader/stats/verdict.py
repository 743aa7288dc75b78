"""One line on what bounds the training."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from mpwds.loader.worker.counters import THE_DATASET, WRITING_BATCHES

if TYPE_CHECKING:
    from mpwds.loader.stats.stats import LoaderStats, StageStats, WorkerStats

_LEAST_BATCHES = 5
_LEAST_S = 0.2
_LITTLE = 0.1
_MUCH = 0.3
_MOST = 0.5
_SLOWER = 2.0
_FULL = 0.85
_SMALL_BATCH_NBYTES = 32 << 10
_SPARE = 1.2


def verdict_on(stats: LoaderStats) -> str:
    """What bounds the training: whoever the other one waits for, and what takes its time.

    The training process is the bound if it waits for less than a tenth of its time.

    Example:
        >>> from mpwds import MultiLoader
        >>> MultiLoader([1, 2], workers=0).stats().verdict
        'not enough data yet: 0 batches'
    """
    if stats.batches < _LEAST_BATCHES or stats.seconds < _LEAST_S:
        return _too_early(stats)
    if stats.received_s > _MUCH * stats.seconds:
        return _bound_by_receiving(stats)
    if stats.waiting_share < _LITTLE:
        return _bound_by_training(stats)
    return f"the trainer waits {stats.waiting_share:.0%} of the time; {_bound_by_workers(stats)}"


def _too_early(stats: LoaderStats) -> str:
    if not stats.batches:
        return "not enough data yet: 0 batches"
    so_far = f"not enough data yet: {stats.batches} batches in {stats.first_batch_s + stats.seconds:.1f} s"
    if stats.first_batch_s > max(1.0, 2 * stats.seconds):
        return (
            f"{so_far}, of which the first took {stats.first_batch_s:.1f}, in which workers start: keep the "
            "loader for all epochs"
        )
    return so_far


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
    waiting, count = _spare_share(stats), len(stats.workers)
    if waiting < _MUCH:
        return f"balanced: {trainer}, the workers {waiting:.0%}: a faster training step would wait for data"
    enough = max(1, math.ceil(count * (1 - waiting) * _SPARE))
    fewer = f"; {enough} of {count} workers would do" if enough < count else ""
    return f"workers wait for the trainer {waiting:.0%} of the time: the training step is the bound{fewer}"


def _bound_by_workers(stats: LoaderStats) -> str:
    without = [worker for worker in stats.workers if not worker.batches]
    if without:
        return (
            f"{len(without)} of {len(stats.workers)} workers have sent nothing: there are fewer shards than "
            "workers, or their first batches take long"
        )
    slow = _slow_worker(stats)
    if slow is not None:
        return slow
    if _batches_are_small(stats):
        return f"{_batches_are(stats)}, and take longer to send than to make: make them larger"
    if stats.workers_waiting_share > _MUCH:
        return (
            f"the workers wait {stats.workers_waiting_share:.0%} of theirs, as batches take unequal time: "
            f"raise prefetch{', or take in_order=False' if stats.in_order else ''}"
        )
    top = max(stats.stages, key=lambda stage: stage.share)
    takes = f"{_what(top)} takes {top.share:.0%} of worker time"
    if stats.in_process:
        return f"{takes}: take workers"
    queue = _queue_share(stats)
    if queue > _MUCH:
        return (
            f"workers wait {queue:.0%} of theirs for one of {stats.cores} processors, so more would not "
            f"help; {takes}: {_make_cheaper(top)}"
        )
    advice = f"{takes}: add workers{_if_not_full(stats)} or {_make_cheaper(top)}"
    unlike = _slowest(stats)
    return advice if unlike is None else f"{advice}; {_slowness(stats, unlike)}: see what is in its shards"


def _slow_worker(stats: LoaderStats) -> str | None:
    """What there is to say about a worker that the others wait for, or have left alone."""
    slow = _slowest(stats)
    if slow is None:
        return None
    others = [worker for worker in stats.workers if worker is not slow]
    waiting = statistics.median(worker.waiting_share for worker in others)
    if stats.in_order and waiting >= _MUCH and slow.waiting_share <= waiting / 2:
        return (
            f"{_slowness(stats, slow)}, which wait for their turn {waiting:.0%} of the time: see what is in "
            "its shards, or let the others go on by in_order=False"
        )
    alone = 1 - statistics.median(worker.active_s for worker in others) / slow.active_s
    if alone >= _MUCH and slow.waiting_share < _LITTLE:
        return (
            f"{_slowness(stats, slow)}, which had done all of theirs for the last {alone:.0%} of its time: "
            "see what is in its shards"
        )
    return None


def _slowest(stats: LoaderStats) -> WorkerStats | None:
    """The worker whose batches take much longer than those of the others, if there is one."""
    if len(stats.workers) < 2:
        return None
    slow = max(stats.workers, key=_batch_s)
    return slow if _batch_s(slow) >= _SLOWER * _usual_batch_s(stats, slow) else None


def _usual_batch_s(stats: LoaderStats, slow: WorkerStats) -> float:
    return statistics.median(_batch_s(worker) for worker in stats.workers if worker is not slow)


def _slowness(stats: LoaderStats, slow: WorkerStats) -> str:
    restarts = f", {_times(slow.restarts)} started again" if slow.restarts else ""
    return (
        f"worker {slow.worker} (pid {slow.pid}{restarts}) takes {_batch_s(slow) * 1e3:.3g} ms a batch, the "
        f"others {_usual_batch_s(stats, slow) * 1e3:.3g}"
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _batch_s(worker: WorkerStats) -> float:
    return worker.working_s / max(worker.batches, 1)


def _what(stage: StageStats) -> str:
    if stage.name == THE_DATASET:
        return stage.name
    if stage.name == WRITING_BATCHES:
        return "collation into shared memory"
    return f"storage: {stage.name}" if stage.storage else f"stage {stage.name}"


def _batches_are_small(stats: LoaderStats) -> bool:
    writing = sum(stage.share for stage in stats.stages if stage.name == WRITING_BATCHES)
    return stats.nbytes <= _SMALL_BATCH_NBYTES * stats.batches and writing > _MOST


def _make_cheaper(stage: StageStats) -> str:
    if stage.name == WRITING_BATCHES:
        return "send less: uint8 in place of float32, converted on the device"
    if stage.storage:
        return "keep shards on a local disk (cache_dir=)"
    return "make it faster"


def _if_not_full(stats: LoaderStats) -> str:
    cpu_s, longest_s = (
        sum(worker.cpu_s for worker in stats.workers),
        max(worker.active_s for worker in stats.workers),
    )
    full = cpu_s > _FULL * stats.cores * longest_s
    return f" (on more than {stats.cores} processors, which are all busy)" if full else ""


def _spare_share(stats: LoaderStats) -> float:
    """Share of the time in which workers wait for the trainer, or have done all there is to do."""
    there_s = sum(max(worker.active_s, stats.seconds) for worker in stats.workers)
    return 1 - sum(worker.working_s for worker in stats.workers) / there_s


def _queue_share(stats: LoaderStats) -> float:
    """Share of the workers' own time in which they could run, but others had the processors."""
    working_s = sum(worker.working_s for worker in stats.workers)
    return sum(worker.queued_s for worker in stats.workers) / working_s if working_s else 0.0


def _batches_are(stats: LoaderStats) -> str:
    samples, nbytes = stats.samples / stats.batches, stats.nbytes / stats.batches
    return f"batches have {samples:.3g} samples and {nbytes / 1e3:.3g} kB"
