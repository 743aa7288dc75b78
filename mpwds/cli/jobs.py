"""Work on many items in processes, and notes on errors, by which a command says what failed where."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from mpwds.cli.console import progress
from mpwds.cli.options import Engine
from mpwds.pipeline.error_context import add_note, notes_of

S = TypeVar("S")
T = TypeVar("T")


def run_jobs(
    items: Sequence[S],
    work: Callable[[S], Iterator[T]],
    workers: int,
    engine: Engine | None = None,
    **options: Any,
) -> Iterator[T]:
    """Yields all that ``work``, a generator function, yields for each item.

    It takes ``workers`` processes; 0 works in this one. ``options`` are those of :class:`mpwds.MultiLoader`.
    Results come in the order of the items by default. Unless processes are forked, ``work``, items and
    results are pickled. An ``engine`` runs the processes on other machines: results then come in any order,
    and 0 workers are twice as many as these machines have processors.
    """
    if engine is not None:
        from mpwds.cluster.engine import run_tasks

        yield from run_tasks(items, work, workers)
        return
    if not workers:
        for item in items:
            yield from work(item)
        return
    from mpwds.loader.multi_loader import MultiLoader
    from mpwds.pipeline.dataset import DataPipeline
    from mpwds.sharedmem.share import share

    dataset = DataPipeline(share(items)).flatmap(work)
    try:
        with MultiLoader(dataset, workers=min(workers, len(items)), output="numpy", **options) as loader:
            yield from loader
    except Exception as error:
        own = f"in {dataset.pipeline[-1]}, "  # a stage that the user knows nothing of
        notes = notes_of(error)
        notes[:] = [note for note in notes if not note.startswith(own)]
        raise


def add_up(
    jobs: Sequence[S],
    done: set[str],
    work: Callable[[S], Iterator[dict[str, int]]],
    workers: int = 0,
    engine: Engine | None = None,
    what: str = "",
    outputs: Callable[[Any], Sequence[str]] = lambda job: [job.output],
    **options: Any,
) -> Counter[str]:
    """Does the jobs whose ``outputs`` are not ``done``, as :func:`run_jobs` does; adds up their figures.

    A progress bar shows ``what`` is done, or the number of samples.
    """
    left = [job for job in jobs if not done.issuperset(outputs(job))]
    shards, whole = (sum(len(outputs(job)) for job in some) for some in (left, jobs))
    figures = Counter(samples=0, bytes=0, shards=shards, complete_before=whole - shards)
    with progress(len(jobs), len(jobs) - len(left)) as advance:
        for of_job in run_jobs(left, work, workers, engine, **options):
            figures.update(of_job)
            advance(1, what or f"{figures['samples']:,} samples")
    return figures


def each(items: Sequence[S], work: Callable[[S], Iterator[T]], jobs: int, what: str) -> Iterator[T]:
    """Yields what ``work`` yields for each item, in order, and shows ``what`` beside a progress bar."""
    with progress(len(items)) as advance:
        for result in run_jobs(items, work, jobs if jobs > 1 else 0):
            advance(1, what)
            yield result


@contextlib.contextmanager
def noted(note: str) -> Iterator[None]:
    """Adds a note to exceptions that pass."""
    try:
        yield
    except Exception as error:
        add_note(error, note)
        raise
