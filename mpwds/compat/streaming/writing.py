"""mosaicml-streaming's ``MDSWriter``, its encodings, to which programs add their own, and ``merge_index``."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from typing import Any

from mpwds.storage.mds import writers
from mpwds.storage.mds.encodings import ENCODINGS, encoding
from mpwds.storage.mds.fetched_shards import DatasetLocation
from mpwds.storage.mds.shards_v2 import INDEX_NAME, dump_index, parse_index
from mpwds.storage.mds.writers import refuse_existing
from mpwds.storage.streams.urls import is_local, local_path
from mpwds.storage.writing.destinations import open_destination, write_whole

_encodings = ENCODINGS
"""The encodings by name; a program adds its own: ``_encodings["mine"] = Mine``."""


class MDSWriter(writers.MDSWriter):
    """``mpwds.MDSWriter``, which writes columns of pickles without being asked: only to read them is unsafe.

    Source:
        ``streaming.MDSWriter`` (mosaicml-streaming 0.13).
    """

    def __init__(self, *, allow_pickle: bool = True, **options: Any) -> None:
        super().__init__(allow_pickle=allow_pickle, **options)
        described = self._common
        self.column_names: list[str] = described["column_names"]
        self.column_encodings: list[str] = described["column_encodings"]
        self.column_sizes: list[int | None] = described["column_sizes"]
        self.compression: str | None = described["compression"]
        self.hashes: list[str] = described["hashes"]
        self.size_limit: int | None = described["size_limit"]
        self.keep_local = bool(options.get("keep_local"))


class Encoding(ABC):
    """Base of a program's own encodings.

    Attributes:
        size: Bytes that every value has; ``None`` if they differ.

    Source:
        ``streaming.base.format.mds.encodings.Encoding`` (mosaicml-streaming 0.13).
    """

    size: int | None = None

    @abstractmethod
    def encode(self, obj: Any) -> bytes:
        """The bytes of a value. Values that are bytes are stored as they are."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """The value of bytes."""

    @staticmethod
    def _validate(data: Any, expected_type: Any) -> None:
        if not isinstance(data, expected_type):
            raise TypeError(f"expected {expected_type}, got {type(data).__name__}")


def mds_encode(encoding_name: str, obj: Any) -> bytes:
    """The bytes of a value."""
    return encoding(encoding_name, allow_pickle=True).encode(obj)


def mds_decode(encoding_name: str, data: bytes) -> Any:
    """The value of bytes. Raises ``ValueError`` for pickles."""
    return encoding(encoding_name).decode(data)


def get_mds_encoded_size(encoding_name: str) -> int | None:
    """Bytes that every value has; ``None`` if they differ."""
    return encoding(encoding_name, allow_pickle=True).size


def clean_stale_shared_memory() -> None:
    """Does nothing: datasets leave no shared memory."""


def get_list_arg(text: str) -> list[str]:
    """The parts of text between commas; none of empty text."""
    return text.split(",") if text else []


def merge_index(
    index_file_urls: Any, out: Any = None, keep_local: bool = True, download_timeout: float = 60
) -> None:
    """Writes an index of several MDS datasets side by side, each in a folder of its own; shards stay there.

    Args:
        index_file_urls: Their indexes, in folders of ``out``: paths, URLs, or pairs of a path and the URL to
            read if there is no such file. Or just ``out``, for those in all folders below it.
        out: The folder or URL for the new index; or both.
        keep_local: Whether to write it into the folder too, if there is a URL.
        download_timeout: Seconds that reading an index may take.

    Raises:
        FileNotFoundError: There is no index to merge.
        FileExistsError: ``out`` has an index already.
        ShardError: An index is damaged.
        ValueError: A folder is not in ``out``, or two have the same name: shards would not be found.

    Source:
        ``streaming.base.util.merge_index`` (mosaicml-streaming 0.13).
    """
    places = _parts_of(index_file_urls if out is None else out)
    if out is None:
        folders = {folder: os.path.relpath(folder, places[0]) for folder in _datasets_below(places[0])}
    else:
        folders = {}
        for each in map(_parts_of, index_file_urls):
            if not any(_lies_in(places, file) for file in each):
                raise ValueError(f"merge_index: {each[-1]} is not in a folder of {places[-1]}")
            folder = os.path.dirname(next(filter(os.path.exists, each), each[-1]))
            folders[folder] = os.path.basename(folder)
        if len({*folders.values()}) < len(folders):
            raise ValueError(f"merge_index: two of the folders have the same name: {', '.join(folders)}")
    if not folders:
        raise FileNotFoundError(f"merge_index: there is no {INDEX_NAME} in a folder below {places[0]}")
    targets = [f"{place}/{INDEX_NAME}" for place in (places if keep_local else places[-1:])]
    for target in targets:
        refuse_existing(target)
    shards = [shard for folder, name in folders.items() for shard in _shards(folder, name, download_timeout)]
    for target in targets:
        if is_local(target):
            os.makedirs(os.path.dirname(local_path(target)), exist_ok=True)
        write_whole(open_destination(target), dump_index(shards))


def _parts_of(place: Any) -> list[str]:
    return [os.fspath(each).rstrip("/") for each in (place if isinstance(place, (tuple, list)) else [place])]


def _lies_in(places: list[str], file: str) -> bool:
    """True if an index is in a folder of a place; one here may be a copy of what is at a URL."""
    comparable = [_normal(place) for place in places if is_local(place) == is_local(file)]
    return not comparable or os.path.dirname(os.path.dirname(_normal(file))) in comparable


def _normal(place: str) -> str:
    return os.path.realpath(local_path(place)) if is_local(place) else place


def _datasets_below(root: str) -> list[str]:
    found = []
    for folder, below, names in os.walk(root):
        if INDEX_NAME in names and folder != root:
            found.append(folder)
            below.clear()
    return sorted(found)


def _shards(folder: str, name: str, timeout_s: float) -> list[dict[str, Any]]:
    """Returns the entries of each shard in a folder's index, for an index beside the folder."""
    location = DatasetLocation("", folder, timeout_s=timeout_s)
    data = location.fetch(INDEX_NAME)
    parse_index(data, location.url(INDEX_NAME))
    shards: list[dict[str, Any]] = json.loads(data)["shards"]
    for file in (shard[part] for shard in shards for part in ("raw_data", "zip_data") if shard.get(part)):
        file["basename"] = f"{name}/{file['basename']}"
    return shards
