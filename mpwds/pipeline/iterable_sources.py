"""Sources that are iterables: their base, and those that begin at a sequence or any iterable."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from mpwds.errors import shorten
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import explain
from mpwds.pipeline.filter import iter_elements
from mpwds.pipeline.iterator_streams import UnseekableStream
from mpwds.pipeline.randomness import seeded, unseeded
from mpwds.pipeline.stream import Count, OrderedStream, Origin, Stream, one_sample


class TorchIterable:
    """Base of datasets that torch's DataLoader treats as an ``IterableDataset``.

    Inheriting from torch's class would import torch in every process that uses a dataset. But DataLoader asks
    ``isinstance``, which also looks at ``__class__``: once torch is imported, that is a subclass of both.
    """

    @property
    def map_style(self) -> bool:
        """True if torch's DataLoader is to ask for samples by index instead."""
        return False

    @property  # type: ignore[misc]  # nobody sets it
    def __class__(self) -> Any:
        data = sys.modules.get("torch.utils.data")
        base = getattr(data, "IterableDataset", None)  # absent while torch is being imported
        kind: Any = type(self)  # mypy finds no __hash__ in a type whose instances redefine __class__
        return kind if base is None or self.map_style else _both(kind, base)

    def __reduce__(self) -> Any:
        # By default pickle refuses an object whose __class__ is not its type.
        return _rebuilt, (type(self), self.__dict__)


class IterableSource(TorchIterable, Origin):
    """Base of pipelines and sources that can be iterated. Each ``iter()`` is another epoch."""

    _epoch = 0
    _epoch_is_given = False

    def __iter__(self) -> Iterator[Any]:
        try:
            stream = self.stream(self._context())
            self._epoch += 1  # not of an epoch that failed to begin
            return iter_elements(stream)
        except (Exception, KeyboardInterrupt) as error:
            shorten(error)
            raise

    def _context(self) -> Context:
        context = Context.current(self._epoch)
        return replace(context, run=0) if self._epoch_is_given else context

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``iter()`` run epoch ``epoch``, from 0.

        Example:
            >>> import mpwds
            >>> dataset = mpwds.DataPipeline(range(50)).shuffle(50)
            >>> first = list(dataset)
            >>> dataset.set_epoch(0)
            >>> list(dataset) == first != list(dataset)
            True
        """
        self._epoch = epoch
        self._epoch_is_given = True


def iterates_itself(dataset: Any) -> bool:
    """True if a dataset's class overrides ``__iter__`` but not ``stream``, so that it must be iterated."""
    for kind in type(dataset).__mro__:
        if "stream" in vars(kind):
            return False
        if "__iter__" in vars(kind):
            return True
    return False


@dataclass(frozen=True)
class Indexed(Origin):
    """Source of a pipeline: a list, a map-style dataset, or another object with indices.

    The indices are divided among the ranks, and a rank's among its workers, so that each element is read
    exactly once. An element's address is its index. Random numbers that a map-style dataset draws for an
    element are the same each time it is read in this epoch.
    """

    elements: Any

    samples_in = staticmethod(one_sample)

    def __str__(self) -> str:
        return type(self.elements).__name__

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        return _SequenceStream(self, context)

    def indices(self, context: Context) -> range:
        """The indices that a worker reads."""
        indices = range(len(self.elements))
        return indices[context.rank :: context.world_size][context.worker :: context.workers]

    def count_in(self, context: Context, exact: bool = True) -> Count:
        return Count(len(self.indices(context)))


class _SequenceStream(OrderedStream[Any]):
    def __init__(self, origin: Indexed, context: Context) -> None:
        self._origin = origin
        self._elements = origin.elements
        super().__init__(origin.indices(context))
        draws_nothing = type(self._elements).__module__ in ("builtins", "numpy")
        self._call = unseeded if draws_nothing else seeded(context)

    def fetch(self, address: Any) -> Any:
        try:
            return self._call(self._elements.__getitem__, address, address)
        except Exception as error:
            explain(error, self._origin, self, address)
            raise


@dataclass(frozen=True)
class Iterated(Origin):
    """Source of a pipeline: an iterable, or a function that returns an iterator.

    Each worker reads all of it, so the iterable has to divide itself among workers, as a
    ``torch.utils.data.IterableDataset`` does with ``get_worker_info()``. Its elements have no address.
    Random numbers it draws are the same in each run of an epoch by the same worker.
    """

    elements: Iterable[Any] | Callable[[], Iterator[Any]]
    addressable = False

    def __post_init__(self) -> None:
        if isinstance(self.elements, Iterator) and not is_torch_iterable(self.elements):
            raise TypeError(
                f"a {type(self.elements).__name__} can be iterated only once: give the pipeline the function "
                "or the iterable that makes it"
            )
        if not isinstance(self.elements, Iterable) and not callable(self.elements):
            raise TypeError(
                "a pipeline begins at shards, a sequence, a map-style dataset, an iterable or a function "
                f"that returns an iterator, got a {type(self.elements).__name__}"
            )

    def __str__(self) -> str:
        return getattr(self.elements, "__name__", None) or type(self.elements).__name__

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        return UnseekableStream(self._start, self, context)

    def _start(self) -> Iterator[Any]:
        elements = self.elements
        return iter(elements if isinstance(elements, Iterable) else elements())


def is_torch_iterable(dataset: Any) -> bool:
    """True if an object is a ``torch.utils.data.IterableDataset``; it may be an iterator, too."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(dataset, data.IterableDataset)


@functools.cache
def _both(kind: type, base: type) -> type:
    return type(
        kind.__name__, (kind, base), {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    )


def _rebuilt(kind: type, attributes: dict[str, Any]) -> Any:
    instance: Any = object.__new__(kind)
    instance.__dict__.update(attributes)
    return instance
