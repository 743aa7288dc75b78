"""A loader's stats as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpwds.loader.stats.stats import LoaderStats

_NEGLIGIBLE = 0.005
_LONGEST_NAME = 48


def table_of(stats: LoaderStats) -> str:
    """What ``print(loader.stats())`` shows: the trainer, the workers, the stages and the verdict.

    Stages that take less than half a percent are left out.

    Example:
        >>> from mpwds import MultiLoader
        >>> print(table_of(MultiLoader([1, 2], workers=0).stats()))
        epoch 0 has not begun
    """
    if not stats.workers:
        return f"epoch {stats.epoch} has not begun"
    parts = [_trainer(stats), _workers(stats), _stages(stats), *_skipped(stats), f"verdict: {stats.verdict}"]
    return "\n".join(parts)


def _trainer(stats: LoaderStats) -> str:
    seconds = stats.seconds or 1.0
    in_stages = f"is in stages {stats.stages_s / seconds:.0%}, " if stats.stages_s else ""
    epochs, first_batch, which = f"epoch {stats.epoch}", "the first batch", "which"
    if stats.epochs > 1:
        epochs = f"{stats.epochs} epochs, the last of them number {stats.epoch}"
        first_batch, which = "the first batches", "which together"
    lines = [
        f"{epochs}: {stats.batches:,} batches, {stats.samples:,} samples, "
        f"in {stats.seconds:.1f} s after {first_batch}, {which} took {stats.first_batch_s:.1f} s",
        f"{stats.samples_per_s:,.1f} samples/s, {stats.batches_per_s:,.1f} batches/s, "
        f"{stats.bytes_per_s / 1e6:,.1f} MB/s",
        f"trainer: waits {stats.waiting_share:.0%}, receives {stats.received_s / seconds:.0%}, "
        f"{in_stages}is elsewhere {stats.elsewhere_s / seconds:.0%} of the time",
    ]
    if stats.private_copies:
        lines.append(f"{stats.private_copies} batches were copied out of shared memory: many are kept")
    return "\n".join(lines)


def _workers(stats: LoaderStats) -> str:
    rows = [
        [
            "worker",
            "pid",
            "batches",
            "samples/s",
            "MB",
            "active",
            "waits",
            "cpu",
            "queued",
            "skipped",
            "restarts",
        ]
    ]
    for worker in stats.workers:
        rows.append(
            [
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
            ]
        )
    return _aligned(rows)


def _stages(stats: LoaderStats) -> str:
    rows = [["stage", "share", "time", "elements", "ms each", "elements/s", "by worker"]]
    for stage in stats.stages:
        if stage.share < _NEGLIGIBLE:
            continue
        by_worker = [
            f"{same.share:.0%}"
            for worker in stats.workers
            for same in worker.stages
            if same.name == stage.name
        ]
        rows.append(
            [
                _shortened(stage.name),
                f"{stage.share:.0%}",
                f"{stage.seconds:.1f} s",
                f"{stage.elements:,}",
                f"{stage.seconds / stage.elements * 1e3:.3g}" if stage.elements else "-",
                f"{stage.elements_per_s:,.0f}" if stage.elements else "-",
                " ".join(by_worker),
            ]
        )
    return _aligned(rows)


def _skipped(stats: LoaderStats) -> list[str]:
    return [f"left out: {count:,} in {kind}" for kind, count in stats.skipped.items()]


def _aligned(rows: list[list[str]]) -> str:
    """Columns of one width, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [
            first.ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."
