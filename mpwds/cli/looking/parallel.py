"""Works on several shards at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from mpwds.cli.progress import progress

S = TypeVar("S")
T = TypeVar("T")


def each(items: Sequence[S], work: Callable[[S], T], jobs: int, what: str) -> Iterator[T]:
    """Yields what ``work`` makes of each item, in order, and shows progress.

    Args:
        items: Shards, or whatever else ``work`` takes.
        work: A function that can be pickled, as can its argument and its result.
        jobs: Processes to use; 1 works in this one.
        what: What is done, for the progress bar.
    """
    with progress(len(items), in_bytes=False) as advance:
        for result in _results(items, work, min(jobs, len(items))):
            advance(1, what)
            yield result


def _results(items: Sequence[S], work: Callable[[S], T], jobs: int) -> Iterator[T]:
    if jobs <= 1:
        yield from map(work, items)
        return
    from mpwds.loader.multi_loader import MultiLoader
    from mpwds.pipeline.dataset import DataPipeline

    with MultiLoader(DataPipeline(list(items)).map(work), workers=jobs, output="numpy") as loader:
        yield from loader
