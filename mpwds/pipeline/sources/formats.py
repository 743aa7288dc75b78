"""The formats of datasets: how each is recognised, read in order, read by number, and written.

A new format is a subclass of :class:`Format` and a line in ``FORMATS``. A user's package brings its own by an
entry point of the group ``mpwds.formats``, which names an instance. The modules of a format are imported when
a dataset of that format is opened.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

from mpwds.storage.indexed.shards import IndexedShards, most_open_files
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.streams.patterns import expand_urls
from mpwds.storage.streams.urls import (
    PACKED,
    is_description,
    is_local,
    is_named,
    last_part,
    local_path,
    url_scheme,
)
from mpwds.storage.tar.names import is_meta

if TYPE_CHECKING:
    from mpwds.storage.caches.shard_cache import ShardCache
    from mpwds.storage.indexed.tar_shards import TarShards
    from mpwds.storage.writing.sinks import Sink, WriteOptions

Columns: TypeAlias = Mapping[str, str]
"""The encodings of columns by name, in order."""

Writer: TypeAlias = "AbstractContextManager[Sink]"

KEY = "__key__"

_LOOK_BYTES = 1 << 16  # in an index, to see what it is
_COPIES_BYTES = 10 << 30


@dataclass(frozen=True)
class CacheConfig:
    """Folder for copies of shards that are not local, and the bytes that they may have in all.

    With ``remote`` samples are read by ranges; only the offsets of samples are kept.
    """

    directory: str | os.PathLike[str] | None = None
    size_bytes: float = -1
    remote: bool = False


NO_CACHE = CacheConfig()


@dataclass(frozen=True)
class StoredSamples:
    """The samples of a dataset, as they are stored.

    Attributes:
        urls: The dataset's files; of a dataset with an index, its folder or URL.
        read: Returns an iterator of the samples in order: ``__key__``, a string, and the bytes of fields.
        columns: The encodings of columns by name; empty if fields are those of tar shards.
        shards: The same samples by number, if the format has an index. ``__key__`` is bytes, or missing.
    """

    urls: Sequence[str]
    read: Callable[[], Iterator[dict[str, Any]]]
    columns: Columns = field(default_factory=dict)
    shards: IndexedShards | None = None

    @property
    def count(self) -> int | None:
        """The number of samples; ``None`` if it is unknown."""
        return None if self.shards is None else sum(self.shards.lengths)

    def read_shard(self, number: int) -> Iterator[dict[str, Any]]:
        """The samples of one of the ``shards``, as :attr:`read` gives them."""
        assert self.shards is not None
        return _numbered_samples(self.shards, [number])


class Format:
    """A format of datasets. A subclass overrides ``name`` and what it offers.

    Attributes:
        name: The format's name, as in ``mpwds convert --from NAME``.
        endings: What the names of its files end with, after a dot.
        indexes: Names that its index may have, if a dataset is a folder with an index.
    """

    name: str
    endings: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()

    def find(self, source: str) -> str | None:
        """The dataset of this format that ``source`` names, as other methods take it; else ``None``.

        By default ``source`` is a folder with an index, an index, or a file with one of the ``endings``.
        """
        if _is_folder(source):
            path = local_path(source)
            return path if any(os.path.exists(os.path.join(path, name)) for name in self.indexes) else None
        last = last_part(source)
        if last in self.indexes:
            return source.rpartition("/")[0] or "."
        last = last.partition("?")[0] if url_scheme(source) else last
        return source if last.lower().rpartition(".")[2] in self.endings else None

    def shards(self, source: str, cache: CacheConfig = NO_CACHE) -> IndexedShards:
        """Opens a dataset whose samples are read by number, and decoded as the format says."""
        raise ValueError(
            f"samples of {source} ({self.name}) cannot be read by number: mpwds convert makes tar shards"
        )

    def samples(self, source: str, copies_bytes: int | None = _COPIES_BYTES) -> StoredSamples:
        """Opens a dataset whose samples are read as they are stored.

        Args:
            source: The dataset.
            copies_bytes: Bytes that a temporary folder may hold; nothing is written beside the dataset.
        """
        raise ValueError(f"samples of {source} ({self.name}) cannot be read in order")

    def writer(self, where: str, columns: Columns, options: WriteOptions) -> Writer:
        """Opens a dataset for writing. An exception inside ``with`` leaves no half of a shard, and no index.

        Args:
            where: A folder or URL if the format has an index; else a pattern, or the name of one file.
            columns: For formats with an index.
            options: How to write.

        Raises:
            FileExistsError: There is a dataset already.
            ValueError: The format has no such option.
        """
        raise ValueError(f"{where}: {self.name} cannot be written")


class _Tar(Format):
    """Tar shards: a pattern, a folder of them, or a description, also one in a folder."""

    name = "tar"
    endings = ("tar", "tgz", "json", PACKED[1:])

    def find(self, source: str) -> str | None:
        is_tar = source == "-" or url_scheme(source) == "pipe" or ".tar" in last_part(source).lower()
        return source if is_tar else super().find(source)

    def shards(self, source: str, cache: CacheConfig = NO_CACHE) -> IndexedShards:
        if (path := _description(source)) is None:
            return tar_shards(tar_urls(source), cache)
        from mpwds.storage.indexed.descriptions import Description, open_packed

        described = open_packed(path) if is_named(path, PACKED) else Description(path)
        return tar_shards(described.urls, cache, described.lengths, described.shards)

    def samples(self, source: str, copies_bytes: int | None = _COPIES_BYTES) -> StoredSamples:
        urls = tar_urls(source)
        return StoredSamples(urls, lambda: _tar_samples(urls))

    def writer(self, where: str, columns: Columns, options: WriteOptions) -> Writer:
        from mpwds.storage.writing.sinks import tar_sink

        return tar_sink(where, options)


class _MDS(Format):
    """MDS of version 2."""

    name = "mds"
    indexes = ("index.json",)

    def find(self, source: str) -> str | None:
        if (place := super().find(source)) is not None:
            index = os.path.join(place, self.indexes[0])
            return None if _is_description(index) else place
        is_url = not is_local(source) and source != "-" and url_scheme(source) != "pipe"
        return source if is_url and "." not in last_part(source) else None

    def shards(self, source: str, cache: CacheConfig = NO_CACHE) -> IndexedShards:
        from mpwds.storage.mds.shards_v2 import MDSShards

        try:
            return MDSShards(**_options_of_mds(source, cache))
        except FileNotFoundError:  # a URL does not tell the version
            return FORMATS["mds1"].shards(source, cache)

    def samples(self, source: str, copies_bytes: int | None = _COPIES_BYTES) -> StoredSamples:
        from mpwds.storage.mds.shards_v2 import MDSShards

        shards = MDSShards(source, decode=False, in_place=False, cache_limit=copies_bytes)
        columns = {name: encoding for name, encoding in shards.columns.items() if name != KEY}
        return StoredSamples([source], lambda: _numbered_samples(shards), columns, shards)

    def writer(self, where: str, columns: Columns, options: WriteOptions) -> Writer:
        from mpwds.storage.mds.writers import MDSWriter

        return MDSWriter(
            columns=columns,
            out=where,
            compression=options.compression or None,
            hashes=options.hashes,
            size_limit=options.maxsize or 1 << 26,
            exist_ok=options.force,
            allow_pickle=True,  # the bytes of pickles are copied
        )


class _MDS1(Format):
    """MDS of version 1, composer's."""

    name = "mds1"
    indexes = ("index.mds", "index.mds.gz")

    def shards(self, source: str, cache: CacheConfig = NO_CACHE) -> IndexedShards:
        from mpwds.storage.mds.shards_v1 import MDS1Shards

        return MDS1Shards(**_options_of_mds(source, cache))

    def samples(self, source: str, copies_bytes: int | None = _COPIES_BYTES) -> StoredSamples:
        from mpwds.storage.mds.shards_v1 import MDS1Shards

        shards = MDS1Shards(source, in_place=False, cache_limit=copies_bytes)
        columns = {name: "bytes" for name in shards.fields if name != KEY}
        return StoredSamples([source], lambda: _numbered_samples(shards), columns, shards)

    def writer(self, where: str, columns: Columns, options: WriteOptions) -> Writer:
        from mpwds.storage.mds.writers import StreamingDatasetWriter

        if options.hashes:
            raise ValueError("--hashes are for MDS of version 2 alone")
        if options.force:
            raise ValueError("--force does not replace MDS datasets of version 1: remove the folder first")
        size_limit = options.maxsize or 1 << 24
        return StreamingDatasetWriter(where, list(columns), size_limit, options.compression or None)


class _RecordFiles(Format):
    """Files of records, each a dictionary of fields."""

    def __init__(self, name: str, *endings: str) -> None:
        self.name = name
        self.endings = endings

    def samples(self, source: str, copies_bytes: int | None = _COPIES_BYTES) -> StoredSamples:
        urls = expand_urls(source)
        return StoredSamples(urls, lambda: _record_samples(urls, self.name))

    def writer(self, where: str, columns: Columns, options: WriteOptions) -> Writer:
        from mpwds.storage.writing.sinks import record_sink

        return record_sink(self.name, where, options)


FORMATS: dict[str, Format] = {
    "mds": _MDS(),
    "mds1": _MDS1(),
    "msgpack": _RecordFiles("msgpack", "msgpack", "msgpacks", "msg", "mp"),
    "cbor": _RecordFiles("cbor", "cbor", "cbors"),
    "tar": _Tar(),
}
"""The formats of this package, in the order in which a source is compared with them."""


def format_named(name: str) -> Format:
    """The format of a name: one of ``FORMATS``, or of an installed package. Raises ``ValueError``."""
    found = FORMATS.get(name) or _installed().get(name)
    if found is None:
        known = ", ".join([*FORMATS, *_installed()])
        raise ValueError(f"there is no format {name!r}: expected one of {known}")
    return found


def find_format(source: str) -> tuple[Format, str] | None:
    """The format of a dataset to read, and the dataset as the format takes it; ``None`` if it is unknown."""
    candidates: list[Callable[[], Mapping[str, Format]]] = [lambda: FORMATS, _installed]
    for formats in candidates:  # installed ones take a while to find
        for each in formats().values():
            if (place := each.find(source)) is not None:
                return each, place
    return (FORMATS["tar"], source) if _is_folder(source) else None


@cache
def _installed() -> Mapping[str, Format]:
    from importlib.metadata import entry_points

    return {each.name: each.load() for each in entry_points(group="mpwds.formats")}


def tar_urls(source: str) -> list[str]:
    """The tar shards that a pattern, a description (``.json``) or a folder names, in order."""
    urls: list[str] = []
    for name in [source] if _is_folder(source) else expand_urls(source):
        if (path := _description(name)) is not None:
            from mpwds.storage.indexed.descriptions import Description

            urls += Description(path).urls
        elif _is_folder(name):
            from mpwds.pipeline.sources.directory_shards import shards_in

            urls += shards_in(local_path(name))
        else:
            urls.append(name)
    return urls


def tar_shards(
    urls: Sequence[str],
    cache: CacheConfig = NO_CACHE,
    lengths: Sequence[int] | None = None,
    described: Sequence[Mapping[str, Any]] | None = None,
    copies: ShardCache | None = None,
) -> TarShards:
    """Tar shards by number, with copies in ``copies``, or else as ``cache`` says."""
    from mpwds.storage.indexed.tar_shards import TarShards

    if copies is None and cache.directory is not None:
        from mpwds.storage.caches.shard_cache import ShardCache

        copies = ShardCache(cache.directory, cache.size_bytes)
    return TarShards(
        urls,
        lengths,
        described=described,
        cache=copies,
        remote=cache.remote,
        open_files=most_open_files(),  # to open a shard for a sample costs more than most samples do
    )


def _is_folder(source: str) -> bool:
    return is_local(source) and os.path.isdir(local_path(source))


def _description(source: str) -> str | None:
    """The description of tar shards that a source is by its name, or that is in its folder."""
    if _is_folder(source):
        path = os.path.join(local_path(source), "index.json")
        return path if os.path.exists(path) and _is_description(path) else None
    return source if is_description(source) else None


def _is_description(index: str) -> bool:
    with open_at(index) as stream:
        start = stream.read(_LOOK_BYTES)
    return b'"shardlist"' in start


def _options_of_mds(source: str, cache: CacheConfig) -> dict[str, Any]:
    """The arguments of ``MDSShards`` for a dataset and its copies, which have a folder of their own."""
    if cache.remote:
        raise ValueError(
            f"IndexedDataset: {source} is an MDS dataset. Its shards are fetched whole: leave out remote=True"
        )
    limit = None if cache.size_bytes < 0 else int(cache.size_bytes)
    if is_local(source):
        return {"local": source, "cache_limit": limit}
    if cache.directory is None:
        return {"remote": source, "cache_limit": limit}
    from mpwds.storage.caches.directory import source_digest

    folder = os.path.join(cache.directory, source_digest(source))
    return {"local": folder, "remote": source, "cache_limit": limit}


def _numbered_samples(shards: IndexedShards, chosen: Iterable[int] | None = None) -> Iterator[dict[str, Any]]:
    """The samples of all shards, or of the ``chosen`` ones. Those without a key get their number in all."""
    starts = [0, *accumulate(shards.lengths)]
    for shard in range(len(shards.lengths)) if chosen is None else chosen:
        for index, number in enumerate(range(starts[shard], starts[shard + 1])):
            stored = shards.read(shard, index)
            key = stored.pop(KEY, None)
            yield {KEY: f"{number:09d}" if key is None else bytes(key).decode(), **stored}


def _tar_samples(urls: Sequence[str]) -> Iterator[dict[str, Any]]:
    from mpwds.pipeline.sources.samples import read_samples

    for url in urls:
        for _, _, sample in read_samples(url):
            del sample["__url__"]
            yield sample


def _record_samples(urls: Sequence[str], kind: str) -> Iterator[dict[str, Any]]:
    """The records of files. Values other than bytes become bytes by the extension of their field."""
    from mpwds.storage.record_reader import read_cbor_records, read_msgpack_records
    from mpwds.storage.writing.encoders import encode_field

    read = read_msgpack_records if kind == "msgpack" else read_cbor_records
    number = 0
    for url in urls:
        with open_at(url) as stream:
            for offset, _, record in read(stream, url):
                if not isinstance(record, dict):
                    raise ValueError(
                        f"the record at offset {offset} of {url} is a {type(record).__name__}, expected a "
                        "dictionary of fields"
                    )
                sample = {_text(name): value for name, value in record.items() if value is not None}
                key = _text(sample.pop(KEY, f"{number:09d}"))
                kept = {name: value for name, value in sample.items() if not is_meta(name)}
                try:
                    encoded = {
                        name: value if isinstance(value, bytes) else encode_field(name, value)
                        for name, value in kept.items()
                    }
                except ValueError as error:
                    raise ValueError(f"the record at offset {offset} of {url}: {error}") from error
                yield {KEY: key, **encoded}
                number += 1


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
