"""Samples of shards: tar members grouped by their names, CBOR items and MessagePack messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from mpwds.errors import ShardError
from mpwds.pipeline.coercion import url_of
from mpwds.pipeline.error_context import add_note, arguments, changed
from mpwds.pipeline.filter import SingletonStage
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.sources.shard_stream import OnError, Read, ShardReader, file_of, options_of
from mpwds.pipeline.stream import Count, Description
from mpwds.storage.record_reader import RECORD_LIMIT_BYTES, read_cbor_records, read_msgpack_records
from mpwds.storage.streams.gopen import open_at
from mpwds.storage.streams.urls import is_local
from mpwds.storage.tar.entries import MAX_DECOMPRESSED_BYTES, read_members
from mpwds.storage.tar.input import OpenAt
from mpwds.storage.tar.names import is_meta, split_name
from mpwds.suggestions import shown

if TYPE_CHECKING:
    from mpwds.storage.caches.shard_cache import ShardCache


Sample = dict[str, Any]

_KNOWN_LIMIT = 1 << 14


def tarfile_to_samples(
    handler: Handler = reraise_exception,
    select_files: Callable[[str], Any] | None = None,
    rename_files: Callable[[str], str] | None = None,
) -> TarSamples:
    """Stage that reads the samples of the tar shards that its source names.

    Successive members whose names agree up to the first dot of the base name form a sample: a dict of
    ``__key__`` (that part of the name), ``__url__`` (the shard), and the members' contents as bytes under the
    rest of their names, in lower case. Members without a dot and those under names like ``__meta__`` are
    skipped. A sample's address is (its shard's address, byte offset of its first header).

    Args:
        handler: What to do about a shard that cannot be read; raises by default. To continue skips the rest
            of the shard, or only the second of two members of the same name in a sample.
        select_files: A function of a member's name: whether to read it. Others are skipped.
        rename_files: A function from a member's name to the name to use, also for ``select_files``.

    Raises:
        TypeError: An argument cannot be called; or, while iterating, an element is not ``{"url": ...}``.
        ShardError: While iterating, a shard is damaged, or a sample has a name twice.

    Source:
        ``webdataset.tariterators.tarfile_to_samples``.

    Example:
        >>> tarfile_to_samples(select_files=lambda name: name.endswith(".png"))
        TarSamples(handler=<function reraise_exception at ...>, select_files=<function <lambda> at ...>, ...)
    """
    return TarSamples(handler, select_files, rename_files)


@dataclass(frozen=True)
class TarSamples(ShardReader):
    """The stage that ``tarfile_to_samples`` makes, with the options that only datasets set.

    Args:
        cache: As for ``ShardReader``. Samples then have the shard's file as ``__local_path__``.
        local_paths: Without a cache, samples of local shards have ``__local_path__`` too.
        written_as: What the user wrote, for messages and statistics; by default the call of the function.
    """

    handler: Handler = reraise_exception
    select_files: Callable[[str], Any] | None = None
    rename_files: Callable[[str], str] | None = None
    empty_check: bool = False
    cache: ShardCache | None = None
    local_paths: bool = False
    open_at: OpenAt | None = None
    read_ahead: int | None = None
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
    written_as: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_handler("tarfile_to_samples", self.handler)
        for name, function in (("select_files", self.select_files), ("rename_files", self.rename_files)):
            if function is not None and not callable(function):
                expected = f"{name} must be a function of a name"
                raise TypeError(f"tarfile_to_samples: {expected}, got {shown(function)}")

    def __str__(self) -> str:
        given = changed(self, "handler", "select_files", "rename_files")
        return self.written_as or f"tarfile_to_samples({arguments(**given)})"

    def count_of(self, incoming: Count) -> Count:
        if incoming.rows is None or self.handler is not reraise_exception or self.select_files:
            return super().count_of(incoming)
        return Count(incoming.rows)

    def read(self, shard: Any, offset: int, on_error: OnError, open: OpenAt) -> Iterator[Read]:
        url, options = url_of(shard), options_of(shard)
        select, rename = self.select_files, self.rename_files
        if "extensions" in options:
            select, rename = bool, _only(options["extensions"], select, rename)
        local_path = file_of(url) if self.local_paths else None
        if self.cache is not None:
            local_path = self.cache.path(url)
        raises = self.handler is reraise_exception and "handler" not in options
        report, most = None if raises else on_error, self.max_decompressed_bytes
        samples = read_samples(url, offset, open, select, rename, report, local_path, most)
        return _with_fields(samples, options["meta"]) if "meta" in options else samples

    def place(self, url: str, offset: int) -> Description:
        try:
            if is_local(url):
                for name, _, _ in read_members(url, offset):
                    key, _ = split_name(name)
                    return Description(f'sample "{key}" of {url}', url, key, offset)
        except Exception:  # this describes another error, which must not be hidden by one of reading again
            pass
        return Description(f"the sample at offset {offset} of {url}", url, offset=offset)


class TarfileSamples(SingletonStage, TarSamples):
    """``tarfile_samples``: the stage that ``tarfile_to_samples()`` makes, used without a call."""

    name = "tarfile_samples"

    def __call__(
        self,
        src: Iterable[Any],
        handler: Handler = reraise_exception,
        select_files: Callable[[str], Any] | None = None,
        rename_files: Callable[[str], str] | None = None,
    ) -> Iterator[Sample]:
        """``tarfile_to_samples(handler, select_files, rename_files)(src)``, as webdataset writes it."""
        return TarSamples(handler, select_files, rename_files)(src)


tarfile_samples: Final = TarfileSamples()


def _with_fields(samples: Iterator[Read], fields: Mapping[str, Any]) -> Iterator[Read]:
    for offset, following, sample in samples:
        sample.update(fields)
        yield offset, following, sample


def _only(
    extensions: Mapping[str, str],
    select: Callable[[str], Any] | None,
    rename: Callable[[str], str] | None,
) -> Callable[[str], str]:
    """Renames members by their extensions. Members with other extensions get an empty name."""
    new_names = {old: new for new, old in extensions.items()}

    def renamed(name: str) -> str:
        if rename is not None:
            name = rename(name)
        if select is not None and not select(name):
            return ""
        key, extension = split_name(name)
        new = new_names.get(extension) if key else None
        return f"{key}.{new}" if new is not None else ""

    return renamed


def read_samples(
    url: str,
    offset: int = 0,
    open: OpenAt = open_at,
    select: Callable[[str], object] | None = None,
    rename: Callable[[str], str] | None = None,
    on_error: OnError | None = None,
    local_path: str | None = None,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Iterator[Read]:
    """Yields each sample's offset, that of the next one (``None`` after the last), and the sample.

    The first sample is the one whose first header is at ``offset``. If the shard is damaged inside a sample,
    the sample is not yielded: it may lack members.

    Args:
        select, rename: As ``select_files`` and ``rename_files`` of ``tarfile_to_samples``.
        on_error: Called with errors that concern one member alone: ``select`` or ``rename`` raised, or the
            sample has a member of that name. Their attribute ``member`` identifies it. If it returns, the
            member is left out; by default the errors are raised.
        local_path: Value of each sample's ``__local_path__``; no such field if ``None``.
    """
    choose, split = None, split_name
    if select is not None or rename is not None:
        choose = _chooser(url, select, rename, on_error)
        split = partial(split_name, allow_meta=True)  # names in the archive only say that
    sample: Sample = {}
    key: str | None = None
    start = 0
    with closing(read_members(url, offset, open, choose, True, max_decompressed_bytes)) as entries:
        for name, member_offset, data in entries:
            # The common case of split_name, whose call would take 0.2 us of a member's 1 us.
            found, _, rest = name.partition(".")
            suffix = _extensions[rest] if found[-1:] > "/" and name[0] != "_" else None
            if suffix is None:
                found, suffix = split(name)
                if not found:
                    continue
            if found != key:
                if sample:
                    yield start, member_offset, sample
                start, key = member_offset, found
                sample = {"__key__": key, "__url__": url}
                if local_path is not None:
                    sample["__local_path__"] = local_path
            if suffix in sample:
                error = ShardError(
                    f"{name[:200]} at offset {member_offset} of {url}: sample {shown(key)} has a member "
                    f"{shown(suffix)} already; each extension of a sample must be unique in the shard"
                )
                _report(error, name, on_error)
            else:
                sample[suffix] = data
    if sample:
        yield start, None, sample


class _Extensions(dict[str, "str | None"]):
    """Maps what follows a name's first dot to the extension; to ``None`` if that dot does not end the key."""

    def __missing__(self, rest: str) -> str | None:
        if not rest or "/" in rest:
            return None
        if len(self) >= _KNOWN_LIMIT:
            self.clear()
        extension = self[rest] = rest.lower()
        return extension


_extensions = _Extensions()


def _chooser(
    url: str,
    select: Callable[[str], object] | None,
    rename: Callable[[str], str] | None,
    on_error: OnError | None,
) -> Callable[[str], str | None]:
    def choose(name: str) -> str | None:
        if is_meta(name):
            return None
        renamed = name
        try:
            if rename is not None:
                renamed = rename(name)
            return renamed if select is None or select(renamed) else None
        except Exception as error:
            add_note(error, f"on the name of member {name} of {url}")
            _report(error, name, on_error)
            return None

    return choose


def _report(error: Exception, member: str, on_error: OnError | None) -> None:
    error.member = member  # type: ignore[attr-defined]  # error handlers read it
    if on_error is None:
        raise error
    on_error(error)


def cbors_to_samples(
    handler: Handler = reraise_exception, max_record_bytes: int = RECORD_LIMIT_BYTES
) -> RecordSamples:
    """Stage that yields the items of the CBOR files that its source names, unchanged.

    Args:
        handler: What to do about a file that cannot be read. To continue skips the rest of the file.
        max_record_bytes: Size above which an item counts as damage.

    Raises:
        ShardError: While iterating, a file is damaged or ends inside an item.
        ImportError: While iterating, cbor2 is missing: the extra ``mpwds[cbor]`` brings it.

    Source:
        ``webdataset.cborsiterators.cbors_to_samples`` (0.2), which stops after the first file; RFC 8742,
        CBOR sequences.

    Example:
        >>> import cbor2, tempfile
        >>> with tempfile.NamedTemporaryFile(suffix=".cbors") as file:
        ...     for key in "ab":
        ...         cbor2.dump({"__key__": key, "cls": 7}, file)
        ...     file.flush()
        ...     list(cbors_to_samples()([{"url": file.name}]))
        [{'__key__': 'a', 'cls': 7}, {'__key__': 'b', 'cls': 7}]
    """
    return RecordSamples("cbor", handler, max_record_bytes)


cbors2_to_samples = cbors_to_samples


def msgpacks_to_samples(
    handler: Handler = reraise_exception, max_record_bytes: int = RECORD_LIMIT_BYTES
) -> RecordSamples:
    """Stage that yields the messages of the MessagePack files that its source names, unchanged.

    The arguments and errors are those of ``cbors_to_samples``.
    """
    return RecordSamples("msgpack", handler, max_record_bytes)


@dataclass(frozen=True)
class RecordSamples(ShardReader):
    """The stage that ``cbors_to_samples`` and ``msgpacks_to_samples`` make; holds one record at a time."""

    format: Literal["cbor", "msgpack"]
    handler: Handler = reraise_exception
    max_record_bytes: int = RECORD_LIMIT_BYTES

    def __post_init__(self) -> None:
        check_handler(f"{self.format}s_to_samples", self.handler)

    def __str__(self) -> str:
        return f"{self.format}s_to_samples({arguments(**changed(self, 'handler', 'max_record_bytes'))})"

    def read(self, shard: Any, offset: int, on_error: OnError, open: OpenAt) -> Iterator[Read]:
        reader = read_cbor_records if self.format == "cbor" else read_msgpack_records
        url = url_of(shard)
        with open(url, offset) as stream:
            yield from reader(stream, url, offset, self.max_record_bytes)

    def place(self, url: str, offset: int) -> Description:
        return Description(f"the record at offset {offset} of {url}", url, offset=offset)
