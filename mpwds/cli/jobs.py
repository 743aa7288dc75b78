"""Work on many items in processes, and notes on errors, by which a command says what failed where."""

from __future__ import annotations

import contextlib
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
    and 0 workers are as many as these machines have processors.
    """
    if engine is not None:
        from mpwds.cluster.tasks import run_tasks

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
