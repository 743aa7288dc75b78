"""IndexedDataset: one class for all shards whose samples can be read by number, and how it opens them."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import numpy as np

from mpwds.errors import shortened
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline, chain
from mpwds.pipeline.epochs import ONCE
from mpwds.pipeline.error_context import arguments, given_options
from mpwds.pipeline.filter import MapStage
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.indexed.source import ElementsAsShard, IndexedSamples, Numbers, Shuffling
from mpwds.pipeline.iterable_sources import Indexed, MapStyle, iter_elements, iterates_itself
from mpwds.pipeline.stream import Address, Count, Stage, Stream
from mpwds.suggestions import suggest_arguments

if TYPE_CHECKING:
    from mpwds.pipeline.sources.formats import CacheConfig
    from mpwds.storage.indexed.shards import IndexedShards

Dataset = TypeVar("Dataset", bound="IndexedDataset")


class IndexedDataset(DataPipeline):
    """A dataset whose samples are read by number: ``ds[i]``, in stored order, or in a random one.

    Samples are as the shards have them: those of tar shards are dicts of bytes, as ``WebDataset`` yields
    them. ``decode``, ``map``, ``to_tuple`` and other methods that make one element of one return an
    ``IndexedDataset`` again. Those that do not (``batched``, ``shuffle``, ``select`` with a function) return
    a pipeline, which is iterated and has no ``ds[i]``.

    Iterating it reads the share of this rank and worker, in the order that ``shuffle`` says; each ``iter()``
    is another epoch. The iterator has ``state_dict()`` and ``load_state_dict(state)``, and continues exactly
    where it was. ``MultiLoader`` does all this in many processes. torch's DataLoader iterates it too if
    ``shuffle`` is set. Otherwise it is map-style: a sampler may choose the samples.

    Args:
        source: One of these:

            - tar shards: a URL or path with braces, a list of names, or a local folder;
            - a description, a file or a URL: of wids (``.json``), or in binary form (``.shardindex``);
            - an MDS dataset of either version: its folder or URL;
            - an object with ``urls``, ``lengths`` and ``read(shard, index)``: see
              ``mpwds.storage.indexed.shards.IndexedShards``;
            - a pipeline that begins at one of these and whose stages make one element of one, such as
              ``WebDataset(urls).decode().to_tuple("png", "cls")``;
            - a list or map-style dataset.
        shuffle: The order of an epoch. ``"global"`` is a permutation of all samples. ``"chunked"`` reads
            chunks of consecutive samples in random order, and shuffles each. ``"shards"`` reads shards in
            random order. ``False`` keeps the order of the samples.
        chunksize: Samples in a chunk.
        seed: Determines all random choices, with the epoch; 0 by default. A loader's seed overrides it.
        cache_dir: Folder for copies of shards that are not local; all processes of a machine share it.
        cache_size: The most bytes that it may hold; no limit if negative.
        remote: Whether to read just the samples asked for from tar shards that are not local, by ranges; then
            ``cache_dir`` keeps only where samples begin.
        threads: Samples that an epoch reads at a time, in each process, to hide the latency of a network or
            disk. Shards of your own then need a ``read`` that threads may call at the same time.

    Raises:
        ValueError: ``shuffle`` is unknown, ``chunksize`` or ``threads`` below 1, or there are no shards.
        TypeError: ``source`` is of another kind, or a stage of it does not make one element of one.
        IndexError: ``ds[i]``, and there is no sample ``i``.
        ShardError: A shard is damaged.

    Example:
        >>> ds = IndexedDataset(range(8), shuffle="global")
        >>> ds[3], ds[-1], len(ds), ds[2:6][0]
        (3, 7, 8, 2)
        >>> tens = ds.map(lambda n: 10 * n)
        >>> tens[3], list(tens), list(tens)
        (30, [70, 20, 40, 50, 10, 60, 30, 0], [10, 50, 60, 40, 70, 20, 30, 0])
    """

    _access: tuple[object, Stream[Any]] | None = None  # the stream that ds[i] used last, and what it is for

    _reads = 0  # of ds[i], in a DataLoader's worker
    _alone = ALONE  # the context of ds[i] without stages: to find this process' own takes 3 us

    @suggest_arguments
    def __init__(
        self,
        source: Any,
        shuffle: Shuffling = False,
        *,
        chunksize: int = 2000,
        seed: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: float = -1,
        remote: bool = False,
        threads: int = 1,
    ) -> None:
        from mpwds.pipeline.sources.formats import CacheConfig

        shown = given_options(IndexedDataset.__init__, locals())
        opened = _open(source, CacheConfig(cache_dir, cache_size, remote))
        super().__init__(seed=opened.seed if seed is None else seed)
        first = IndexedSamples(opened.shards, shuffle, chunksize, opened.chosen, threads)
        self.pipeline = [first, *opened.stages]
        self._call = f"IndexedDataset({', '.join(filter(None, [opened.called, arguments(**shown)]))})"

    @property
    def source(self) -> IndexedSamples:
        """The first part of the pipeline, which has the shards and the order."""
        return self.pipeline[0]  # type: ignore[no-any-return]

    @property
    def map_style(self) -> bool:
        """True if torch's DataLoader, or its sampler, chooses the samples: no order, no repetitions."""
        return not self.source.shuffle and self.given_epochs == ONCE

    def _own_length(self) -> int:
        return len(self.source)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self: Dataset, index: slice) -> Dataset: ...

    def __getitem__(self, index: Any) -> Any:
        """Sample ``index``, or, for a slice, a dataset of those samples, which reads none of them yet.

        Stages draw the random numbers of the epoch that the next ``iter()`` runs: see ``set_epoch``. In the
        workers of a DataLoader they draw others each time.
        """
        source = self.source
        if isinstance(index, slice):
            return self._with(replace(source, chosen=source.numbers[index]))
        try:
            position = operator.index(index)
        except TypeError:
            raise TypeError(
                f"a sample's index is a whole number or a slice, got {index!r}; select([...]) takes several"
            ) from None
        return self._element(source.number(position), position)

    def select(
        self, predicate: Callable[[Any], object] | Iterable[int], handler: Handler = reraise_exception
    ) -> Any:
        """The samples of some indices, as an ``IndexedDataset``; or those for which a function is true.

        Args:
            predicate: Indices, in the order in which the dataset is to have them, or a mask: one boolean for
                each sample. With a function of an element the result is a pipeline, whose length is unknown.
                A sample that is chosen twice draws the same random numbers both times in an epoch.
            handler: Called when the function raises an exception; the default raises it.

        Raises:
            IndexError: There is no sample of that index, or not as many booleans as samples.
            TypeError: The indices are not whole numbers.

        Example:
            >>> ds = IndexedDataset(range(6))
            >>> list(ds.select([5, 0, 0])), list(ds.select(lambda n: n > 3))
            ([5, 0, 0], [4, 5])
        """
        if callable(predicate):
            from mpwds.pipeline.stages.select import select

            return self.compose(select(predicate, handler))
        indices = np.asarray(predicate if isinstance(predicate, Sized) else list(predicate))
        indices = indices if indices.size else indices.astype(np.int64)
        if indices.ndim != 1 or indices.dtype.kind not in "iub":
            raise TypeError("select takes indices (whole numbers), a mask of booleans, or a function")
        return self._with(self.source.of(indices))

    def compose(self, *stages: Any, **keywords: Any) -> Any:
        """A copy with more stages; a plain pipeline if they do not make one element of one."""
        extended = super().compose(*stages, **keywords)
        extended.__dict__.pop("_access", None)
        if _obstacle(extended.stages) is None:
            return extended
        iterated = object.__new__(IndexedPipeline)
        iterated.__dict__.update(extended.__dict__)
        return iterated

    stream = DataPipeline.stream  # named here, so that loaders do not take __iter__ for a subclass's own

    def __iter__(self) -> ResumableIterator:
        elements = ResumableIterator(self, self._numbered(self._context()))
        self._epoch += 1
        return elements

    def __repr__(self) -> str:
        shards = self.source.shards
        files = f"{len(shards.urls):,} shard{'s' * (len(shards.urls) != 1)}"
        if (samples := self._counted) is None:
            return f"{super().__repr__()}\n{files}, not counted yet"
        of_all = "" if self.source.chosen is None else f" of {sum(shards.lengths):,}"
        return f"{super().__repr__()}\n{samples:,}{of_all} sample{'s' * (samples != 1)} in {files}"

    def _repr_html_(self) -> str:
        """Shows the first samples in a notebook, as pictures, if the samples are counted."""
        from mpwds.pipeline.indexed.notebook import html_of

        return html_of(repr(self), self.__getitem__, self._counted or 0)

    @property
    def _counted(self) -> int | None:
        """The number of samples, unless shards would be fetched to count them, or cannot be read."""
        from mpwds.storage.indexed.tar_shards import TarShards

        shards = self.source.shards
        if isinstance(shards, TarShards) and shards.fetches_to_count:
            return None
        try:
            return len(self.source)
        except Exception:
            return None

    def __reduce__(self) -> Any:
        rebuild, (kind, attributes) = super().__reduce__()
        return rebuild, (kind, {name: value for name, value in attributes.items() if name != "_access"})

    def _with(self: Dataset, source: IndexedSamples) -> Dataset:
        changed = self.compose()
        changed.pipeline[0] = source
        return changed  # type: ignore[no-any-return]

    def _numbered(self, context: Context) -> Context:
        """The context with the epoch's number, if its ``run`` tells that."""
        return context

    def _element(self, number: int, position: int) -> Any:
        context = self._context() if len(self.pipeline) > 1 else self._alone
        key = context, len(self.pipeline)
        if self._access is None or self._access[0] != key:
            if (obstacle := _obstacle(self.stages)) is not None:
                raise TypeError(f"{obstacle} does not map one sample to one sample, which ds[i] needs")
            seeded = replace(context, seed=self.given_seed)
            self._access = key, chain(self.source, list(self.stages), seeded)
        address: Address = number
        if context.owns_process:  # a DataLoader's worker, whose later epochs are to draw other numbers
            self._reads += 1
            address = number, self._reads
        element = self._access[1].fetch(address)
        if element is None:
            raise ValueError(
                f"a stage dropped sample {position}: it returned None; to leave samples out, use select"
            )
        return element


class IndexedPipeline(DataPipeline):
    """Indexed samples after stages that do not map one sample to one: they are iterated."""

    def _own_length(self) -> int:
        return ONCE.count_of(self.stages, Count(len(self.pipeline[0]))).elements


class ResumableIterator(Iterator[Any]):
    """Iterates over one epoch of a dataset."""

    def __init__(self, dataset: IndexedDataset, context: Context) -> None:
        self._dataset = dataset
        self._begin(context)

    def _begin(self, context: Context) -> None:
        self._context = context
        self._stream = self._dataset.stream(context)
        self._elements = iter_elements(self._stream)

    def __next__(self) -> Any:
        return next(self._elements)

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and where the iterator is in it. Survives JSON and msgpack."""
        context = self._context
        return {"epoch": context.epoch, "run": context.run, "stream": self._stream.state_dict()}

    @shortened
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues after the last element that was delivered before ``state`` was taken.

        The dataset's next ``iter()`` is the epoch after that.

        Raises:
            ValueError: The dataset has other samples, order or seed than then, or ``state`` is no such state.
        """
        if not isinstance(state, Mapping) or not {"epoch", "run", "stream"} <= state.keys():
            raise ValueError(f"an iterator's state is the dict that its state_dict() gave, got {state!r}")
        self._begin(replace(self._context, epoch=state["epoch"], run=state["run"]))
        self._stream.load_state_dict(state["stream"])
        self._dataset._epoch = state["epoch"] + 1


class _Opened(NamedTuple):
    """Shards, how their source prints, the stages after them, and what the source chose, if it did."""

    shards: IndexedShards
    called: str
    stages: Sequence[Stage] = ()
    seed: int | None = None
    chosen: range | Numbers | None = None


def _open(source: Any, cache: CacheConfig) -> _Opened:
    # Formats are imported here: workers get shards that are open already.
    from mpwds.pipeline.sources.formats import FORMATS, find_format, tar_shards
    from mpwds.storage.streams.patterns import Names, listed, shard_names
    from mpwds.storage.streams.urls import is_named

    if isinstance(source, DataPipeline):
        return _of_pipeline(source, cache)
    if all(hasattr(source, name) for name in ("urls", "lengths", "read")):
        return _Opened(source, f"{type(source).__name__}(...)")
    if isinstance(source, (str, os.PathLike)):
        name = os.fspath(source)
        if is_named(name, ".yaml", ".yml"):
            raise ValueError(f"IndexedDataset: {name} is a specification, which mpwds.WebDataset reads")
        format, place = find_format(name) or (FORMATS["tar"], name)
        return _Opened(format.shards(place, cache), repr(name))
    if isinstance(source, (list, tuple, Names)) and source and isinstance(source[0], (str, os.PathLike)):
        urls = shard_names(source)
        return _Opened(tar_shards(urls, cache), listed(urls))
    if isinstance(source, MapStyle) and not isinstance(source, Mapping):
        return _Opened(ElementsAsShard(source), type(source).__name__)
    raise TypeError(f"IndexedDataset: the elements of a {type(source).__name__} have no numbers")


def _of_pipeline(pipeline: DataPipeline, cache: CacheConfig) -> _Opened:
    from mpwds.pipeline.sources.formats import tar_shards
    from mpwds.pipeline.sources.samples import TarSamples
    from mpwds.pipeline.sources.shards import NonEmpty, ShardList, SimpleShardList, SplitStage
    from mpwds.pipeline.stages.shuffle import Detshuffle, Shuffle
    from mpwds.storage.streams.patterns import listed

    # Stages that say who reads which shard when: that does not count here.
    dealing = SplitStage, NonEmpty, Shuffle, Detshuffle
    if pipeline.given_epochs != ONCE:
        raise TypeError(f"IndexedDataset: call {pipeline.given_epochs} after it, not in its source")
    if iterates_itself(pipeline):
        raise TypeError(f"IndexedDataset: the elements of {type(pipeline).__name__} have no numbers")
    origin, *stages = pipeline.parts
    before: Sequence[Stage] = ()
    chosen: range | Numbers | None = None
    if isinstance(origin, DataPipeline):
        shards, called, before, _, chosen = _of_pipeline(origin, cache)
    elif isinstance(origin, (ShardList, SimpleShardList)):
        while stages and isinstance(stages[0], dealing):
            del stages[0]
        reader = stages.pop(0) if stages else None
        if not isinstance(reader, TarSamples) or reader.select_files or reader.rename_files:
            raise TypeError(
                f"IndexedDataset: expected tarfile_to_samples() after {origin}, without select_files and "
                f"rename_files, got {reader}"
            )
        shards = tar_shards(origin.urls, cache, copies=reader.cache)
        called = listed(origin.urls)
    elif isinstance(origin, IndexedSamples):
        shards, called, *_ = _open(origin.shards, cache)
        chosen = origin.chosen
    elif isinstance(origin, Indexed):
        elements: Any = origin.elements
        if isinstance(elements, (list, tuple)):  # texts are elements here, not the names of shards
            elements = ElementsAsShard(elements)
        shards, called, *_ = _open(elements, cache)
    else:
        raise TypeError(f"IndexedDataset: the elements of {origin} have no numbers")
    if (obstacle := _obstacle(stages)) is not None:
        raise TypeError(
            f"IndexedDataset: {obstacle} does not make one element of one. Leave it out here; it can be put "
            'after the IndexedDataset, and shuffle="global" chooses an order, for example'
        )
    return _Opened(shards, called, (*before, *stages), pipeline.given_seed, chosen)


def _obstacle(stages: Iterable[object]) -> object:
    """The first stage that does not make one element of one; ``None`` if there is none."""
    return next((stage for stage in stages if not isinstance(stage, MapStage)), None)
