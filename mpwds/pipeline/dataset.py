"""Datasets: a beginning, stages behind it, and a fluent way to write them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, TypeVar

from mpwds.pipeline.batched import Batched
from mpwds.pipeline.collate import default_collation_fn
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.decode import Decode, as_tuple
from mpwds.pipeline.elements import Indexed, Iterated
from mpwds.pipeline.generator import Generator
from mpwds.pipeline.map import Map
from mpwds.pipeline.map_dict import MapDict
from mpwds.pipeline.map_tuple import MapTuple
from mpwds.pipeline.replay import Replayed
from mpwds.pipeline.samples import TarSamples
from mpwds.pipeline.select import Select
from mpwds.pipeline.shuffle import Shuffle
from mpwds.pipeline.stream import Origin, Stage, Stream
from mpwds.pipeline.to_tuple import ToTuple
from mpwds.pipeline.torch_dataset import TorchIterable
from mpwds.pipeline.unbatched import Unbatched

Pipeline = TypeVar("Pipeline", bound="DataPipeline")

_SHARDS_SHOWN = 3


class DataPipeline(TorchIterable):
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
        return "\n    .".join([self._beginning(), *map(str, self._stages)])

    def __iter__(self) -> Iterator[Any]:
        epoch = self._epoch
        self._epoch = epoch + 1
        return _plain(self.stream(Context.current(epoch)))

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

    def _beginning(self) -> str:
        seed = "" if self._seed is None else f", seed={self._seed}"
        return f"DataPipeline({self._origin}{seed})"

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

    def shuffle(
        self: Pipeline, size: int, *, initial: int | None = None, seed: int | None = None
    ) -> Pipeline:
        """Yields the elements in random order, through a buffer.

        Args:
            size: Elements held; below 1, nothing is shuffled.
            initial: Elements to take in before the first is yielded; 100 by default, at most ``size``.
            seed: The dataset's by default.

        Raises:
            ValueError: ``initial`` is not from 1 to ``size``.

        Example:
            >>> sorted(DataPipeline(range(6)).shuffle(4))
            [0, 1, 2, 3, 4, 5]
        """
        return self.compose(Shuffle(size, initial, seed)) if size >= 1 else self.compose()

    def decode(
        self: Pipeline,
        *handlers: str | Callable[..., Any],
        pre: Iterable[Callable[..., Any]] | None = None,
        post: Iterable[Callable[..., Any]] | None = None,
        only: str | Iterable[str] | None = None,
        partial: bool = False,
    ) -> Pipeline:
        """Decodes the fields of dict samples by their extensions.

        Args:
            handlers: Image specs (``"rgb8"``, ``"torchrgb"``, ...) and functions ``f(extension, data)`` that
                return ``None`` for what they do not handle.
            pre: Functions tried before ``handlers``, in place of the one that unpacks ``.gz``.
            post: Functions tried after ``handlers``, in place of those for text, numbers and arrays.
            only: The fields to decode, as a list or separated by spaces; all by default.
            partial: Whether to leave fields alone that are no bytes.

        Raises:
            DecodeError: While iterating, a field cannot be decoded.

        Example:
            >>> list(DataPipeline([{"__key__": "a", "cls": b"7"}]).decode())
            [{'__key__': 'a', 'cls': 7}]
        """
        return self.compose(Decode(handlers, as_tuple(pre), as_tuple(post), as_tuple(only), partial))

    def map(self: Pipeline, f: Callable[[Any], Any]) -> Pipeline:
        """Yields ``f(element)`` for each element; ``None`` drops it.

        Args:
            f: Takes an element, returns another. A dict made from a dict sample keeps its ``__key__``.

        Raises:
            TypeError: ``f`` cannot be called.

        Example:
            >>> list(DataPipeline("abc").map(str.upper))
            ['A', 'B', 'C']
        """
        return self.compose(Map(f))

    def map_dict(self: Pipeline, **functions: Callable[[Any], Any]) -> Pipeline:
        """Replaces fields of dict samples by functions of them.

        Args:
            functions: Field name to function.

        Raises:
            KeyError: While iterating, a sample lacks the field.

        Example:
            >>> list(DataPipeline([{"cls": "7"}]).map_dict(cls=int))
            [{'cls': 7}]
        """
        return self.compose(MapDict(functions))

    def map_tuple(self: Pipeline, *functions: Callable[[Any], Any] | None) -> Pipeline:
        """Applies a function to each field of tuple samples.

        Args:
            functions: The first for the first field, and so on; ``None`` leaves a field as it is.

        Raises:
            ValueError: While iterating, a tuple has fewer fields than there are functions.

        Example:
            >>> list(DataPipeline([("a", "7")]).map_tuple(None, int))
            [('a', 7)]
        """
        return self.compose(MapTuple(functions))

    def to_tuple(self: Pipeline, *specs: str, missing_is_error: bool = True) -> Pipeline:
        """Turns dict samples into tuples of some of their fields.

        Args:
            specs: Field names; ``"png;jpg"`` takes the first of these that is there.
            missing_is_error: Whether a missing field is an error; else it becomes ``None``.

        Raises:
            ValueError: While iterating, a sample lacks a field.

        Example:
            >>> list(DataPipeline([{"jpg": b"..", "cls": 7}]).to_tuple("png;jpg", "cls"))
            [(b'..', 7)]
        """
        return self.compose(ToTuple(specs, missing_is_error))

    def select(self: Pipeline, predicate: Callable[[Any], Any]) -> Pipeline:
        """Keeps the elements for which ``predicate`` is true.

        Args:
            predicate: Takes an element.

        Raises:
            TypeError: ``predicate`` cannot be called.

        Example:
            >>> list(DataPipeline(range(6)).select(lambda n: n % 2))
            [1, 3, 5]
        """
        return self.compose(Select(predicate))

    def batched(
        self: Pipeline,
        batchsize: int = 20,
        collation_fn: Callable[[Any], Any] | None = default_collation_fn,
        partial: bool = True,
    ) -> Pipeline:
        """Gathers elements into batches.

        Args:
            batchsize: Elements per batch.
            collation_fn: Makes the batch from the list of elements; ``None`` leaves it a list.
            partial: Whether what remains at the end makes a smaller batch; else it is dropped.

        Raises:
            ValueError: ``batchsize`` is below 1.

        Example:
            >>> list(DataPipeline([(1, "a"), (2, "b"), (3, "c")]).batched(2))
            [(array([1, 2]), ['a', 'b']), (array([3]), ['c'])]
        """
        return self.compose(Batched(batchsize, collation_fn, partial))

    def unbatched(self: Pipeline) -> Pipeline:
        """Takes batches apart into their rows.

        Raises:
            ValueError: While iterating, the columns of a batch differ in length.

        Example:
            >>> list(DataPipeline([([1, 2], ["a", "b"])]).unbatched())
            [(1, 'a'), (2, 'b')]
        """
        return self.compose(Unbatched())


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
        origin = TarSamples(shards, shardshuffle=bool(shardshuffle))
        super().__init__(origin, seed=seed)
        options = {"shardshuffle": shardshuffle, "seed": seed}
        given = [f"{name}={value}" for name, value in options.items() if value is not None]
        self._call = f"WebDataset({', '.join([_listed(shards), *given])})"

    def _beginning(self) -> str:
        return self._call


def _listed(shards: str | tuple[str, ...]) -> str:
    if isinstance(shards, str):
        return repr(shards)
    more = [f"... ({len(shards)} shards)"] if len(shards) > _SHARDS_SHOWN else []
    return f"[{', '.join([*map(repr, shards[:_SHARDS_SHOWN]), *more])}]"


def _plain(stream: Stream[Any]) -> Iterator[Any]:
    for _, element in stream:
        yield element


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
