"""Datasets of tar shards."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpwds.mistakes import explained
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.mixing.mix import RandomMix
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.sources.directory_shards import DirectoryShardList, shards_in
from mpwds.pipeline.sources.multi_shard_sample import MultiShardSample
from mpwds.pipeline.sources.resampled import ResampledShards
from mpwds.pipeline.sources.samples import TarSamples
from mpwds.pipeline.sources.shards import ShardList, Split, Urls, given_urls, listed
from mpwds.pipeline.sources.specs import DatasetSpec, SpecLike, SpecSource, load_spec
from mpwds.pipeline.sources.splitter import Splitter
from mpwds.pipeline.sources.splitting import split_by_node, split_by_worker
from mpwds.pipeline.stages.shuffle import shuffle
from mpwds.pipeline.stream import PipelineSource
from mpwds.storage.caches.names import url_to_cache_name
from mpwds.storage.tar.entries import MAX_DECOMPRESSED_BYTES

if TYPE_CHECKING:
    from mpwds.storage.caches.shard_cache import ShardCache


class WebDataset(DataPipeline):
    """A dataset of tar shards, whose samples are dicts of the bytes of their members.

    Shards are shuffled alike everywhere, by seed and epoch, then divided among nodes and workers, so that
    each is read once, and by another worker in another epoch. (webdataset refuses to run on several nodes
    unless told how to split, and shuffles each worker's shards by themselves.)

    Args:
        urls: Shards: a URL or path with braces (``"train-{000..011}.tar"``), several joined by ``::``, or an
            iterable of names; or a directory, written with a slash behind it: the shards that are in it now;
            or a dataset specification: a path or URL of a ``.yaml`` file, a dict, or what ``mpwds.load_spec``
            returned; or what a pipeline begins at, giving ``{"url": ...}``, such as
            ``mpwds.ResampledShards(...)``.
        handler: What to do about a shard that cannot be read; raises by default. See
            ``mpwds.warn_and_continue``.
        mode: ``"resampled"`` is the same as ``resampled=True``. For a directory ``"resample"``, ``"keep"`` or
            ``"unlink"``: to take its shards as they appear, each for one worker, under another name while it
            is read, and what becomes of them then (:class:`mpwds.DirectoryShardList`).
        resampled: Whether to draw shards at random with replacement, without end, each worker its own
            (:class:`mpwds.ResampledShards`): for ``with_epoch(n)``.
        repeat: Whether an epoch reads the shards again and again, without end if ``True``, or so many times;
            stages see one long epoch.
        shardshuffle: Whether each epoch reads the shards in another order. A number above 0 means the same
            as ``True``: all shards are shuffled, not so many at a time. Resampled shards and those of a
            specification come at random in any case; those of a beginning of your own go through a buffer of
            that size (100 for ``True``).
        cache_size: Bytes that ``cache_dir`` may hold; no limit if negative, no cache if 0. The environment
            variable ``WDS_CACHE_SIZE`` goes before it.
        cache_dir: Directory that keeps shards (:class:`mpwds.ShardCache`); it is created. Samples get its
            file as ``__local_path__`` (those of local shards have that in any case). The environment variable
            ``WDS_CACHE`` goes before it.
        url_to_name: Makes a shard's name in ``cache_dir`` from its URL.
        detshuffle: Without effect.
        nodesplitter: Divides shards among nodes: ``split_by_node``, ``single_node_only``, or a function that
            takes an iterator of shards and yields some of them. ``None`` gives every node all of them.
        workersplitter: Divides a node's shards among its workers, likewise.
        select_files: A function of a member's name: whether to read it.
        rename_files: A function of a member's name that returns the name to go by; it is called before
            ``select_files``.
        empty_check: Whether it is an error if a worker finds no sample in an epoch.
        verbose: Whether the cache tells what it does; the environment variable ``WDS_VERBOSE_CACHE``
            likewise.
        seed: Determines, with the epoch, all random choices of the pipeline; by default the environment
            variable ``WDS_SEED``, or 0. A loader's seed goes before it.
        prefetch_shards: With a cache, shards fetched ahead while one is read.
        length: What ``len()`` returns; the number of samples in an epoch is what it is.
        max_decompressed_bytes: The most data that a member of a compressed shard (``.tar.gz``, ``.tar.zst``)
            may have: 512 MiB by default.

    Raises:
        ValueError: There are no shards, or a ``.json`` index is given.
        OSError: ``cache_dir`` cannot be created.
        SpecError: The specification is wrong.
        TypeError: ``urls`` is nothing of that kind.
        ShardError: While iterating, a shard is damaged or has a name twice in a sample.

    Source:
        ``webdataset.WebDataset``.

    Example:
        >>> dataset = WebDataset("digits-{000..011}.tar", shardshuffle=True)
        >>> dataset.decode("rgb8").to_tuple("png", "cls")
        WebDataset('digits-{000..011}.tar', shardshuffle=True)
            .decode('rgb8')
            .to_tuple('png', 'cls')
    """

    @explained
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
    ) -> None:
        if seed is None and os.environ.get("WDS_SEED"):
            seed = _environment_integer("WDS_SEED")
        super().__init__(seed=seed)
        cache = _cache(cache_dir, cache_size, url_to_name, verbose, prefetch_shards)
        reader = TarSamples(
            *(handler, select_files, rename_files, empty_check, cache),
            local_paths=True,
            max_decompressed_bytes=max_decompressed_bytes,
        )
        resampled = resampled or mode == "resampled"
        self._call = f"WebDataset({_shown(urls)}"
        if isinstance(urls, (Mapping, DatasetSpec)) or _ends_in(urls, ".yaml", ".yml"):
            if resampled:
                raise ValueError(
                    "resampled=True: a specification says so itself, by `resample: n` for a source"
                )
            spec = load_spec(urls)  # type: ignore[arg-type]  # it is one of those that a specification may be
            self._begin_at_spec(spec, reader, nodesplitter, workersplitter)
        elif _ends_in(urls, ".json"):
            raise ValueError(
                f"{urls}: indexes of shards (.json) are not read: give the shards, or a specification (.yaml)"
            )
        elif _ends_in(urls, "/") and mode not in (None, "resampled"):
            # A shard is claimed when it is asked for, so none may be asked for ahead, as a cache would.
            claimed: Any = DirectoryShardList(urls, mode=mode)  # type: ignore[arg-type]  # checked there
            self._begin(claimed, replace(reader, cache=None))
        elif hasattr(urls, "stream") or _is_torch_iterable(urls):
            if resampled:
                raise ValueError(
                    "resampled=True needs the names of shards: put mpwds.resampled() behind the list"
                )
            self._begin(urls, *([shuffle(_buffer(shardshuffle))] if shardshuffle else []), reader)
        else:
            in_directory = _ends_in(urls, "/")
            given = shards_in(urls) if in_directory else given_urls(urls)  # type: ignore[arg-type]  # a path
            if not in_directory:
                self._call = f"WebDataset({listed(given)}"
            if resampled:
                self._begin(ResampledShards(given), reader)
            else:
                splitters = map(_as_stage, (nodesplitter, workersplitter))
                self._begin(ShardList(given, bool(shardshuffle), *splitters), reader)
        shown = options(
            handler=(handler, reraise_exception),
            mode=(mode, None),
            resampled=(resampled and mode is None, False),
            repeat=(repeat, False),
            shardshuffle=(shardshuffle, None),
            cache_dir=(cache_dir, None),
            nodesplitter=(nodesplitter, split_by_node),
            workersplitter=(workersplitter, split_by_worker),
            select_files=(select_files, None),
            rename_files=(rename_files, None),
            empty_check=(empty_check, True),
            seed=(seed, None),
            max_decompressed_bytes=(max_decompressed_bytes, MAX_DECOMPRESSED_BYTES),
        )
        if length is not None:
            self.with_length(length, silent=True)
        self._call += f", {arguments(**shown)})" if shown else ")"
        if repeat:  # here, not at the end: `slice` and whatever else comes behind sees one long epoch
            self.pipeline = [DataPipeline(*self.pipeline).repeat(-1 if repeat is True else repeat)]
            self._made = 1

    def _begin(self, *parts: Any) -> None:
        for part in parts:
            if part is not None:
                self.append(part)
        self._made = len(self.pipeline)

    def _begin_at_spec(
        self, spec: DatasetSpec, reader: TarSamples, nodesplitter: Split | None, workersplitter: Split | None
    ) -> None:
        samples: list[Any]
        if spec.mixes_samples:
            parts = [_of_source(source, reader, nodesplitter, workersplitter) for source in spec.sources]
            weights = [1.0 if source.weight is None else source.weight for source in spec.sources]
            stop: Any = spec.stop or ("never" if spec.epoch else "all_exhausted_without_replacement")
            samples = [RandomMix(parts, weights, stop=stop)]
        else:
            samples = [MultiShardSample(spec), nodesplitter, workersplitter, reader]
        if spec.epoch:  # of samples, so it is counted before what the user puts behind them
            samples = [DataPipeline(*samples).with_epoch(spec.epoch)]
        self._begin(*samples)


def construct_dataset(fname: SpecLike, **given: Any) -> WebDataset:
    """The dataset of a specification.

    Args:
        fname: A YAML file, a dict, or what ``mpwds.load_spec`` returned.
        given: Options of :class:`WebDataset`.

    Raises:
        SpecError: The specification is wrong.

    Source:
        ``webdataset.dsspecs.construct_dataset`` (0.1).

    Example:
        >>> construct_dataset({"datasets": [{"shards": "x.tar"}]})
        WebDataset(<specification of 1 sources>)
    """
    return WebDataset(load_spec(fname), **given)


def _of_source(
    source: SpecSource, reader: TarSamples, nodesplitter: Split | None, workersplitter: Split | None
) -> DataPipeline:
    """The samples of one source of a specification that mixes samples."""
    dataset = DataPipeline(
        MultiShardSample(DatasetSpec((source.of_shards(),))),
        nodesplitter,
        workersplitter,
        reader.without_empty_check(),
    )
    if source.subsample < 1:
        dataset = dataset.rsample(source.subsample)
    if source.shuffle:
        dataset = dataset.shuffle(source.shuffle)
    return dataset if source.epoch is None else dataset.with_epoch(source.epoch)


def _as_stage(split: Split | None) -> Split | None:
    """A function becomes a stage that passes it an iterator, as webdataset does since 0.2."""
    return split if split is None or hasattr(split, "stream") else Splitter(split)


def _cache(
    directory: str | os.PathLike[str] | None,
    size: float,
    url_to_name: Callable[[str], str],
    verbose: bool,
    prefetch_shards: int,
) -> ShardCache | None:
    directory = os.environ.get("WDS_CACHE", directory)
    if "WDS_CACHE_SIZE" in os.environ:
        size = _environment_integer("WDS_CACHE_SIZE")
    if directory is None or size == 0:
        return None
    directory = os.path.expanduser(os.fspath(directory))
    os.makedirs(directory, exist_ok=True)
    from mpwds.storage.caches.shard_cache import ShardCache

    verbose = verbose or os.environ.get("WDS_VERBOSE_CACHE", "0") not in ("", "0")
    return ShardCache(directory, size, url_to_name, verbose, prefetch_shards)


def _environment_integer(variable: str) -> int:
    try:
        return int(float(os.environ[variable]))
    except ValueError:
        raise ValueError(
            f"environment variable {variable} is {os.environ[variable]!r}, expected a whole number"
        ) from None


def _buffer(shardshuffle: bool | int) -> int:
    return 100 if shardshuffle is True else int(shardshuffle)


def _ends_in(urls: Any, *endings: str) -> bool:
    return isinstance(urls, (str, os.PathLike)) and os.fspath(urls).endswith(endings)


def _is_torch_iterable(urls: Any) -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(urls, data.IterableDataset)


def _shown(urls: Any) -> str:
    if isinstance(urls, (str, os.PathLike)):
        return repr(os.fspath(urls))
    return "{...}" if isinstance(urls, Mapping) else str(urls)
