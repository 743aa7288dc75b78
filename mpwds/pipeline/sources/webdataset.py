"""Datasets of tar shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mpwds.pipeline.coercion import Split, Splitter, as_source
from mpwds.pipeline.context import integer_variable
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.epochs import ONCE
from mpwds.pipeline.error_context import arguments, check_choice, check_whole, given_options
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.iterable_sources import is_torch_iterable
from mpwds.pipeline.sources.samples import TarSamples
from mpwds.pipeline.sources.shards import (
    ResampledShards,
    ShardList,
    SimpleShardList,
    Urls,
    split_by_node,
    split_by_worker,
)
from mpwds.pipeline.stages.shuffle import shuffle
from mpwds.pipeline.stream import Count, PipelineSource, Stage
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.streams.patterns import listed, shard_names
from mpwds.storage.streams.urls import is_description, is_named, url_to_cache_name
from mpwds.storage.tar.entries import MAX_DECOMPRESSED_BYTES
from mpwds.suggestions import suggest_arguments

if TYPE_CHECKING:
    from mpwds.pipeline.sources.specs import SpecLike, SpecSource
    from mpwds.storage.caches.shard_cache import ShardCache


class WebDataset(DataPipeline):
    """A dataset of tar shards. Its samples are dicts of the bytes of their members.

    Seed and epoch determine the order of the shards, alike on all nodes and workers. The shards are then
    divided among nodes and workers, so each shard is read once in an epoch.

    Args:
        urls: One of these:

            - a URL or path, possibly with braces (``"train-{000..011}.tar"``), several joined by ``::``, or
              an iterable of names;
            - a description: a ``.json`` file in the form of wids, or a ``.shardindex``, which tells ``len()``
              the number of samples (:func:`mpwds.storage.indexed.descriptions.load_description`);
            - a directory, with a trailing slash: the shards that are in it now;
            - a dataset specification: a ``.yaml`` file, a dict, or the result of ``mpwds.load_spec``;
            - a source of a pipeline that yields ``{"url": ...}``, such as ``mpwds.ResampledShards(...)``.
        handler: Called when a shard cannot be read; the default raises. See ``mpwds.warn_and_continue``.
        mode: ``"resampled"`` means ``resampled=True``. For a directory ``"resample"``, ``"keep"`` or
            ``"unlink"`` takes shards as they appear, each for one worker (:class:`mpwds.DirectoryShardList`).
        resampled: Whether to draw shards at random with replacement, without end, in each worker by itself
            (:class:`mpwds.ResampledShards`). For ``with_epoch(n)``.
        repeat: How often an epoch reads the shards; without end if ``True``. Stages see one long epoch.
        shardshuffle: Whether each epoch reads the shards in another order; so does a number above 0.
            Resampled shards and those of a specification are always in random order. Shards of your own
            source are shuffled through a buffer of that size (100 for ``True``).
        cache_size: The most bytes that ``cache_dir`` may hold; no limit if negative, no cache if 0. The
            environment variable ``WDS_CACHE_SIZE`` overrides it.
        cache_dir: Directory in which to cache shards (:class:`mpwds.ShardCache`); it is created. Samples get
            the path of the cached file as ``__local_path__``, samples of local shards that of the shard. The
            environment variable ``WDS_CACHE`` overrides it.
        url_to_name: Makes a shard's name in ``cache_dir`` from its URL.
        detshuffle: Without effect.
        nodesplitter: Divides shards among nodes: ``split_by_node``, ``single_node_only``, or a function that
            takes an iterator of shards and yields some of them. ``None`` gives all shards to every node.
        workersplitter: Divides a node's shards among its workers, likewise.
        select_files: A function of a member's name that returns whether to read the member.
        rename_files: A function of a member's name that returns the name to use, also for ``select_files``.
        empty_check: Whether it is an error if a worker finds no sample in an epoch.
        verbose: Whether the cache reports its work; also set by the variable ``WDS_VERBOSE_CACHE``.
        seed: Determines all random choices of the pipeline, with the epoch; by default the environment
            variable ``WDS_SEED``, or 0. A loader's seed overrides it.
        prefetch_shards: With a cache, the number of shards to fetch ahead.
        read_ahead: The number of ranges of 8 MB that each worker fetches ahead while it reads a shard from a
            server; it also opens the next shard then. By default 8 for cloud storage, 0 for other servers.
        length: The value that ``len()`` returns, as by ``with_length``.
        max_decompressed_bytes: The most bytes that a member of a compressed shard may have (512 MiB).

    Raises:
        ValueError: There are no shards.
        OSError: ``cache_dir`` cannot be created.
        SpecError: The specification, or the description, is wrong.
        TypeError: ``urls`` is of another kind.
        ShardError: While iterating, a shard is damaged or a sample has two members of one name.

    Source:
        ``webdataset.WebDataset``.

    Example:
        >>> dataset = WebDataset("digits-{000..011}.tar", shardshuffle=True)
        >>> dataset.decode("rgb8").to_tuple("png", "cls")
        WebDataset('digits-{000..011}.tar', shardshuffle=True)
            .decode('rgb8')
            .to_tuple('png', 'cls')
    """

    @suggest_arguments
    def __init__(
        self,
        urls: Urls | SpecLike | PipelineSource,
        handler: Handler = reraise_exception,
        mode: str | None = None,
        resampled: bool = False,
        repeat: bool | int = False,
        shardshuffle: bool | int | None = None,
        cache_size: float = -1,
        cache_dir: str | os.PathLike[str] | None = None,
        url_to_name: Callable[[str], str] = url_to_cache_name,
        detshuffle: bool = False,
        nodesplitter: Split | None = split_by_node,
        workersplitter: Split | None = split_by_worker,
        select_files: Callable[[str], Any] | None = None,
        rename_files: Callable[[str], str] | None = None,
        empty_check: bool = True,
        verbose: bool = False,
        seed: int | None = None,
        prefetch_shards: int = 1,
        length: int | None = None,
        max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
        read_ahead: int | None = None,
    ) -> None:
        shown = given_options(WebDataset.__init__, locals())
        shown.pop("length", None)  # it prints as with_length
        if read_ahead is not None:
            check_whole("WebDataset", "read_ahead", read_ahead, least=0)
        self._samples: list[int] | None = None  # in each shard, by a description
        cache = _cache(cache_dir, cache_size, url_to_name, verbose, prefetch_shards, read_ahead)
        reader = TarSamples(
            *(handler, select_files, rename_files, empty_check, cache),
            local_paths=True,
            read_ahead=read_ahead,
            max_decompressed_bytes=max_decompressed_bytes,
            written_as="WebDataset",
        )
        splitters = [
            split if split is None or isinstance(split, Stage) else Splitter(split)
            for split in (nodesplitter, workersplitter)
        ]
        if not _is_folder(urls):
            check_choice("WebDataset", "mode", mode, None, "resampled")
        resampled = resampled or mode == "resampled"
        written = ""
        parts: list[Any]
        if isinstance(urls, Mapping) or hasattr(urls, "mixes_samples") or is_named(urls, ".yaml", ".yml"):
            if resampled:
                raise ValueError("resampled=True cannot be combined with a specification: set `resample: n`")
            parts = _of_spec(urls, reader, splitters)  # type: ignore[arg-type]  # a spec
        elif _is_folder(urls) and mode not in (None, "resampled"):
            from mpwds.pipeline.sources.directory_shards import DirectoryShardList

            # A shard is claimed when it is requested, so it must not be requested ahead, as a cache would.
            claimed: Any = DirectoryShardList(urls, mode=mode)  # type: ignore[arg-type]  # checked there
            parts = [claimed, replace(reader, cache=None)]
        elif isinstance(urls, PipelineSource) or is_torch_iterable(urls):
            if resampled:
                raise ValueError("resampled=True needs the names of shards: put mpwds.resampled() after them")
            size = 100 if shardshuffle is True else shardshuffle or 0
            if size and as_source(urls).takes_any_order:
                raise ValueError(
                    f"shardshuffle takes shards before they are read, and {urls} ends each when the next one "
                    "is taken: it draws them at random by itself, so pass shardshuffle=False"
                )
            divides = splitters if isinstance(urls, SimpleShardList) else []
            parts = [urls, *divides, shuffle(size) if size else None, reader]
        else:
            given: Any
            if _is_folder(urls):
                from mpwds.pipeline.sources.directory_shards import shards_in

                given = shards_in(urls)  # type: ignore[arg-type]  # a path
            elif is_description(urls):
                from mpwds.storage.indexed.descriptions import Description

                description = Description(urls)  # type: ignore[arg-type]  # a path
                given = description.urls
                self._samples = None if resampled else description.lengths
            else:
                given = shard_names(urls)
                written = listed(given)
            if resampled:
                parts = [ResampledShards(given), reader]
            else:
                shards = ShardList(given, bool(shardshuffle), *splitters)
                shards.nsamples = self._samples
                parts = [shards, reader]
        super().__init__(*parts, seed=integer_variable("WDS_SEED") if seed is None else seed)
        if repeat:  # part of the source, so that later stages such as `slice` see one long epoch
            self._samples = None
            self.pipeline = [DataPipeline(*self.pipeline).repeat(-1 if repeat is True else repeat)]
        self._made = len(self.pipeline)
        if length is not None:
            self.with_length(length, silent=True)
        self._call = f"WebDataset({written or _shown(urls)}{', ' if shown else ''}{arguments(**shown)})"

    def _own_length(self) -> int | None:
        """The number of elements that the stages make of the samples of a description."""
        if self._samples is None:
            return None
        return ONCE.count_of(self.stages[self._made - 1 :], Count(sum(self._samples))).elements


def _of_spec(given: SpecLike, reader: TarSamples, splitters: list[Stage | None]) -> list[Any]:
    from mpwds.pipeline.sources.mix import RandomMix
    from mpwds.pipeline.sources.specs import MultiShardSample, load_spec

    spec = load_spec(given)
    parts: list[Any]
    if spec.mixes_samples:
        datasets = [_of_source(source, reader, splitters) for source in spec.sources]
        weights = [1.0 if source.weight is None else source.weight for source in spec.sources]
        stop: Any = spec.stop or ("never" if spec.epoch else "all_exhausted_without_replacement")
        parts = [RandomMix(datasets, weights, stop=stop)]
    else:
        parts = [MultiShardSample(spec), *splitters, reader]
    if spec.epoch:  # counts samples, before the user's stages
        return [DataPipeline(*parts).with_epoch(spec.epoch)]
    return parts


def construct_dataset(fname: SpecLike, **given: Any) -> WebDataset:
    """The dataset of a specification, as ``WebDataset(fname, **given)`` makes it, whatever the file's ending.

    Source:
        ``webdataset.dsspecs.construct_dataset`` (0.1).

    Example:
        >>> construct_dataset({"datasets": [{"shards": "x.tar"}]})
        WebDataset(<specification of 1 sources>)
    """
    from mpwds.pipeline.sources.specs import load_spec

    return WebDataset(load_spec(fname), **given)


def _of_source(source: SpecSource, reader: TarSamples, splitters: list[Stage | None]) -> DataPipeline:
    from mpwds.pipeline.sources.specs import DatasetSpec, MultiShardSample

    shards = MultiShardSample(DatasetSpec((source.of_shards(),)))
    dataset = DataPipeline(shards, *splitters, replace(reader, empty_check=False))
    if source.subsample < 1:
        dataset = dataset.rsample(source.subsample)
    if source.shuffle:
        dataset = dataset.shuffle(source.shuffle)
    return dataset if source.epoch is None else dataset.with_epoch(source.epoch)


def _cache(
    directory: str | os.PathLike[str] | None,
    size: float,
    url_to_name: Callable[[str], str],
    verbose: bool,
    prefetch_shards: int,
    read_ahead: int | None,
) -> ShardCache | None:
    directory = os.environ.get("WDS_CACHE", directory)
    size = integer_variable("WDS_CACHE_SIZE", size)
    if directory is None or size == 0:
        return None
    directory = os.path.expanduser(os.fspath(directory))
    try:
        os.makedirs(directory, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        refusal = f"WebDataset: cache_dir {directory!r} must be a directory, not a file"
        raise NotADirectoryError(refusal) from None
    from mpwds.storage.caches.shard_cache import ShardCache

    verbose = verbose or os.environ.get("WDS_VERBOSE_CACHE", "0") not in ("", "0")
    opener = None if read_ahead is None else partial(open_at, read_ahead=read_ahead)
    return ShardCache(directory, size, url_to_name, verbose, prefetch_shards, opener=opener)


def _is_folder(urls: Any) -> bool:
    return isinstance(urls, (str, os.PathLike)) and os.fspath(urls).endswith("/")


def _shown(urls: Any) -> str:
    if isinstance(urls, (str, os.PathLike)):
        return repr(os.fspath(urls))
    return "{...}" if isinstance(urls, Mapping) else str(urls)
