"""One line on what bounds the training, or a feed, and what to do about it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping

from mpwds.stats.measures import LoaderMeasures, StageStats, WorkerStats
from mpwds.stats.snapshot import THE_DATASET, WRITING_BATCHES
from mpwds.viewing.wording import counted, duration, per, three_digits

_LEAST_BATCHES = 5
_LEAST_S = 0.2
LITTLE = 0.1
_MUCH = 0.3
_MOST = 0.5
_SLOWER = 2.0
_FULL = 0.85
_SMALL_BATCH_NBYTES = 32 << 10
_SPARE = 1.2


def diagnose(stats: LoaderMeasures) -> str:
    """Says what bounds the training: the training process if it waits for less than a tenth of its time."""
    if stats.lost:
        whose, are = ("its", "it is") if len(stats.lost) == 1 else ("their", "they are")
        return f"{no_answer(stats.lost)}: {whose} workers make nothing until {are} back"
    # Of an epoch's first batch, nothing is known but the time to it.
    if stats.batches - (stats.epochs - 1) < _LEAST_BATCHES or stats.seconds < _LEAST_S:
        return _too_early(stats)
    if stats.received_s > _MUCH * stats.seconds:
        return _bound_by_receiving(stats)
    if stats.stages_s > max(_MUCH * stats.seconds, stats.elsewhere_s, stats.waited_s):
        return _bound_by_stages(stats)
    if stats.waiting_share < LITTLE:
        return _bound_by_training(stats)
    bound = _bound_by_workers(stats, _slowest(stats))
    most = ", the most that can be gained" if stats.waiting_share < _MOST else ""
    return f"the trainer waits {stats.waiting_share:.0%} of the time{most}; {bound}"


def no_answer(lost: Mapping[str, float]) -> str:
    """Names servers that do not answer, and since when.

    Example:
        >>> no_answer({"tcp://cpu1:7880": 12.3, "tcp://cpu2:7880": 75})
        'no answer from tcp://cpu1:7880 for 12 s, from tcp://cpu2:7880 for 1 min 15 s'
    """
    return f"no answer {', '.join(f'from {url} for {duration(seconds)}' for url, seconds in lost.items())}"


def diagnose_workers(
    stats: LoaderMeasures,
    waiting: float,
    one_trainer: bool = True,
    lost: bool = False,
    more_help: bool = True,
) -> str:
    """Says what bounds workers that wait for this share of the time. Only those of one trainer take turns.

    ``lost``: trainers may wait for the workers of a server that does not answer. Without ``more_help``, more
    workers are known to be no faster.
    """
    if stats.batches < _LEAST_BATCHES or stats.seconds < _LEAST_S:
        return _too_early(stats)
    slow = _slowest(stats) if one_trainer else None
    if slow is not None and (held_up := _held_up_by(stats, slow)):
        return held_up
    if waiting < _MUCH:
        return _bound_by_workers(stats, slow, more_help)
    wait = f"workers wait {waiting:.0%} of the time"
    if lost:
        return f"{wait}: trainers may wait for the servers that do not answer"
    return f"{wait}: the trainers, or the network to them, are the bound{_fewer_would_do(stats, waiting)}"


def _too_early(stats: LoaderMeasures) -> str:
    so_far = f"not enough data yet: {counted(stats.batches, 'batch')}"
    if not stats.batches:
        return so_far
    so_far += f" in {stats.first_batch_s + stats.seconds:.1f} s"
    if stats.first_batch_s <= max(1.0, 2 * stats.seconds):
        return so_far
    if stats.epochs > 1:
        firsts = f"the first batches of {stats.epochs} epochs took {stats.first_batch_s:.1f}"
        return f"{so_far}, of which {firsts}: make epochs longer, by repeat(n)"
    first = f"of which the first took {stats.first_batch_s:.1f}, in which workers start"
    return f"{so_far}, {first}: keep the loader for all epochs"


def _bound_by_receiving(stats: LoaderMeasures) -> str:
    share = f"receiving takes {stats.received_s / stats.seconds:.0%} of the trainer's time"
    if stats.private_copies > LITTLE * stats.batches:
        return f"{share}: {copied(stats)}, as many are kept: drop them sooner, or raise prefetch"
    return f"{share}: {_batches_are(stats)}: make them larger"


def copied(stats: LoaderMeasures) -> str:
    """Says how many batches were copied because the program keeps too many."""
    were = "was" if stats.private_copies == 1 else "were"
    return f"{counted(stats.private_copies, 'batch')} {were} copied out of shared memory"


def _bound_by_stages(stats: LoaderMeasures) -> str:
    them = "take workers, and have them" if stats.in_process else "have the workers"
    share = f"{stats.stages_s / stats.seconds:.0%}"
    return (
        f"the trainer waits {stats.waiting_share:.0%} of the time; the stages after the loader are the "
        f"bound: they take {share} of the trainer's time: {them} do more of it, or take "
        "rebatched(m, shuffle=n) in place of unbatched, shuffle and batched"
    )


def _bound_by_training(stats: LoaderMeasures) -> str:
    if stats.in_process:
        return f"the training step is the bound: making batches takes {stats.waiting_share:.0%} of the time"
    waiting = idle_share(stats)
    if waiting < _MUCH:
        return (
            f"balanced: the trainer waits {stats.waiting_share:.0%} of the time, the workers {waiting:.0%}: "
            "a faster training step would wait for data"
        )
    fewer = _fewer_would_do(stats, waiting)
    return f"workers wait for the trainer {waiting:.0%} of the time: the training step is the bound{fewer}"


def idle_share(stats: LoaderMeasures) -> float:
    """The share of the time in which workers wait, or have nothing left to do."""
    there_s = sum(max(worker.active_s, stats.seconds) for worker in stats.workers)
    return 1 - sum(worker.working_s for worker in stats.workers) / there_s


def _fewer_would_do(stats: LoaderMeasures, waiting: float) -> str:
    count = len(stats.workers)
    enough = max(1, math.ceil(count * (1 - waiting) * _SPARE))
    return f"; {enough} of {count} workers would do" if enough < count else ""


def _bound_by_workers(stats: LoaderMeasures, slow: WorkerStats | None, more_help: bool = True) -> str:
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
    queued = per(sum(worker.queued_s for worker in stats.workers), working_s)
    if queued > _MUCH:
        return (
            f"workers queue {queued:.0%} of their time for one of {stats.cores} processors{_held(stats)}, so "
            f"more would not help; {takes}: {_make_cheaper(top)}"
        )
    cpu_s = sum(worker.cpu_s for worker in stats.workers)
    busy = cpu_s + stats.others_cpu_s > _FULL * stats.cores * max(worker.active_s for worker in stats.workers)
    but = f" (on more than {stats.cores} processors, which are all busy{_held(stats)})" if busy else ""
    add = f"add workers{but} or " if more_help else ""
    waits = 1 - per(cpu_s, working_s) - queued
    advice = f"{takes}: {add}{_make_cheaper(top, waits)}"
    return advice if slow is None else f"{advice}; {_slowness(stats, slow)}: see what is in its shards"


def _held(stats: LoaderMeasures) -> str:
    share = stats.others_share
    return f", {share:.0%} of whose time other processes take" if share > LITTLE else ""


def _slowest(stats: LoaderMeasures) -> WorkerStats | None:
    """The worker whose batches take much longer than those of the others, if there is one."""
    if len(stats.workers) < 2:
        return None
    slow = max(stats.workers, key=_batch_s)
    return slow if _batch_s(slow) >= _SLOWER * _usual(stats, slow, _batch_s) else None


def _held_up_by(stats: LoaderMeasures, slow: WorkerStats) -> str | None:
    """Says if the other workers wait for a slow one, or have finished long before it."""
    waiting = _usual(stats, slow, lambda worker: worker.waiting_share)
    if stats.in_order and waiting >= _MUCH and slow.waiting_share <= waiting / 2:
        return (
            f"{_slowness(stats, slow)}, which wait for their turn {waiting:.0%} of the time: see what is in "
            "its shards, or let the others go on by in_order=False"
        )
    alone = 1 - _usual(stats, slow, lambda worker: worker.active_s) / slow.active_s
    if alone >= _MUCH and slow.waiting_share < LITTLE:
        return (
            f"{_slowness(stats, slow)}, which had done all of theirs for the last {alone:.0%} of its time: "
            "see what is in its shards"
        )
    return None


def _usual(stats: LoaderMeasures, slow: WorkerStats, figure: Callable[[WorkerStats], float]) -> float:
    """The median of a figure of the other workers."""
    return statistics.median(figure(worker) for worker in stats.workers if worker is not slow)


def _slowness(stats: LoaderMeasures, slow: WorkerStats) -> str:
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


def _make_cheaper(stage: StageStats, waits: float = 0.0) -> str:
    if stage.name == WRITING_BATCHES:
        return "send less: uint8 in place of float32, converted on the device"
    if stage.storage:
        return "read from faster storage (cache_dir= keeps copies of shards that are elsewhere)"
    if waits > _MOST and "threads=" in stage.name:
        return "give it more threads, as its calls wait more than they compute"
    if waits > _MOST and stage.name != THE_DATASET:
        return "let its calls overlap by map(f, threads=16), as they wait more than they compute"
    return "make it faster"


def _batches_are(stats: LoaderMeasures) -> str:
    samples, nbytes = stats.samples / stats.batches, stats.nbytes / stats.batches
    unit = "sample" if samples == 1 else "samples"
    return f"batches have {three_digits(samples)} {unit} and {three_digits(nbytes / 1e3)} kB"
