"""MDS datasets of version 2, as mosaicml-streaming writes them."""

from __future__ import annotations

import os

from mpwds.pipeline.error_context import arguments, options
from mpwds.pipeline.indexed.dataset import IndexedDataset
from mpwds.pipeline.indexed.orders import Shuffling
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
