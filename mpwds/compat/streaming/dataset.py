"""mosaicml-streaming's StreamingDataset, the streams that it mixes, and LocalDataset."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from mpwds.pipeline.error_context import arguments, check_choice, given_options
from mpwds.pipeline.indexed.mds_datasets import PartitionedDataset, PartitionedSamples, SharedEpochCounter
from mpwds.pipeline.indexed.source import IndexedSamples, Numbers, Shuffling
from mpwds.storage.mds.shards_v2 import MDSShards
from mpwds.storage.mds.stored_files import parse_amount, parse_binary_size
from mpwds.suggestions import suggest_arguments
from mpwds.warn import warn

# In those of the second kind, samples stay among their neighbours.
_ORDERS: dict[str, Shuffling] = {
    **dict.fromkeys(("naive", "py1s", "py2s"), "global"),
    **dict.fromkeys(("py1b", "py1br", "py1e"), "chunked"),
}
_BLOCK = 1 << 18
_THOUSANDS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


class StreamingDataset(PartitionedDataset):
    """An MDS dataset of version 2, or a mix of several, for programs written for mosaicml-streaming.

    Iterating it yields this worker's part of this rank's samples; ``ds[i]`` is sample ``i`` of all, and
    slices and lists of numbers give lists. A subclass may change ``__getitem__`` or ``get_item``. ``len`` is
    the number of this rank's samples. Shards are fetched when they are needed, by one process of the machine,
    uncompressed, and compared with the index's hashes.

    Each sample of an epoch is read once, in an order that ``shuffle_seed`` and the epoch determine. It is not
    mosaicml-streaming's order. ``StreamingDataLoader`` and ``mpwds.MultiLoader`` resume it exactly, with as
    many ranks as before. Arguments are attributes, too, as they were given, except ``shuffle``, a method.

    Args:
        streams: Datasets to mix, in place of ``remote`` and ``local``.
        remote: The dataset's URL or folder.
        local: The folder in which shards are read.
        split: A folder below both.
        download_retry: Further attempts to fetch a file.
        download_timeout: Seconds that fetching a file may take.
        validate_hash: The hash to compare; by default all that the index has. Named, it is compared for
            shards that are in ``local`` already, too.
        keep_zip: Compressed files are not kept; ``True`` is a warning.
        epoch_size: Samples of an epoch, if streams have proportions; also ``"100k"``.
        cache_limit: Bytes that fetched shards may have in all; also ``"10gb"``.
        batch_size: Samples of a batch of the DataLoader. Workers then get whole batches, so that a rank has
            one smaller batch at most, its last; they take them in turn, so that the order is the same for any
            number of workers.
        shuffle: Whether epochs are in random order.
        shuffle_algo: ``"naive"``, ``"py1s"`` and ``"py2s"`` shuffle all samples. ``"py1b"``, ``"py1br"`` and
            ``"py1e"`` read blocks in random order, the samples of each in random order.
        shuffle_seed: Determines the order.
        shuffle_block_size: Samples of a block; 262144 by default.
        allow_unsafe_types: Whether columns of pickles may be decoded, which runs code that they hold.
        replication: Number of consecutive ranks that read the same samples. Divides the number of ranks.
        predownload, sampling_granularity, partition_algo, num_canonical_nodes: Have no effect: they tune how
            mosaicml-streaming reads.
        sampling_method: Of a stream of which an epoch has a part, ``"balanced"`` draws another part for each
            epoch; ``"fixed"`` keeps the first.
        batching_method: Only ``"random"``; ``mpwds.RandomMix`` mixes batches of one dataset each.
        stream_name, stream_config: Not offered: there is no registry of streams.

    Attributes:
        shards: The shards' paths.
        num_samples, num_shards, num_streams: How many there are.
        epoch_size: Samples of an epoch, of all ranks.
        samples_per_shard, samples_per_stream, shards_per_stream: Arrays of these numbers.
        shard_offset_per_stream: The number of each stream's first shard.
        sample_offset_per_shard, sample_offset_per_stream: The number of each one's first sample.
        stream_per_shard: The number of each shard's stream.

    Raises:
        FileNotFoundError: There is no index.
        FileExistsError: A ``local`` holds another dataset than its ``remote``, or an earlier version of it.
        ShardError: The index or, while reading, a shard is damaged. The message names file and offset.
        ValueError: An argument is invalid, or not offered.

    Source:
        ``streaming.StreamingDataset`` (mosaicml-streaming 0.13).

    Example:
        >>> import tempfile
        >>> from mpwds.streaming import MDSWriter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with MDSWriter(columns={"cls": "int"}, out=folder) as sink:
        ...         for number in range(5):
        ...             sink.write({"cls": number})
        ...     ds = StreamingDataset(local=folder, shuffle=True, batch_size=2)
        ...     ds[3], ds[:2], sorted(sample["cls"] for sample in ds)
        ({'cls': 3}, [{'cls': 0}, {'cls': 1}], [0, 1, 2, 3, 4])
    """

    @suggest_arguments
    def __init__(
        self,
        *,
        streams: Sequence[Stream] | None = None,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        download_retry: int = 2,
        download_timeout: float = 60,
        validate_hash: str | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        partition_algo: str = "relaxed",
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        batching_method: str = "random",
        allow_unsafe_types: bool = False,
        replication: int | None = None,
        stream_name: str = "stream",
        stream_config: dict[str, Any] | None = None,
    ) -> None:
        if bool(streams) == bool(remote or local):
            raise ValueError("StreamingDataset takes either streams, or remote and local")
        if batching_method != "random":
            raise ValueError(
                f"StreamingDataset: there is no batching_method {batching_method!r} here: mpwds.RandomMix "
                "mixes datasets, of batches too"
            )
        if stream_name != "stream" or stream_config:
            raise ValueError("StreamingDataset: there is no registry of streams here: pass streams=[...]")
        check_choice("StreamingDataset", "sampling_method", sampling_method, "balanced", "fixed")
        if shuffle_seed < 0:
            raise ValueError(f"StreamingDataset: shuffle_seed must not be negative, got {shuffle_seed}")
        check_choice("StreamingDataset", "shuffle_algo", shuffle_algo, *_ORDERS)
        self.streams = list(map(copy.copy, streams or [Stream(remote=remote, local=local)]))
        parts = []
        for stream in self.streams:
            stream.split = stream.split or split or ""
            stream.validate_hash = stream.validate_hash or validate_hash
            stream.keep_zip = keep_zip if stream.keep_zip is None else stream.keep_zip
            if stream.download_retry is None:
                stream.download_retry = download_retry
            if stream.download_timeout is None:
                stream.download_timeout = download_timeout
            part = MDSShards(
                stream.local,
                stream.remote,
                stream.split,
                allow_pickle=allow_unsafe_types,
                validate_hash=stream.validate_hash,
                cache_limit=parse_binary_size(cache_limit),
                retries=stream.download_retry,
                timeout_s=stream.download_timeout,
                datasets=len(self.streams),
            )
            stream.local = stream.local or part.folder.removesuffix(f"/{stream.split}")
            parts.append(part)
        if any(stream.keep_zip for stream in self.streams):
            warn("StreamingDataset: keep_zip=True has no effect, compressed files of shards are not kept")
        counts = [sum(part.lengths) for part in parts]
        if isinstance(epoch_size, str):
            epoch_size = parse_amount(
                epoch_size, _THOUSANDS, "epoch_size must be a number, or text such as '100k'"
            )
        sizes = weigh(self.streams, counts, epoch_size or None, shuffle_seed)
        draw = partial(samples_of_an_epoch, sizes, counts, shuffle_seed)
        chosen = draw(0)
        source = PartitionedSamples(
            parts[0] if len(parts) == 1 else JoinedShards(parts),
            _ORDERS[shuffle_algo] if shuffle else False,
            shuffle_block_size or _BLOCK,
            batch_size=batch_size or 0,
            replication=replication or 1,
            in_turn=True,
            drawn=draw if sampling_method == "balanced" else None,
        )
        super().__init__(source, chosen, shuffle_seed)
        self.predownload = predownload
        self.cache_limit = parse_binary_size(cache_limit)
        self.sampling_method = sampling_method
        self.sampling_granularity = sampling_granularity
        self.partition_algo = partition_algo
        self.num_canonical_nodes = num_canonical_nodes
        self.batch_size = batch_size
        self.shuffle_algo = shuffle_algo
        self.shuffle_seed = shuffle_seed
        self.shuffle_block_size = shuffle_block_size
        self.batching_method = batching_method
        self.allow_unsafe_types = allow_unsafe_types
        self.replication = replication
        self.num_samples = sum(counts)
        self.epoch_size = self.num_samples if chosen is None else len(chosen)
        self.shards = list(source.shards.urls)
        self.num_shards, self.num_streams = len(self.shards), len(parts)
        self.samples_per_shard = np.array(source.shards.lengths, np.int64)
        self.samples_per_stream = np.array(counts, np.int64)
        self.sample_offset_per_shard = np.cumsum(self.samples_per_shard) - self.samples_per_shard
        self.sample_offset_per_stream = np.cumsum(self.samples_per_stream) - self.samples_per_stream
        self.shards_per_stream = np.array([len(part.urls) for part in parts])
        self.shard_offset_per_stream = np.cumsum(self.shards_per_stream) - self.shards_per_stream
        self.stream_per_shard = np.repeat(np.arange(len(parts)), self.shards_per_stream)
        given = {"streams": streams, "remote": remote, "local": local, "split": split, "shuffle": shuffle}
        self._call = f"StreamingDataset({arguments(**given_options(StreamingDataset.__init__, given))})"

    @property
    def size(self) -> int:
        """The number of samples, each counted once."""
        return self.num_samples

    @property
    def length(self) -> int:
        """The number of this rank's samples, as ``len`` tells it."""
        return len(self)

    @property
    def spanner(self) -> _Spanner:
        """``spanner[i]`` is the shard that sample ``i`` is in, and the sample's number there."""
        return _Spanner(self.source)

    def prepare_shard(self, shard_id: int) -> None:
        """Fetches a shard, if it is not in ``local``."""
        if self.samples_per_shard[shard_id]:
            self.source.shards.read(shard_id, 0)

    def state_dict(self, num_samples: int, from_beginning: bool, epoch: int | None = None) -> dict[str, Any]:
        """A position in an epoch. ``StreamingDataLoader`` and Composer's trainer call this.

        Args:
            num_samples: How many samples all ranks together have had.
            from_beginning: Whether that is since the epoch's start, rather than since it was resumed.
            epoch: The epoch's number; by default that of the last one that began.
        """
        resumed, delivered = self.source.resumed
        if epoch is None:
            epoch = max(self.next_epoch - 1, resumed)
        before = 0 if from_beginning or epoch != resumed else delivered * self.ranks
        return {"epoch": epoch, "sample_in_epoch": before + num_samples, **self._facts}

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Makes the next epoch begin where ``state_dict`` was called, without reading what came before.

        Call it before a DataLoader starts its workers.

        Raises:
            ValueError: The state is of another number of ranks, another seed or epochs of another size.
        """
        for fact, now in self._facts.items():
            if fact not in obj:
                raise ValueError(
                    "the state is of mosaicml-streaming, which has another order: begin the epoch again"
                )
            if obj[fact] != now:
                raise ValueError(
                    f"the state of a StreamingDataset with {fact}={obj[fact]}, which is {now} now"
                )
        epoch, delivered = obj["epoch"], obj["sample_in_epoch"] // self.ranks
        if delivered >= len(self):
            epoch, delivered = epoch + 1, 0
        self.pipeline[0] = replace(self.source, resumed=(epoch, delivered))
        self._epoch = self._first_epoch = epoch
        self._epoch_counter = SharedEpochCounter()

    @property
    def ranks(self) -> int:
        """The number of ranks that have samples of their own."""
        return self.source.ranks(self._context())

    @property
    def _facts(self) -> dict[str, int | None]:
        return {"shuffle_seed": self.given_seed, "epoch_size": self.epoch_size, "ranks": self.ranks}

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Sample ``sample_id``. ``retry`` has no effect: ``download_retry`` says how often to try."""
        return super().__getitem__(sample_id)

    def __getitem__(self, at: Any) -> Any:
        """A sample, or, for a slice, a list or an array of numbers, a list of samples."""
        return _items(self, at)

    @property
    def _is_changed(self) -> bool:
        kind = type(self)
        return (kind.__getitem__, kind.get_item) != (StreamingDataset.__getitem__, StreamingDataset.get_item)


@dataclass(kw_only=True, eq=False)
class Stream:
    """A dataset of a mix. What is ``None`` is as the ``StreamingDataset`` says: it is in the copies of the
    streams that the dataset has in ``streams``, with all three of ``proportion``, ``repeat`` and ``choose``.

    Args:
        local: The folder in which its shards are read; one for each ``remote``.
        proportion: Its part of an epoch, relative to the other streams' proportions.
        repeat: How often an epoch has each of its samples; 0.5 chooses every second at random.
        choose: How many of its samples an epoch has.
        remote, split, download_retry, download_timeout, validate_hash, keep_zip: As for ``StreamingDataset``.

    Raises:
        ValueError: Several of ``proportion``, ``repeat`` and ``choose`` are given, or one is negative.

    Source:
        ``streaming.Stream`` (mosaicml-streaming 0.13).

    Example:
        >>> Stream(remote="s3://bucket/x", proportion=0.2).proportion
        0.2
    """

    remote: str | None = None
    local: str | None = None
    split: str | None = None
    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None
    download_retry: int | None = None
    download_timeout: float | None = None
    validate_hash: str | None = None
    keep_zip: bool | None = None

    def __post_init__(self) -> None:
        weights = [each for each in (self.proportion, self.repeat, self.choose) if each is not None]
        if len(weights) > 1 or min(weights, default=0) < 0:
            raise ValueError(
                "a Stream takes one of proportion, repeat and choose, which must not be negative"
            )


def weigh(streams: Sequence[Stream], counts: Sequence[int], epoch_size: int | None, seed: int) -> list[int]:
    """Counts the samples of each stream in an epoch, as mosaicml-streaming does. The streams get all weights.

    ``counts`` are how many samples each has. ``epoch_size`` is how many an epoch is to have, if streams have
    proportions. The seed determines of which streams there is one sample more, if these do not come out even.
    Raises ``ValueError`` if some streams have proportions and others do not, or if ``epoch_size`` is given
    with ``repeat`` or ``choose``.
    """
    proportions = [stream.proportion for stream in streams]
    is_weighted = any(stream.repeat is not None or stream.choose is not None for stream in streams)
    if None in proportions and any(each is not None for each in proportions):
        raise ValueError("either all streams have a proportion, or none has")
    if is_weighted and epoch_size is not None:
        raise ValueError("epoch_size is for streams with proportions: repeat and choose set the size, too")
    own = [_own_size(stream, count) for stream, count in zip(streams, counts, strict=True)]
    parts = np.array(own if None in proportions else proportions, np.float64)
    whole, sizes = float(parts.sum()) or 1.0, np.array(own)
    if epoch_size is not None or None not in proportions:
        total = sum(counts) if epoch_size is None else epoch_size
        if total < 0 or (total and not parts.any()):
            raise ValueError(f"an epoch cannot have {total} samples of streams with the proportions {parts}")
        sizes = (total * (parts / whole)).astype(np.int64)
        sizes[np.random.default_rng(seed).choice(len(sizes), total - sizes.sum(), replace=False)] += 1
    found: list[int] = sizes.tolist()
    for stream, part, size, count in zip(streams, parts.tolist(), found, counts, strict=True):
        stream.proportion = part / whole
        stream.repeat, stream.choose = size / (count or 1), size
    return found


def samples_of_an_epoch(sizes: Sequence[int], counts: Sequence[int], seed: int, epoch: int) -> Numbers | None:
    """Numbers of the samples of an epoch, counted through all streams; ``None`` for each sample once.

    ``sizes`` and ``counts`` are how many samples of each stream an epoch has, and the stream.

    Example:
        >>> samples_of_an_epoch([4, 1], [2, 3], 0, 0)
        array([0, 1, 0, 1, 4])
    """
    if list(sizes) == list(counts):
        return None
    random = np.random.default_rng([seed, epoch])
    chosen, first = [], 0
    for size, count in zip(sizes, counts, strict=True):
        if size and not count:
            raise ValueError(f"an epoch cannot have {size} samples of a stream that has none")
        whole, rest = divmod(size, count) if count else (0, 0)
        part = np.sort(random.choice(count, rest, replace=False)) if rest else np.arange(0)
        chosen += [*[first + np.arange(count)] * whole, first + part]
        first += count
    return np.concatenate(chosen).astype(np.int64)


def _own_size(stream: Stream, count: int) -> int:
    if stream.choose is not None:
        return stream.choose
    return count if stream.repeat is None else int(stream.repeat * count)


class JoinedShards:
    """The shards of several datasets, one after the other."""

    def __init__(self, parts: Sequence[MDSShards]) -> None:
        self._parts = parts
        self._starts = [0, *accumulate(len(part.urls) for part in parts)]
        self.urls: Sequence[str] = [url for part in parts for url in part.urls]
        self.lengths: Sequence[int] = [length for part in parts for length in part.lengths]

    def read(self, shard: int, index: int) -> dict[str, Any]:
        """The fields of a sample."""
        part = bisect_right(self._starts, shard) - 1
        return self._parts[part].read(shard - self._starts[part], index)

    def close(self) -> None:
        """Closes the files that are open."""
        for part in self._parts:
            part.close()


class _Spanner:
    def __init__(self, source: IndexedSamples) -> None:
        self._source = source

    def __getitem__(self, sample_id: int) -> tuple[int, int]:
        return self._source.place(sample_id)


class LocalDataset:
    """A local MDS dataset of version 2, without an order: ``ds[i]``, and ``len`` of all samples.

    The arguments are those of ``StreamingDataset``.

    Source:
        ``streaming.LocalDataset`` (mosaicml-streaming 0.13), which decodes pickles in any case.
    """

    def __init__(self, local: str, split: str | None = None, allow_unsafe_types: bool = False) -> None:
        self.local = local
        self.split = split or ""
        self.shards = MDSShards(local, split=split, allow_pickle=allow_unsafe_types)
        self._samples = IndexedSamples(self.shards)
        self.num_samples = self.size = len(self._samples)
        self.spanner = _Spanner(self._samples)

    def __len__(self) -> int:
        return self.size

    def get_item(self, sample_id: int) -> Any:
        """Sample ``sample_id``."""
        return self.shards.read(*self._samples.place(sample_id))

    def __getitem__(self, at: Any) -> Any:
        """A sample, or, for a slice, a list or an array of numbers, a list of samples."""
        return _items(self, at)


def _items(dataset: StreamingDataset | LocalDataset, at: Any) -> Any:
    if isinstance(at, slice):
        return [dataset[number] for number in range(*at.indices(dataset.size))]
    if isinstance(at, (list, np.ndarray)):
        return [dataset[each] for each in at]
    if not isinstance(at, (int, np.integer)):
        raise TypeError(f"a dataset's index is a number, a slice or a list of numbers, got {at!r}")
    if not -dataset.size <= at < dataset.size:
        raise IndexError(f"there is no sample {at} among {dataset.size} samples")
    return dataset.get_item(int(at) % dataset.size)
