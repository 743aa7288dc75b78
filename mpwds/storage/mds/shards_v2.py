"""The samples of MDS shards of version 2, by number."""

from __future__ import annotations

import os
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from mpwds.errors import DecodeError, ShardError
from mpwds.storage.mds import index_v1
from mpwds.storage.mds.encodings import ENCODINGS, Encoding, encoding
from mpwds.storage.mds.index_v2 import INDEX_NAME, Columns, parse_index
from mpwds.storage.mds.local_shards import LocalFile, LocalShards
from mpwds.storage.mds.location import DatasetLocation

_AT_ONCE_BYTES = 32 * 1024  # a larger sample is read field by field, so that its data is copied once
_PAGE = 1024  # samples whose offsets are read at a time


class MDSShards:
    """The samples of an MDS dataset of version 2, by shard and number.

    Shards are read in the folder ``local``. With ``remote``, each shard is fetched when it is first read, by
    one process of the machine while others wait, uncompressed, and compared with the index's hashes. Objects
    can be pickled, and used in forks and threads.

    Args:
        decode: Whether fields are values; without it they are bytes as they are stored.
        in_place: Whether compressed shards of a local dataset are uncompressed beside themselves, rather than
            to a temporary folder.
        datasets: As for ``LocalShards``.
        local, remote, split, allow_pickle, validate_hash, cache_limit, retries, timeout_s: As for
            ``mpwds.MDSDataset``.

    Attributes:
        urls: Paths of the shards' files, uncompressed.
        lengths: The number of samples in each.
        folder: The folder in which shards are read.
        columns: The first shard's columns: names, and their encodings.
        shard_columns: Those of each shard, as pairs.
        files: The files of each shard.

    Raises:
        FileNotFoundError: There is no index.
        ShardError: The index is damaged.
        ValueError: An argument is invalid, or a column holds pickles.

    Source:
        ``streaming.base.format.mds``.

    Example:
        >>> import tempfile
        >>> from mpwds import MDSWriter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with MDSWriter(columns={"cls": "int"}, out=folder) as sink:
        ...         sink.write({"cls": 7})
        ...     MDSShards(folder).read(0, 0)
        {'cls': 7}
    """

    def __init__(
        self,
        local: str | os.PathLike[str] | None = None,
        remote: str | os.PathLike[str] | None = None,
        split: str | None = None,
        *,
        decode: bool = True,
        in_place: bool = True,
        allow_pickle: bool = False,
        validate_hash: str | None = None,
        cache_limit: int | None = None,
        retries: int = 2,
        timeout_s: float = 60.0,
        datasets: int = 1,
    ) -> None:
        location, data = _load(DatasetLocation.of(local, remote, split, retries, timeout_s))
        path = os.path.join(location.local, INDEX_NAME)
        shards = parse_index(data, path)
        self.files = files = [shard.files for shard in shards]
        if not in_place and any(shard.packed for shard in files):
            location = location.unpacked_elsewhere()
        self.folder = location.local
        self._files = LocalShards(location, files, validate_hash, cache_limit, datasets)
        self.urls: Sequence[str] = [os.path.join(location.local, shard.files.raw.name) for shard in shards]
        self.lengths: Sequence[int] = [shard.samples for shard in shards]
        self.columns: Mapping[str, str] = dict(shards[0].columns) if shards else {}
        self._decode = decode
        self._allow_pickle = allow_pickle
        self.shard_columns = [shard.columns for shard in shards]
        self._make_decoders(path)

    def _make_decoders(self, path: str) -> None:
        made: dict[Columns, ColumnDecoder] = {}
        for columns in self.shard_columns:
            if columns not in made:
                try:
                    encodings = {
                        name: encoding(each, self._allow_pickle or not self._decode) for name, each in columns
                    }
                except ValueError as error:
                    raise ValueError(f"{path}: a column cannot be decoded: {error}") from error
                made[columns] = ColumnDecoder(encodings, self._decode)
        self._decoders = [made[columns] for columns in self.shard_columns]

    def read(self, shard: int, index: int) -> dict[str, Any]:
        """The fields of a sample, by name.

        Raises:
            ShardError: The shard is damaged. The message names file and offset.
            DecodeError: A field cannot be decoded. The message names file, offset and field.
            StreamError: The shard cannot be fetched.
            IndexError: There is no such sample.
        """
        count = self.lengths[shard]
        if not 0 <= index < count:
            raise IndexError(f"{self.urls[shard]} has {count} samples, there is no sample {index}")
        file = self._files.open(shard)
        page, place = divmod(index, _PAGE)
        offsets = file.tables.get(page) or _load_offsets(file, count, page)
        start, end = offsets[place], offsets[place + 1]
        if not 8 + 4 * count <= start <= end <= file.end:
            raise ShardError(
                f"{file.url} is damaged at offset {4 + 4 * index}: sample {index} cannot lie at {start} to "
                f"{end}"
            )
        return self._decoders[shard].decode(file, start, end, index)

    def close(self) -> None:
        """Closes the files that are open; the next ``read`` opens them again."""
        self._files.close()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_decoders"]  # functions
        names = {each for columns in set(self.shard_columns) for _, each in columns} & ENCODINGS.keys()
        state["_own"] = {name: ENCODINGS[name] for name in names if isinstance(ENCODINGS[name], type)}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, made in state.pop("_own").items():  # a worker may not have them yet
            ENCODINGS[name] = made
        self.__dict__.update(state)
        self._make_decoders("")


def _load(location: DatasetLocation) -> tuple[DatasetLocation, bytes]:
    try:
        location, _, data = location.opened(INDEX_NAME)
        return location, data
    except FileNotFoundError as error:
        names = (index_v1.INDEX_NAME, index_v1.INDEX_NAME + ".gz")
        if any(os.path.exists(os.path.join(location.local, name)) for name in names):
            raise FileNotFoundError(
                f"{location.local} holds an MDS dataset of version 1: StreamingDataset reads it"
            ) from error
        raise


def _load_offsets(file: LocalFile, count: int, page: int) -> array[int]:
    """Reads where the samples of a page begin, and where its last one ends."""
    if not file.tables:
        head = file.read(4, 0)
        found = int.from_bytes(head, "little")
        if found != count:
            raise ShardError(
                f"{file.url} is damaged at offset 0: it says it has {found} samples, and the index {count}"
            )
    first = page * _PAGE
    offsets = array("I", file.read(4 * (min(_PAGE, count - first) + 1), 4 + 4 * first))
    if sys.byteorder == "big":
        offsets.byteswap()
    file.tables[page] = offsets
    return offsets


class ColumnDecoder:
    """Makes the fields of samples' bytes: sizes of the fields that vary, then all fields."""

    def __init__(self, columns: Mapping[str, Encoding], decode: bool = True) -> None:
        self._columns = [
            (name, each.size, each.decode if decode and each.name != "bytes" else None)
            for name, each in columns.items()
        ]
        varying = [each for each in columns.values() if each.size is None]
        self._sizes = struct.Struct(f"<{len(varying)}I")
        self._fixed = self._sizes.size + sum(each.size or 0 for each in columns.values())

    def decode(self, file: LocalFile, start: int, end: int, index: int) -> dict[str, Any]:
        """The fields of sample ``index``, which lies from ``start`` to ``end`` in the file."""
        is_large = end - start > _AT_ONCE_BYTES
        data = file.read(self._sizes.size if is_large else end - start, start)
        sizes = self._sizes.unpack_from(data) if len(data) >= self._sizes.size else ()
        needed = self._fixed + sum(sizes)
        if needed != end - start:
            raise ShardError(
                f"{file.url} is damaged at offset {start}: the fields of sample {index} need {needed} bytes, "
                f"and it has {end - start}"
            )
        varying = iter(sizes)
        stop = self._sizes.size
        sample: dict[str, Any] = {}
        name = ""
        try:
            for name, size, decode in self._columns:
                begin = stop
                stop += next(varying) if size is None else size
                field = file.read(stop - begin, start + begin) if is_large else data[begin:stop]
                sample[name] = field if decode is None else decode(field)
        except ImportError:
            raise
        except Exception as error:  # decoders raise all kinds for damaged data
            raise DecodeError(
                f"the field {name!r} of sample {index} of {file.url}, at offset {start + begin}, cannot be "
                f"decoded: {type(error).__name__}: {error}",
                key=str(index),
                url=file.url,
                field=name,
            ) from error
        return sample
