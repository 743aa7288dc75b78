"""Datasets: a source and stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import Any, TypeGuard, TypeVar

from mpwds.closing import Closes, close_all
from mpwds.errors import shortened
from mpwds.pipeline.coercion import as_source, as_stage, as_stages
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.epochs import ONCE, Epochs
from mpwds.pipeline.error_context import check_whole
from mpwds.pipeline.filter import Filter, rows_in
from mpwds.pipeline.fluent import Fluent
from mpwds.pipeline.iterable_sources import IterableSource, Replayed, iterates_itself
from mpwds.pipeline.stream import Count, Origin, Stage, Stream
from mpwds.suggestions import shown
from mpwds.warn import warn, warn_if_dropped

Pipeline = TypeVar("Pipeline", bound="DataPipeline")


class DataPipeline(Fluent, IterableSource, Closes):
    """A dataset: a source of elements, and stages that process them.

    Iterating a pipeline runs it in this process and yields plain elements; each ``iter()`` is another epoch.
    ``mpwds.MultiLoader`` runs it in many processes. ``torch.utils.data.DataLoader`` treats it as an
    ``IterableDataset``, and torch's seed makes its epochs differ. With several nodes, call ``set_epoch``
    before each epoch of a DataLoader: otherwise each node keeps the same shards in all epochs.

    ``compose`` and the methods named after stages return a new pipeline and leave this one unchanged.
    ``append``, ``with_epoch``, ``with_length`` and ``repeat`` change this one, as webdataset's do.

    Args:
        stages: The source, then the stages in order. ``None`` is ignored, and a list of stages counts as its
            items. A source is one of these:

            - a sequence or map-style dataset, which is divided among ranks and workers;
            - another iterable, such as a loader, or a function that returns an iterator; every worker reads
              all of it;
            - an object with a method ``stream(context)``, such as ``mpwds.SimpleShardList``;
            - another pipeline, to which this one adds stages.

            A stage has a method ``stream(source, context)``, or is a generator function of an iterator.
        seed: Determines all random choices, with the epoch; 0 by default. A loader's seed overrides it.

    Raises:
        TypeError: The source or a stage is of another kind, or ``seed`` is not an integer.

    Example:
        >>> dataset = DataPipeline(range(5)).map(lambda n: 10 * n).batched(2)
        >>> [batch.tolist() for batch in dataset]
        [[0, 10], [20, 30], [40]]
    """

    alike_before_split = True

    def __init__(self, *stages: Any, seed: int | None = None) -> None:
        if seed is not None and not isinstance(seed, Integral):
            raise TypeError(f"a dataset's seed must be a whole number, got {shown(seed)}")
        self.pipeline: list[Any] = []
        self._call = ""  # for repr: the call of a subclass's constructor, and the number of parts it makes
        self._made = 1
        self.given_seed: int | None = None if seed is None else int(seed)
        self.given_epochs = ONCE
        self.given_length: int | None = None
        for stage in stages:
            if isinstance(stage, list) and (self.pipeline or _are_stages(stage)):
                for each in stage:
                    self.append(each)
            elif stage is not None:
                self.append(stage)

    @property
    def stages(self) -> tuple[Filter, ...]:
        """The stages after the source, in order."""
        return as_stages(self.pipeline[1:])

    @property
    def parts(self) -> tuple[Any, ...]:
        """The source and the stages; a ``ValueError`` if the pipeline is empty."""
        if not self.pipeline:
            raise ValueError("the pipeline is empty: append a source, such as a list of shards, then stages")
        return as_source(self.pipeline[0]), *self.stages

    @property
    def samples_in(self) -> Callable[[Any], int]:
        return next((part.samples_in for part in reversed(self.parts) if part.samples_in), rows_in)

    def count_in(self, context: Context, exact: bool = True) -> Count:
        origin, *stages = self.parts
        epochs = self.given_epochs
        if origin.never_empty and epochs.repetitions is None and epochs.limit is not None:
            return Count(epochs.limit)
        return epochs.count_of(stages, origin.count_in(self._seeded(context), exact))

    def stage(self, i: int) -> Any:
        """Part ``i`` of the pipeline, as it was passed; the source is part 0."""
        return self.pipeline[i]

    def __repr__(self) -> str:
        first, stages = self._beginning()
        epochs = [] if self.given_epochs == ONCE else [str(self.given_epochs)]
        length = [] if self.given_length is None else [f"with_length({self.given_length})"]
        return "\n    .".join([first, *map(str, stages), *epochs, *length])

    def _beginning(self) -> tuple[str, tuple[Filter, ...]]:
        """The call that made the dataset, and the stages added since."""
        if self._call:
            return self._call, self.stages[self._made - 1 :]
        source = [str(self.parts[0])] if self.pipeline else []
        seed = [] if self.given_seed is None else [f"seed={self.given_seed}"]
        return f"DataPipeline({', '.join([*source, *seed])})", self.stages

    def __len__(self) -> int:
        """The length that ``with_length`` set; else that of an epoch, or a ``TypeError`` if it is unknown."""
        length = self.given_length
        if length is None and self.given_epochs == ONCE:
            length = self._own_length()
        if length is None:
            raise TypeError(f"object of type {type(self).__name__!r} has no len(): set one by with_length(n)")
        return length

    def _own_length(self) -> int | None:
        """The elements of an epoch of one run, of all ranks and workers together; ``None`` if unknown."""
        return None

    def __add__(self, other: Any) -> Any:
        """torch's ``ChainDataset`` of both, or ``ConcatDataset`` if this one is read by index."""
        from torch.utils.data import ChainDataset, ConcatDataset

        datasets: list[Any] = [self, other]
        return (ConcatDataset if self.map_style else ChainDataset)(datasets)

    def __bool__(self) -> bool:
        return True  # without this, bool() would call __len__

    def close(self) -> None:
        """Closes the parts that have a method ``close``, such as a loader or a cache."""
        close_all(self.pipeline)

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        """The stream of one epoch, with addresses and state. Loaders call this.

        If the source or a stage gives elements without addresses, the state is the number of elements
        delivered, and to load it runs the epoch again from its start.

        Example:
            >>> first, second = DataPipeline(range(4)).stream(), DataPipeline(range(4)).stream()
            >>> next(first), next(first)
            ((0, 0), (1, 1))
            >>> second.load_state_dict(first.state_dict())
            >>> [element for _, element in second]
            [2, 3]
        """
        start = self._starter(context)
        unaddressed = self.non_resumable_part
        return start() if unaddressed is None else Replayed(start, unaddressed)

    def _starter(self, context: Context) -> Callable[[], Stream[Any]]:
        source, *stages = self.parts
        stages = self._run_as(stages)
        seeded = self._seeded(context)
        return lambda: self.given_epochs.stream(lambda context: chain(source, stages, context), seeded)

    def _seeded(self, context: Context) -> Context:
        return replace(context, seed=self.given_seed) if context.seed is None else context

    def _run_as(self, stages: list[Filter]) -> list[Filter]:
        """The stages to run in place of these."""
        return stages

    def append(self, f: Any) -> None:
        """Adds a stage, or, to an empty pipeline, the source. Changes this pipeline.

        Args:
            f: A source or stage, as for the constructor; of a pipeline, its source and stages are added.

        Raises:
            TypeError: It is not a source or stage.

        Example:
            >>> dataset = DataPipeline()
            >>> dataset.append("abc")
            >>> dataset.append(lambda source: (letter * 2 for letter in source))
            >>> list(dataset)
            ['aa', 'bb', 'cc']
        """
        if self.pipeline:
            as_stage(f)
        elif _is_plain(f):
            self.pipeline.extend(f.pipeline)
            self.given_seed = f.given_seed if self.given_seed is None else self.given_seed
            return
        else:
            as_source(f)
        self.pipeline.append(f)

    @shortened
    def compose(self: Pipeline, *stages: Any, **keywords: Any) -> Pipeline:
        """A copy with more stages.

        Args:
            stages: Stages as for the constructor (elements of generator functions have no addresses: see
                ``mpwds.pipeline.coercion.Generator``). Or a stage class and its arguments, as in webdataset
                0.1: ``compose(DBCache, "x.db", 1000)``.
            keywords: Keyword arguments of that class.

        Raises:
            TypeError: An argument is not a stage.

        Example:
            >>> def pairs(source):
            ...     for element in source:
            ...         yield element, next(source, None)
            >>> list(DataPipeline("abc").compose(pairs))
            [('a', 'b'), ('c', None)]
        """
        if stages and isinstance(stages[0], type) and issubclass(stages[0], Filter):
            stages = (stages[0](*stages[1:], **keywords),)
        elif keywords:
            raise TypeError(f"compose takes stages and has no argument {next(iter(keywords))!r}")
        extended = object.__new__(type(self))
        extended.__dict__.update(self.__dict__)
        extended.pipeline = list(self.pipeline)
        for stage in stages:
            extended.append(stage)
        if stages:
            warn_if_dropped(Fluent, extended.stages[-1])
        return extended

    def with_epoch(self: Pipeline, nsamples: int = -1, nbatches: int = -1) -> Pipeline:
        """Sets the number of elements in an epoch. The source is repeated as often as needed.

        Counts the elements at the pipeline's end (batches, if it makes batches), after stages that are added
        later too. Each worker counts by itself. Every epoch and every repetition starts the source again, in
        another order if it is shuffled. Changes this pipeline and returns it.

        Args:
            nsamples: Elements in an epoch; below 0, an epoch has no end.
            nbatches: The same; the larger of the two counts, and must not be 0.

        Example:
            >>> list(DataPipeline("abc").with_epoch(5))
            ['a', 'b', 'c', 'a', 'b']
        """
        self.given_epochs = Epochs(None, _limit("with_epoch", nsamples=nsamples, nbatches=nbatches))
        return self

    def repeat(self: Pipeline, nepochs: int = -1, nbatches: int = -1) -> Pipeline:
        """Makes an epoch of ``nepochs`` runs of the pipeline, each in another order if it is shuffled.

        Changes this pipeline and returns it.

        Args:
            nepochs: Number of runs; below 1, an epoch has no end.
            nbatches: The most elements at the pipeline's end, at least 1; below 0, there is no limit.

        Example:
            >>> list(DataPipeline("ab").repeat(2))
            ['a', 'b', 'a', 'b']
        """
        check_whole("repeat", "nepochs", nepochs)
        self.given_epochs = Epochs(nepochs if nepochs > 0 else None, _limit("repeat", nbatches=nbatches))
        return self

    def with_length(self: Pipeline, n: int, silent: bool = False) -> Pipeline:
        """Makes ``len()`` return ``n``. The epoch stays as long as it is: see ``with_epoch``.

        Changes this pipeline and returns it.

        Args:
            n: The length, at least 0.
            silent: Whether to omit the warning about that.

        Example:
            >>> len(DataPipeline("abc").with_length(1000, silent=True))
            1000
        """
        check_whole("with_length", "n", n, least=0)
        if not silent:
            warn(
                f"with_length({n}) sets only what len() returns: with_epoch(n) sets the number of elements "
                "in an epoch (with_length(n, silent=True) omits this warning)",
                UserWarning,
            )
        self.given_length = int(n)
        return self


def is_pipeline(dataset: Any) -> TypeGuard[DataPipeline]:
    """True for a pipeline, unless its class overrides ``__iter__``, so that it must be iterated."""
    return isinstance(dataset, DataPipeline) and not iterates_itself(dataset)


def _is_plain(source: Any) -> bool:
    """True if a source is a pipeline whose parts another pipeline can take over."""
    is_stock = is_pipeline(source) and type(source).stream is DataPipeline.stream
    return is_stock and source.given_epochs == ONCE


def chain(source: Origin, stages: list[Filter], context: Context) -> Stream[Any]:
    """The stream that runs a pipeline once."""
    # A cache holds the elements of epoch 0, and resumes an epoch that ended early. Pipelines that share it
    # must have the same elements before it, wherever they are in a mix.
    pinned = max((position for position, stage in enumerate(stages, 1) if stage.pins_epoch), default=0)
    # Where ranks or workers divide elements, all must see the same order, so earlier stages shuffle alike.
    last_divider = {"ranks": 0, "workers": 0}
    for position, stage in enumerate(stages, 1):
        last_divider.update(dict.fromkeys(stage.divides_among, position))

    deferring = _first_deferring(stages)

    def of_part(position: int) -> Context:
        part = replace(context.within(position), deferred=context.deferred and position >= deferring)
        if (stages[position - 1] if position else source).alike_before_split:
            if position < last_divider["ranks"]:
                part = part.alike_on_ranks()
            elif position < last_divider["workers"]:
                part = part.alike_on_workers()
        if position >= pinned:
            return part
        return replace(part, epoch=0, run=0, stage=ALONE.within(position).stage)

    def watched(part: Any, stream: Stream[Any], position: int) -> Stream[Any]:
        return stream if context.watch is None else context.watch(part, stream, of_part(position))

    stream = watched(source, source.stream(of_part(0)), 0)
    for position, stage in enumerate(stages, start=1):
        stream = watched(stage, stage.stream(stream, of_part(position)), position)
    return stream


def _are_stages(parts: list[Any]) -> bool:
    """True if a list holds a source and stages, rather than elements."""
    return bool(parts) and all(isinstance(part, Stage) or callable(part) for part in parts)


def _limit(method: str, **counts: int) -> int | None:
    for name, value in counts.items():
        check_whole(method, name, value)
    limit = int(max(counts.values()))
    return limit if limit >= 0 else None


def _first_deferring(stages: list[Filter]) -> int:
    """The position of the first stage after which no stage sees that a value is still to be made."""
    first = len(stages)
    if stages and stages[-1].stacks_values:
        first = max(first - 1, 1)
        while first > 1 and stages[first - 1].passes_values:
            first -= 1
    return first
