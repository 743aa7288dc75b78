"""MDS datasets: mosaicml-streaming's (version 2), and composer's (version 1)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.error_context import arguments, options
from mpwds.pipeline.filter import OneToOneStage
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.indexed.dataset import IndexedDataset
from mpwds.pipeline.indexed.orders import Shuffling
from mpwds.pipeline.indexed.partitioned import PartitionedDataset, PartitionedSamples
from mpwds.storage.mds.shards_v1 import MDS1Shards
from mpwds.storage.mds.shards_v2 import MDSShards
from mpwds.suggestions import suggest_arguments


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
        shuffle: The order of an epoch, as for ``IndexedDataset``: ``"global"``, ``"chunked"``, ``"shards"``
            or ``False``.
        chunksize: Samples in a chunk, for ``"chunked"``.
        seed: Determines the order, with the epoch; 0 by default. A loader's seed overrides it.
        threads: Samples that an epoch reads at a time, in each process, as for ``IndexedDataset``.
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
        shown = options(split=(split, None), shuffle=(shuffle, False), seed=(seed, None))
        self._call = f"MDSDataset({arguments(**places, **shown)})"


_SHARDS_OF_A_CHUNK = 4


class StreamingDataset(PartitionedDataset):
    """An MDS dataset of version 1: composer's ``StreamingDataset``.

    Iterating it yields this worker's part of this rank's samples; ``ds[i]`` is sample ``i`` of all. A
    subclass may change ``__getitem__``. ``len`` is the number of this rank's samples. Shards are fetched to
    ``local`` when they are needed, by one process of the machine, uncompressed. ``mpwds.MultiLoader`` and
    ``mpwds.DataLoader`` resume it exactly.

    The samples of an epoch are divided among ranks, and a rank's among its workers, in consecutive parts, so
    that each is read once. (In composer's some were read twice, for ranks to have equally many: here
    ``MultiLoader(even=...)`` sees to that.) With ``shuffle``, chunks of four shards are read in random order,
    the samples of each in random order, which the epoch determines.

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
