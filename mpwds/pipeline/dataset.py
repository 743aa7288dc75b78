"""Datasets: a beginning, stages behind it, and a fluent way to write them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, TypeVar

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.elements import Indexed, Iterated
from mpwds.pipeline.filter import plain
from mpwds.pipeline.fluent import Fluent
from mpwds.pipeline.generator import Generator
from mpwds.pipeline.replay import Replayed
from mpwds.pipeline.samples import TarSamples
from mpwds.pipeline.shards import ShardList
from mpwds.pipeline.stream import Origin, Stage, Stream
from mpwds.pipeline.torch_dataset import TorchIterable

Pipeline = TypeVar("Pipeline", bound="DataPipeline")

_SHARDS_SHOWN = 3


class DataPipeline(Fluent, TorchIterable):
    """A dataset: elements from ``source``, passed through stages.

    Iterating it runs it in this process and yields plain elements; each ``iter()`` is another
    epoch. ``mpwds.MultiLoader`` runs it in many processes; ``torch.utils.data.DataLoader`` takes it as an
    ``IterableDataset`` (call ``set_epoch`` before each epoch then, or workers that are not persistent
    repeat the first one). Methods return a new pipeline and leave this one as it is. An iterator closes
    its files when it is dropped.

    Args:
        source: What has a length and gives elements by index (a list, a map-style dataset), divided among
            ranks and workers; or another iterable, or a function that returns an iterator, which every
            worker reads as it is; or an object with a method ``stream(context)``; or another pipeline, which
            this one continues.
        stages: Stages in order: objects with a method ``stream(source, context)`` or generator functions
            of an iterator.
        seed: Determines, with the epoch, all random choices; 0 by default. A loader's seed goes before it.

    Raises:
        TypeError: ``source`` or a stage is nothing of that kind, or ``seed`` is no whole number.

    Example:
        >>> dataset = DataPipeline(range(5)).map(lambda n: 10 * n).batched(2)
        >>> [batch.tolist() for batch in dataset]
        [[0, 10], [20, 30], [40]]
    """

    def __init__(
        self, source: Any, *stages: Stage | Callable[[Iterator[Any]], Iterator[Any]], seed: int | None = None
    ) -> None:
        if seed is not None and not isinstance(seed, Integral):
            raise TypeError(f"a dataset's seed is a whole number, got {seed!r}")
        before: tuple[Stage, ...] = ()
        if isinstance(source, DataPipeline):
            before = source._stages
            seed = source._seed if seed is None else seed
            source = source._origin
        self._seed: int | None = None if seed is None else int(seed)
        self._origin: Origin = _as_origin(source)
        self._stages: tuple[Stage, ...] = (*before, *map(_as_stage, stages))
        self._epoch = 0

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages behind the source, in order."""
        return self._stages

    def __repr__(self) -> str:
        first, stages = self._beginning()
        return "\n    .".join([first, *map(str, stages)])

    def __iter__(self) -> Iterator[Any]:
        epoch = self._epoch
        self._epoch = epoch + 1
        return plain(self.stream(Context.current(epoch)))

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``iter()`` run epoch ``epoch``.

        Args:
            epoch: Its number, from 0.

        Example:
            >>> dataset = DataPipeline(range(50)).shuffle(50)
            >>> first = list(dataset)
            >>> dataset.set_epoch(0)
            >>> list(dataset) == first != list(dataset)
            True
        """
        self._epoch = epoch

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        """The stream of one epoch, with addresses and state; what loaders call.

        Args:
            context: Epoch, seed, rank, worker. With ``deferred``, the last stage may yield
                ``mpwds.tenbin.Deferred`` in place of arrays.

        Returns:
            A stream. Where the source or a stage gives elements without addresses, its state is the number
            of elements delivered, and loading one runs it again from the start of the epoch.

        Example:
            >>> first = DataPipeline(range(4)).stream()
            >>> next(first), next(first)
            ((0, 0), (1, 1))
            >>> second = DataPipeline(range(4)).stream()
            >>> second.load_state_dict(first.state_dict())
            >>> [element for _, element in second]
            [2, 3]
        """
        seed = context.seed if context.seed is not None else self._seed or 0
        context = replace(context, seed=seed)
        for part in (self._origin, *self._stages):
            if not getattr(part, "addressable", True):
                return Replayed(lambda: self._chain(context), str(part))
        return self._chain(context)

    def _chain(self, context: Context) -> Stream[Any]:
        last = len(self._stages)
        stream = self._origin.stream(replace(context, stage=0, deferred=context.deferred and last == 0))
        for position, stage in enumerate(self._stages, start=1):
            deferred = context.deferred and position == last
            stream = stage.stream(stream, replace(context, stage=position, deferred=deferred))
        return stream

    def _beginning(self) -> tuple[str, tuple[Stage, ...]]:
        """How the dataset was made, and the stages added since."""
        seed = "" if self._seed is None else f", seed={self._seed}"
        return f"DataPipeline({self._origin}{seed})", self._stages

    def compose(self: Pipeline, *stages: Stage | Callable[[Iterator[Any]], Iterator[Any]]) -> Pipeline:
        """Adds stages.

        Args:
            stages: Objects with a method ``stream(source, context)``, or generator functions of an iterator
                of elements (their elements have no address: see ``mpwds.pipeline.generator``).

        Raises:
            TypeError: One is neither.

        Example:
            >>> def pairs(source):
            ...     for element in source:
            ...         yield element, next(source, None)
            >>> list(DataPipeline("abc").compose(pairs))
            [('a', 'b'), ('c', None)]
        """
        extended = object.__new__(type(self))
        extended.__dict__.update(self.__dict__)
        extended._stages = (*self._stages, *map(_as_stage, stages))
        return extended


class WebDataset(DataPipeline):
    """A dataset of tar shards, whose samples are dicts of the bytes of their members.

    Args:
        urls: A URL or path with braces (``"train-{000..011}.tar"``), or several.
        shardshuffle: Whether each epoch reads the shards in another order. A number above 0 means the same
            as ``True``: all shards are shuffled, not so many at a time.
        seed: Determines, with the epoch, all random choices of the pipeline; 0 by default. A loader's seed
            goes before it.

    Raises:
        ValueError: There are no shards.
        ShardError: While iterating, a shard is damaged or has a name twice in a sample.

    Example:
        >>> dataset = WebDataset("digits-{000..011}.tar", shardshuffle=True)
        >>> dataset.decode("rgb8").to_tuple("png", "cls")
        WebDataset('digits-{000..011}.tar', shardshuffle=True)
            .decode('rgb8')
            .to_tuple('png', 'cls')
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        shardshuffle: bool | int | None = None,
        seed: int | None = None,
    ) -> None:
        shards: str | tuple[str, ...]
        if isinstance(urls, (str, os.PathLike)):
            shards = os.fspath(urls)
        else:
            shards = tuple([os.fspath(url) for url in urls])
        super().__init__(ShardList(shards, bool(shardshuffle)), TarSamples(), seed=seed)
        options = {"shardshuffle": shardshuffle, "seed": seed}
        given = [f"{name}={value}" for name, value in options.items() if value is not None]
        self._call = f"WebDataset({', '.join([_listed(shards), *given])})"

    def _beginning(self) -> tuple[str, tuple[Stage, ...]]:
        return self._call, self._stages[1:]


def _listed(shards: str | tuple[str, ...]) -> str:
    if isinstance(shards, str):
        return repr(shards)
    more = [f"... ({len(shards)} shards)"] if len(shards) > _SHARDS_SHOWN else []
    return f"[{', '.join([*map(repr, shards[:_SHARDS_SHOWN]), *more])}]"


def _as_origin(source: Any) -> Origin:
    if hasattr(source, "stream"):
        origin: Origin = source
        return origin
    data = sys.modules.get("torch.utils.data")
    iterable = data is not None and isinstance(source, data.IterableDataset)
    if not iterable and hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return Indexed(source)
    return Iterated(source)


def _as_stage(stage: Any) -> Stage:
    if hasattr(stage, "stream"):
        configured: Stage = stage
        return configured
    return Generator(stage)
