"""Samples of files that are sequences of CBOR items or MessagePack messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import arguments, changed
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.sources.shard_stream import Read, ShardStream, url_of
from mpwds.pipeline.stream import Description, Stream, one_sample
from mpwds.storage.record_reader import RECORD_LIMIT_BYTES, read_cbor_records, read_msgpack_records
from mpwds.storage.streams.gopen import open_at


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
        ``webdataset.cborsiterators.cbors_to_samples`` (0.2), which stops behind the first file; RFC 8742,
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
class RecordSamples(Filter):
    """The stage that ``cbors_to_samples`` and ``msgpacks_to_samples`` make; holds one record at a time."""

    format: Literal["cbor", "msgpack"]
    handler: Handler = reraise_exception
    max_record_bytes: int = RECORD_LIMIT_BYTES

    reads_shards = True
    samples_in = staticmethod(one_sample)

    def __post_init__(self) -> None:
        check_handler(f"{self.format}s_to_samples", self.handler)

    def __str__(self) -> str:
        return f"{self.format}s_to_samples({arguments(**changed(self, 'handler', 'max_record_bytes'))})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _RecordStream(self, source, context)


class _RecordStream(ShardStream):
    def __init__(self, stage: RecordSamples, source: Stream[Any], context: Context) -> None:
        super().__init__(stage, source, context, stage.handler)
        self._reader = read_cbor_records if stage.format == "cbor" else read_msgpack_records
        self._max_record_bytes = stage.max_record_bytes

    def _read(self, shard: Any, offset: int, on_error: Callable[[Exception], None]) -> Iterator[Read]:
        return _records(self._reader, url_of(shard), offset, self._max_record_bytes)

    def _place(self, url: str, offset: int) -> Description:
        return Description(f"the record at offset {offset} of {url}", url, offset=offset)


# Not a method: a stream that is dropped closes its file, so the generator must not refer to the stream.
def _records(read: Callable[..., Iterator[Read]], url: str, offset: int, limit: int) -> Iterator[Read]:
    with open_at(url, offset) as stream:
        yield from read(stream, url, offset, limit)
