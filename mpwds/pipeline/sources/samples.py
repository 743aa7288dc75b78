"""Samples of tar shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Final

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import one_sample
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.sources.grouping import Sample, read_samples, split_name
from mpwds.pipeline.sources.shard_options import ShardOptions
from mpwds.pipeline.sources.shard_stream import Reading, ShardStream, file_of, url_of
from mpwds.pipeline.stream import Description, Stream
from mpwds.storage.streams.urls import is_local
from mpwds.storage.tar.entries import MAX_DECOMPRESSED_BYTES, read_members

if TYPE_CHECKING:
    from mpwds.storage.caches.shard_cache import ShardCache


def tarfile_to_samples(
    handler: Handler = reraise_exception,
    select_files: Callable[[str], Any] | None = None,
    rename_files: Callable[[str], str] | None = None,
) -> TarSamples:
    """Stage that reads the samples of the tar shards that its source names.

    Args:
        handler: What to do about a shard that cannot be read; raises by default.
        select_files: A function of a member's name: whether to read it. Others are skipped.
        rename_files: A function of a member's name that returns the name to go by; it is called before
            ``select_files``.

    Raises:
        TypeError: One of them cannot be called.

    Source:
        ``webdataset.tariterators.tarfile_to_samples``.

    Example:
        >>> tarfile_to_samples(select_files=lambda name: name.endswith(".png"))
        TarSamples(handler=<function reraise_exception at ...>, select_files=<function <lambda> at ...>, ...)
    """
    return TarSamples(handler, select_files, rename_files)


@dataclass(frozen=True)
class TarSamples(Filter):
    """Stage that yields the samples of the tar shards that its source names.

    Successive members whose names agree up to the first dot of the base name form a sample, a dict
    of ``__key__`` (that part of the name), ``__url__`` (the shard) and the members' contents
    as bytes under the rest of their names, in lower case. Members without a dot and those under names
    like ``__meta__`` are skipped. A sample's address is (its shard's address, byte offset of its first
    header).

    Args:
        handler: What to do about a shard that cannot be read: going on means with the next shard, and
            with a sample that has a member twice, without the second.
        select_files: A function of a member's name: whether to read it.
        rename_files: A function of a member's name that returns the name to go by; it is called first.
        empty_check: Whether it is an error if an epoch has no sample.
        cache: Keeps shards on a local disk, and fetches the next ones while one is read. Samples then have
            the shard's file as ``__local_path__``.
        local_paths: Whether samples of local shards have the shard's file as ``__local_path__`` without a
            cache, too.
        open_at: Opens a shard's URL at a byte, where there is no cache; ``open_at`` of
            ``mpwds.storage.streams.gopen`` by default.
        max_decompressed_bytes: The most data that a member of a compressed shard may have.

    Raises:
        ShardError: While iterating, a shard is damaged, has a name twice in a sample, or has a member that is
            larger than ``max_decompressed_bytes``.
        TypeError: An argument cannot be called; or, while iterating, the source gives anything but ``{"url":
            ...}``.
        ValueError: While iterating, there is no sample, and ``empty_check`` is set.
    """

    handler: Handler = reraise_exception
    select_files: Callable[[str], Any] | None = None
    rename_files: Callable[[str], str] | None = None
    empty_check: bool = False
    cache: ShardCache | None = None
    local_paths: bool = False
    open_at: Callable[[str, int], BinaryIO] | None = None
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES

    reads_shards: ClassVar[bool] = True
    samples_in = staticmethod(one_sample)

    def __post_init__(self) -> None:
        check_handler("tarfile_to_samples", self.handler)
        for name, function in (("select_files", self.select_files), ("rename_files", self.rename_files)):
            if function is not None and not callable(function):
                raise TypeError(f"tarfile_to_samples: {name} must be a function of a name, got {function!r}")

    def __str__(self) -> str:
        given = options(
            handler=(self.handler, reraise_exception),
            select_files=(self.select_files, None),
            rename_files=(self.rename_files, None),
        )
        return f"tarfile_to_samples({arguments(**given)})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Sample]:
        return _TarStream(self, source, context)

    def without_empty_check(self) -> TarSamples:
        """The same stage, for a part of a dataset."""
        return replace(self, empty_check=False)


class TarfileSamples(Filter):
    """``tarfile_samples``: the stage that ``tarfile_to_samples()`` makes, to be used without a call.

    Example:
        >>> from mpwds.pipeline.dataset import DataPipeline
        >>> from mpwds.pipeline.sources.shards import SimpleShardList
        >>> DataPipeline(SimpleShardList("x.tar"), tarfile_samples)
        DataPipeline(SimpleShardList('x.tar'))
            .tarfile_samples
    """

    reads_shards: ClassVar[bool] = True
    samples_in = staticmethod(one_sample)

    def __str__(self) -> str:
        return "tarfile_samples"

    def __repr__(self) -> str:
        return "tarfile_samples"

    def __reduce__(self) -> str:
        return "tarfile_samples"  # there is one

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Sample]:
        return TarSamples().stream(source, context)

    def __call__(
        self,
        src: Iterable[Any],
        handler: Handler = reraise_exception,
        select_files: Callable[[str], Any] | None = None,
        rename_files: Callable[[str], str] | None = None,
    ) -> Iterator[Sample]:
        """Yields the samples of the shards that ``src`` yields.

        Args:
            src: Shards, ``{"url": ...}``.
            handler: As for ``tarfile_to_samples``, and so are the others.
            select_files: Whether to read a member.
            rename_files: The name that a member is to go by.

        Source:
            ``webdataset.tariterators.tarfile_samples``.
        """
        return TarSamples(handler, select_files, rename_files)(src)


tarfile_samples: Final = TarfileSamples()


class _TarStream(ShardStream):
    def __init__(self, stage: TarSamples, source: Stream[Any], context: Context) -> None:
        super().__init__(stage, source, context, stage.handler, stage.empty_check, stage.cache)
        self._options = ShardOptions(stage.select_files, stage.rename_files)
        self._local_paths = stage.local_paths and stage.cache is None
        self._open_at = stage.open_at
        self._max_bytes = stage.max_decompressed_bytes

    def _read(
        self,
        shard: Any,
        offset: int,
        open: Callable[[str, int], BinaryIO] | None,
        on_error: Callable[[Exception], None],
    ) -> Reading:
        chosen = self._options.of(shard)
        reading = chosen.reading
        open = open or self._open_at
        if open is not None:
            reading["open"] = open
        if chosen.handler is not None or self._handler is not reraise_exception:
            reading["on_error"] = on_error
        url = url_of(shard)
        path = file_of(url) if self._local_paths else None
        samples = read_samples(
            url, offset, local_path=path, max_decompressed_bytes=self._max_bytes, **reading
        )
        return Reading(samples, dict(chosen.extra), chosen.handler)

    def _place(self, url: str, offset: int) -> Description:
        try:
            if is_local(url):
                for member in read_members(url, offset):
                    key, _ = split_name(member.name)
                    return Description(f'sample "{key}" of {url}', url, key, offset)
        except Exception:  # this describes another error, which must not be hidden by one of reading again
            pass
        return Description(f"the sample at offset {offset} of {url}", url, offset=offset)
