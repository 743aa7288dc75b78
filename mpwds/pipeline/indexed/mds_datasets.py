"""MDS datasets: mosaicml-streaming's (version 2), composer's (version 1), and the base of those to extend."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.error_context import arguments, given_options
from mpwds.pipeline.filter import OneToOneStage
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.indexed.dataset import IndexedDataset
from mpwds.pipeline.indexed.source import IndexedSamples, Numbers, Order, Shuffling
from mpwds.pipeline.stream import Stream
from mpwds.sharedmem.segment import open_nameless
from mpwds.storage.indexed.shards import IndexedShards
from mpwds.storage.mds.shards_v1 import MDS1Shards
from mpwds.storage.mds.shards_v2 import MDSShards
from mpwds.suggestions import suggest_arguments

_BEGUN = struct.Struct("<QQQQQ")
_NAME = "mpwds epochs"
_SHARDS_OF_A_CHUNK = 4


class MDSDataset(IndexedDataset):
    """An MDS dataset of version 2: ``ds[i]``, epochs in any order, and the methods of ``IndexedDataset``.

    A sample is a dict of the columns' values. Shards that are elsewhere are fetched to ``local`` when they
    are needed, by one process of the machine, uncompressed, and compared with the index's hashes.

    Args:
        local: The dataset's folder, or the one to which shards are fetched. The URL of another machine counts
            as ``remote``. Without ``local``, shards are fetched to a folder in the temporary directory. The
            machine's processes share it, and the last one removes it.
        remote: The dataset's URL or folder, if it is not in ``local``: all that ``gopen`` opens.
        split: A folder below both, such as ``"train"``.
        shuffle, chunksize, seed, threads: As for ``IndexedDataset``.
        allow_pickle: Whether columns of pickles may be decoded, which runs code that they hold.
        validate_hash: Compare this hash alone; of shards that are in ``local`` already, too.
        cache_limit: Bytes that fetched shards may have in all; the least recently used are removed.
        retries: Further attempts to fetch a file, without progress in between.
        timeout_s: Seconds that fetching a file may take.

    Raises:
        FileNotFoundError: There is no index.
        FileExistsError: ``local`` holds another dataset than ``remote``, or an earlier version of it.
        ShardError: The index or, while reading, a shard is damaged. The message names file and offset.
        DecodeError: While reading: a field cannot be decoded.
        ValueError: An argument is invalid, or a column holds pickles.

    Source:
        ``streaming.StreamingDataset`` (mosaicml-streaming 0.13); ``mpwds.streaming`` has its arguments.

    Example:
        >>> import tempfile, mpwds
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with mpwds.MDSWriter(columns={"cls": "int"}, out=folder) as sink:
        ...         for number in range(5):
        ...             sink.write({"cls": number})
        ...     ds = MDSDataset(folder, shuffle="global")
        ...     len(ds), ds[-1], [sample["cls"] for sample in ds]
        (5, {'cls': 4}, [4, 1, 2, 0, 3])
    """

    @suggest_arguments
    def __init__(
        self,
        local: str | os.PathLike[str] | None = None,
        remote: str | os.PathLike[str] | None = None,
        split: str | None = None,
        *,
        shuffle: Shuffling = False,
        chunksize: int = 2000,
        seed: int | None = None,
        threads: int = 1,
        allow_pickle: bool = False,
        validate_hash: str | None = None,
        cache_limit: int | None = None,
        retries: int = 2,
        timeout_s: float = 60.0,
    ) -> None:
        shards = MDSShards(
            local,
            remote,
            split,
            allow_pickle=allow_pickle,
            validate_hash=validate_hash,
            cache_limit=cache_limit,
            retries=retries,
            timeout_s=timeout_s,
        )
        super().__init__(shards, shuffle, chunksize=chunksize, seed=seed, threads=threads)
        places = {name: os.fspath(place) for name, place in (("local", local), ("remote", remote)) if place}
        shown = given_options(MDSDataset.__init__, {"split": split, "shuffle": shuffle, "seed": seed})
        self._call = f"MDSDataset({arguments(**places, **shown)})"


@dataclass(frozen=True, eq=False)
class PartitionedSamples(IndexedSamples):
    """Indexed samples of which each rank, and each of its workers, reads consecutive ones of an epoch.

    With a ``batch_size``, workers get whole batches, but for the one whose turn it is to make a rank's last
    batch; 0 divides the samples evenly. ``replication`` consecutive ranks read the same samples. Workers take
    batches ``in_turn``, as a DataLoader delivers them: the order of a rank then does not depend on the number
    of its workers. ``drawn`` returns ``chosen`` for an epoch, if each has other samples. ``resumed`` is an
    epoch, and how many of each rank's samples it leaves out, as they were delivered before.
    """

    batch_size: int = 0
    replication: int = 1
    in_turn: bool = False
    drawn: Callable[[int], Numbers | None] | None = None
    resumed: tuple[int, int] = (0, 0)

    def places(self, context: Context) -> range:
        """The places of an epoch whose samples a worker reads; with ``in_turn``, of the worker's own."""
        rank, workers = self._of_rank(context), context.workers
        if not self.batch_size:
            return _share(rank, context.worker, workers)
        batches = range(-(-len(rank) // self.batch_size))
        missing = len(batches) * self.batch_size - len(rank)
        last = (len(batches) - 1) % workers
        if self.in_turn:
            own = len(batches[context.worker :: workers]) * self.batch_size
            return range(own - missing * (context.worker == last))
        share = _share(batches, context.worker, workers)
        start = share.start * self.batch_size - missing * (context.worker > last)
        stop = share.stop * self.batch_size - missing * (context.worker >= last)
        return rank[start:stop]

    def order(self, context: Context) -> Order:
        order = super().order(context)
        if not (self.batch_size and self.in_turn):
            return order
        start = self._of_rank(context).start

        def of_own(places: Numbers) -> Numbers:
            batches, inside = np.divmod(places, self.batch_size)
            return order(start + (batches * context.workers + context.worker) * self.batch_size + inside)

        return of_own

    def read_in(self, context: Context, places: range) -> Iterator[tuple[int, int, int]]:
        if self.drawn is None:
            return super().read_in(context, places)
        return replace(self, chosen=self.drawn(context.epoch), drawn=None).read_in(context, places)

    def ranks(self, context: Context) -> int:
        """The number of ranks that have samples of their own."""
        ranks, more = divmod(context.world_size, self.replication)
        if more:
            raise ValueError(
                f"replication={self.replication} does not divide the number of ranks, {context.world_size}"
            )
        return ranks

    def _of_rank(self, context: Context) -> range:
        epoch, delivered = self.resumed
        share = _share(range(len(self)), context.rank // self.replication, self.ranks(context))
        return share[delivered:] if context.epoch == epoch else share


def _share(of: range, number: int, parts: int) -> range:
    """Part ``number`` of a range; the first ones may have one element more."""
    size, more = divmod(len(of), parts)
    start = number * size + min(number, more)
    return of[start : start + size + (number < more)]


class PartitionedDataset(IndexedDataset):
    """Base of datasets whose subclasses may change ``ds[i]``: epochs then consist of those samples.

    torch's DataLoader iterates them; its epochs are numbered from 0. ``len`` is the number of this rank's
    samples. ``chosen`` are the numbers of the samples of an epoch; all by default.
    """

    def __init__(
        self, source: PartitionedSamples, chosen: Numbers | None = None, seed: int | None = None
    ) -> None:
        DataPipeline.__init__(self, source, seed=seed)
        self._chosen = chosen
        self._epoch_counter = SharedEpochCounter()
        self._first_epoch = 0
        self._alone = replace(ALONE, world_size=source.replication)

    def __str__(self) -> str:
        return self._call

    @property
    def source(self) -> PartitionedSamples:
        source: PartitionedSamples = self.pipeline[0]
        return source

    @property
    def map_style(self) -> bool:
        return False

    def _own_length(self) -> int:
        context = replace(self._context(), epoch=-1, worker=0, workers=1)  # of one that is not resumed
        return int(self.parts[0].count_in(context).elements)

    @property
    def next_epoch(self) -> int:
        """The number of the epoch that the next ``iter()``, of the dataset or of a DataLoader, begins."""
        return max(self._epoch, self._first_epoch + self._epoch_counter.begun(self._context().rank))

    @property
    def parts(self) -> tuple[Any, ...]:
        source, *stages = super().parts
        changed = {"chosen": self._chosen} if source.chosen is None else {"drawn": None}
        source = replace(source, **changed)
        if not self._is_changed:
            return source, *stages
        return replace(source, shards=_Numbers(source.shards)), _Items(self.__getitem__)

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        """The stream of one epoch."""
        # A pipeline that begins here does not take over the parts alone.
        return super().stream(self._numbered(context))

    def compose(self, *stages: Any, **keywords: Any) -> Any:
        """A copy with more stages; a pipeline, if a subclass changes ``ds[i]`` or they leave none."""
        extended = None if self._is_changed else super().compose(*stages, **keywords)
        if isinstance(extended, PartitionedDataset):
            return extended
        return DataPipeline(self).compose(*stages, **keywords)  # our parts and epochs are not a pipeline's

    def _with(self, source: IndexedSamples) -> Any:
        if self._is_changed:
            raise TypeError(
                f"{type(self).__name__} changes ds[i], which takes numbers of all samples: "
                "torch.utils.data.Subset(ds, indices) has some of them"
            )
        return super()._with(source)

    def _numbered(self, context: Context) -> Context:
        if not context.run:
            return context
        return replace(context, epoch=self._first_epoch + self._epoch_counter.number_of(context), run=0)

    @property
    def may_drop_samples(self) -> bool:
        """True if an epoch may have fewer elements than samples."""
        return bool(self.stages) or self._is_changed

    @property
    def _is_changed(self) -> bool:
        return type(self).__getitem__ is not IndexedDataset.__getitem__


@dataclass(frozen=True)
class _Items(OneToOneStage, called="getitem"):
    get: Callable[[int], Any]
    handler: Handler = reraise_exception

    def apply(self, number: int) -> Any:
        return self.get(number)


class _Numbers:
    """Shards whose samples are their numbers, counted through all shards."""

    def __init__(self, shards: IndexedShards) -> None:
        self.urls: Sequence[str] = shards.urls
        self.lengths: Sequence[int] = shards.lengths
        self._starts = [0, *accumulate(shards.lengths)]

    def read(self, shard: int, index: int) -> Any:
        return self._starts[shard] + index

    def close(self) -> None:
        """Nothing is open."""


class SharedEpochCounter:
    """The epochs that workers have begun, in order. All workers of a rank find the same number for an epoch.

    torch's DataLoader tells its new workers nothing but a random number, which is the same for epochs before
    which the user sets torch's seed. So a worker of an epoch that has such a worker already begins the next.
    The list is a nameless file in memory: forks and pickles share its path, and make a new one if it is gone.
    """

    def __init__(self, path: str = "") -> None:
        self._found: dict[tuple[int, ...], int] = {}  # by this process
        self._descriptor = _open(path)
        weakref.finalize(self, os.close, self._descriptor)

    def begun(self, rank: int) -> int:
        """The number of epochs that a rank's workers have begun."""
        size = os.fstat(self._descriptor).st_size
        return _begun(os.pread(self._descriptor, size, 0), rank)

    def number_of(self, context: Context) -> int:
        """The number of the epoch that a worker begins; again the same if its process asks again."""
        epoch = [context.rank, context.run, context.epoch]
        key = *epoch, context.worker
        if key in self._found:
            return self._found[key]
        with open(f"/proc/self/fd/{self._descriptor}", "r+b", buffering=0) as file:  # with a lock of its own
            fcntl.flock(file, fcntl.LOCK_EX)
            data = file.read()
            begun = [(number, worker) for *of, worker, number in _BEGUN.iter_unpack(data) if of == epoch]
            number, _ = max(begun, default=(-1, 0))
            if not begun or (number, context.worker) in begun:
                number = _begun(data, context.rank)
            file.write(_BEGUN.pack(*key, number))
        self._found[key] = number
        return number

    def __reduce__(self) -> Any:
        return SharedEpochCounter, (f"/proc/{os.getpid()}/fd/{self._descriptor}",)


def _begun(data: bytes, rank: int) -> int:
    return 1 + max((number for of, *_, number in _BEGUN.iter_unpack(data) if of == rank), default=-1)


def _open(path: str) -> int:
    with contextlib.suppress(OSError):
        if _NAME in os.readlink(path):
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    return open_nameless(_NAME)


class StreamingDataset(PartitionedDataset):
    """An MDS dataset of version 1: composer's ``StreamingDataset``.

    Iterating it yields this worker's part of this rank's samples; ``ds[i]`` is sample ``i`` of all. A
    subclass may change ``__getitem__``. ``len`` is the number of this rank's samples. Shards are fetched to
    ``local`` when they are needed, by one process of the machine, uncompressed. ``mpwds.MultiLoader`` and
    ``mpwds.DataLoader`` resume it exactly.

    Ranks, and a rank's workers, get consecutive parts of an epoch's samples, so that each is read once. (In
    composer's, ranks have equally many and read some twice: here ``MultiLoader(even=...)`` sees to that.)
    With ``shuffle``, the epoch determines a random order of chunks of four shards, and of samples in each.

    Args:
        remote: The dataset's URL or folder: all that ``gopen`` opens. ``None`` reads what is in ``local``.
        local: The folder in which shards are read.
        shuffle: Whether epochs are in random order.
        decoders: For each field to read, a function that makes its value of its bytes.
        max_retries: Further attempts to fetch a file.
        timeout: Seconds that fetching a file may take.
        batch_size: Samples of a batch of the DataLoader. Workers then get whole batches, so that a rank has
            one smaller batch at most, its last.

    Raises:
        FileNotFoundError: There is no index.
        ShardError: The index or, while reading, a shard is damaged. The message names file and offset.
        ValueError: A decoder is for an unknown field, or a number is negative.

    Source:
        ``composer.datasets.streaming.StreamingDataset`` (composer before 0.12).

    Example:
        >>> import tempfile, mpwds
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with mpwds.StreamingDatasetWriter(folder, ["uid", "data"]) as sink:
        ...         for number in range(3):
        ...             sink.write_sample({"uid": b"%d" % number, "data": b"abc"})
        ...     ds = StreamingDataset(None, folder, shuffle=False, decoders={"uid": int})
        ...     list(ds), ds[2], len(ds)
        ([{'uid': 0}, {'uid': 1}, {'uid': 2}], {'uid': 2}, 3)
    """

    @suggest_arguments
    def __init__(
        self,
        remote: str | None,
        local: str | None,
        shuffle: bool,
        decoders: Mapping[str, Callable[[bytes], Any]],
        max_retries: int = 2,
        timeout: float = 60,
        batch_size: int | None = None,
    ) -> None:
        shards = MDS1Shards(local, remote, retries=max_retries, timeout_s=timeout)
        unknown = [name for name in decoders if name not in shards.fields]
        if unknown:
            raise ValueError(
                f"there is a decoder for the field {unknown[0]!r}; fields are {list(shards.fields)} "
                f"in {local or remote}"
            )
        chunk = _SHARDS_OF_A_CHUNK * max(shards.lengths, default=0)
        order: Shuffling = "chunked" if shuffle else False
        super().__init__(PartitionedSamples(shards, order, max(chunk, 1), batch_size=batch_size or 0))
        self.append(_Decoded(dict(decoders)))
        self._made = 2
        self._call = f"StreamingDataset({arguments(remote, local, shuffle)})"


@dataclass(frozen=True)
class _Decoded(OneToOneStage, called="decoders"):
    decoders: dict[str, Callable[[bytes], Any]]
    handler: Handler = reraise_exception

    def apply(self, sample: Mapping[str, bytes]) -> dict[str, Any]:
        return {name: decode(sample[name]) for name, decode in self.decoders.items()}
