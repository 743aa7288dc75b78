"""A loader without workers: the same batches, made in the process that trains."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

from mpwds import nest, tenbin
from mpwds.loader.elements import elements, process_seed
from mpwds.loader.receiving import Output
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.randomness import States, generator_states, put_back, seed_generators


class LocalIterator(Iterator[Any]):
    """One epoch of a dataset as a single worker would deliver it.

    Arrays are private, writable and of the kind ``output``. The random numbers are those of a worker too, and
    those of the program around it are left alone.

    Args:
        dataset: What :func:`~mpwds.loader.elements.as_dataset` returned.
        context: Epoch, seed and rank.
        output: What arrays become.
        owner: Kept alive as long as this iterator is.
    """

    def __init__(self, dataset: Any, context: Context, output: Output, owner: object) -> None:
        self._owner = owner
        context = replace(context, worker=0, workers=1, owns_process=False)
        if isinstance(dataset, DataPipeline):
            source = elements(dataset, context)
        else:
            source = _with_own_generators(dataset, context)
        self._batches = _delivered(source, output)
        self._ended_because = ""

    def __next__(self) -> Any:
        if self._ended_because:
            raise RuntimeError(self._ended_because)
        return next(self._batches)

    def close(self, because: str = "") -> None:
        """Leaves the epoch. A later ``next()`` raises RuntimeError with ``because``, if one is given."""
        self._ended_because = because
        # It may be the dataset itself, or another thread, that closes its loader.
        if inspect.getgeneratorstate(self._batches) != inspect.GEN_RUNNING:
            self._batches.close()


def _with_own_generators(dataset: Any, context: Context) -> Iterator[Any]:
    """The elements of a dataset that draws from random generators of its own, it seems to it."""
    own: States | None = None
    source: Iterator[Any] | None = None
    while True:
        users = generator_states()
        if own is None:
            seed_generators(process_seed(context))
        else:
            put_back(own)
        try:
            if source is None:
                source = elements(dataset, context)
            element = next(source)
        except StopIteration:
            return
        finally:
            own = generator_states()
            put_back(users)
        yield element


def _delivered(source: Iterator[Any], output: Output) -> Generator[Any, None, None]:
    for element in source:
        structure, arrays = nest.flatten(element, allow_pickle=True)
        yield nest.unflatten(structure, [_copied(array, output) for array in arrays], allow_pickle=True)


def _copied(array: Any, output: Output) -> Any:
    buffer = bytearray(tenbin.array_nbytes(array))
    tenbin.write_array(buffer, 0, array)
    return tenbin.view_array(buffer, tenbin.parse_array(buffer, 0), output)
