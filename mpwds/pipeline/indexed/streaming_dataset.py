"""MDS datasets of version 1, as composer's StreamingDatasetWriter wrote them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.error_context import arguments
from mpwds.pipeline.filter import OneToOneStage
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.indexed.divided import DividedDataset, DividedSamples
from mpwds.pipeline.indexed.orders import Shuffling
from mpwds.storage.mds.shards_v1 import MDS1Shards
from mpwds.suggestions import suggest_arguments

_SHARDS_OF_A_CHUNK = 4


class StreamingDataset(DividedDataset):
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
        super().__init__(DividedSamples(shards, order, max(chunk, 1), batch_size=batch_size or 0))
        self.append(_Decoded(dict(decoders)))
        self._made = 2
        self._call = f"StreamingDataset({arguments(remote, local, shuffle)})"


@dataclass(frozen=True)
class _Decoded(OneToOneStage, called="decoders"):
    decoders: dict[str, Callable[[bytes], Any]]
    handler: Handler = reraise_exception

    def apply(self, sample: Mapping[str, bytes]) -> dict[str, Any]:
        return {name: decode(sample[name]) for name, decode in self.decoders.items()}
