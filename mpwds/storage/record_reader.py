"""Reads files of concatenated CBOR items or MessagePack messages."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

from mpwds.errors import ShardError
from mpwds.imports import require

RECORD_LIMIT_BYTES = 256 * 1024 * 1024
"""A record that is larger counts as damaged, by default."""

_PIECE_BYTES = 256 * 1024

Record = tuple[int, "int | None", Any]


def read_msgpack_records(
    stream: BinaryIO, url: str, offset: int = 0, limit: int = RECORD_LIMIT_BYTES
) -> Iterator[Record]:
    """Yields each message of a stream: its offset, the next one's (``None`` for the last), the message.

    ``stream`` has the bytes from ``offset`` on, where a message begins. ``limit`` is the size of the largest
    message in bytes. Raises ``ShardError`` if the file is damaged, or ends inside a message; messages before
    have been yielded.

    Source:
        https://github.com/msgpack/msgpack/blob/master/spec.md
    """
    import msgpack

    source = _Source(stream)
    size = max(limit, _PIECE_BYTES)
    unpacker = msgpack.Unpacker(source, read_size=_PIECE_BYTES, max_buffer_size=size, strict_map_key=False)
    errors = ValueError, msgpack.UnpackException
    return _records(source, unpacker.unpack, unpacker.tell, errors, msgpack.OutOfData, url, offset)


def read_cbor_records(
    stream: BinaryIO, url: str, offset: int = 0, limit: int = RECORD_LIMIT_BYTES
) -> Iterator[Record]:
    """Yields each item of a CBOR sequence, as ``read_msgpack_records`` does. Needs cbor2.

    Source:
        RFC 8742, Concise Binary Object Representation (CBOR) Sequences.
    """
    cbor2 = require("cbor2", "CBOR is decoded with cbor2: pip install 'mpwds[cbor]'")
    source = _Source(stream, limit)
    file = cast(BinaryIO, source)
    try:
        decoder = cbor2.CBORDecoder(file, read_size=1)  # no bytes beyond the item
    except TypeError:  # before 5.8 it never took more
        decoder = cbor2.CBORDecoder(file)

    def load() -> Any:
        source.begin_record()
        return decoder.decode()

    errors = ValueError, cbor2.CBORDecodeError
    return _records(source, load, lambda: source.taken, errors, cbor2.CBORDecodeEOF, url, offset)


def _records(
    source: _Source,
    load: Callable[[], Any],
    position: Callable[[], int],
    errors: tuple[type[Exception], ...],
    broken_off: type[Exception],
    url: str,
    offset: int,
) -> Iterator[Record]:
    start = 0
    while not (source.taken == start and source.at_end()):
        try:
            record = load()
        except errors as error:
            where = f"the record at offset {offset + start} of {url}"
            if isinstance(error, broken_off):
                raise ShardError(f"{where} is truncated: the file ends in it") from error
            raise ShardError(f"{where} is damaged or too large: {type(error).__name__}: {error}") from error
        end = position()
        is_last = source.taken == end and source.at_end()
        yield offset + start, None if is_last else offset + end, record
        start = end


class _Source(io.RawIOBase):
    """A stream for decoders: counts the bytes taken, limits those of a record, and can look for its end."""

    def __init__(self, stream: BinaryIO, limit: int | None = None) -> None:
        self._stream = stream
        self._limit = limit
        self._bytes = b""
        self._start = 0  # of the bytes that are left
        self._may_take = limit
        self.taken = 0

    def readable(self) -> bool:
        return True

    def begin_record(self) -> None:
        self._may_take = self._limit

    def at_end(self) -> bool:
        if self._start == len(self._bytes):
            self._bytes, self._start = self._stream.read(_PIECE_BYTES), 0
        return not self._bytes

    def read(self, size: int = -1) -> bytes:
        if self._may_take is not None:
            self._may_take -= size
            if self._may_take < 0:
                raise ValueError(f"it has more than {self._limit} bytes")
        end = self._start + size
        if end <= len(self._bytes):  # cbor2 asks for a few bytes at a time
            data = self._bytes[self._start : end]
            self._start = end
            self.taken += size
            return data
        pieces = []
        while size and not self.at_end():
            piece = self._bytes[self._start : self._start + size]
            self._start += len(piece)
            size -= len(piece)
            pieces.append(piece)
        data = b"".join(pieces)
        self.taken += len(data)
        return data
