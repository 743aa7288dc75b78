"""The bytes of an archive: a plain file is read at any offset, a stream once from its start.

:func:`open_archive` chooses, and decompresses where the first bytes say so.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import BinaryIO

from mpwds.errors import ShardError
from mpwds.storage.streams.base import PieceStream, Readable, detects_truncation, piece_reader, unbuffered
from mpwds.storage.streams.urls import without_credentials
from mpwds.storage.tar.compression import LOOK_BYTES, Codec, compression_of
from mpwds.storage.tar.headers import BLOCK, begins_archive, no_header, nothing_there

OpenAt = Callable[[str, int], BinaryIO]
"""``open(url, offset)``: a stream of a resource's bytes from ``offset`` on."""

_WINDOW_BYTES = 256 * 1024
_LEAST_WINDOW_BYTES = 4 * 1024
_PIECE_BYTES = 256 * 1024
_MOST_PIECE_BYTES = 2 * 1024 * 1024  # where pieces are had without copying them

# glibc gives freed memory back to the system and has it cleared again for the next large member, 5 us for
# 100 kB, until it has seen a block this large freed. Nothing touches the block, so this costs 20 us once.
bytes(16 * 1024 * 1024)


class Input(ABC):
    """The bytes of an archive, from an offset on.

    Attributes:
        url: The archive's name in errors.
        end: Where the archive ends; ``sys.maxsize`` until that is known.
        largest: The most data that a member may have; ``sys.maxsize`` unless the archive is compressed.
        detects_truncation: Whether an end that comes too early is an error, or the archive's length is known.
    """

    end: int
    largest = sys.maxsize

    def __init__(self, stream: Readable, url: str) -> None:
        self.url = url
        self._stream = stream

    @property
    def detects_truncation(self) -> bool:
        return detects_truncation(self._stream)

    def close(self) -> None:
        if self._stream is not getattr(sys.stdin, "buffer", None):  # which is the program's
            self._stream.close()

    def too_large(self, position: int, name: str, size: int) -> ShardError:
        """The error for a member of more data than ``largest``."""
        return ShardError(
            f"member {name[:200]} at offset {position} of the compressed shard {self.url} decompresses to "
            f"{size} bytes, more than the limit of {self.largest}; if you trust the shard's author, raise "
            "it: WebDataset(..., max_decompressed_bytes=...)"
        )

    @abstractmethod
    def window(self, position: int, need: int) -> tuple[bytes, int]:
        """Bytes, and the index of ``position`` among them. Positions rise from call to call.

        At least ``need`` bytes from there on, often more; fewer only where the archive ends.
        """

    @abstractmethod
    def data(self, position: int, size: int, padding: int) -> bytes:
        """The ``size`` bytes from ``position`` on; fewer, or less padding after them, only at the end."""


class FileInput(Input):
    """A regular file, by ``pread``: skipped bytes are not read, large data is copied once.

    docs/design.md says why the file is not mapped.
    """

    def __init__(self, stream: BinaryIO, url: str) -> None:
        super().__init__(stream, url)
        self._descriptor = stream.fileno()
        self.end = os.fstat(self._descriptor).st_size
        # Behind large data there often is a small member and then large data again: start small.
        self._window_bytes = _LEAST_WINDOW_BYTES
        self._reached = 0  # the end of the last window

    def window(self, position: int, need: int) -> tuple[bytes, int]:
        if position > self._reached:  # data that nobody wants was skipped: there may be more of it
            self._window_bytes = _LEAST_WINDOW_BYTES
        size = self._window_bytes
        if size < _WINDOW_BYTES:
            self._window_bytes = 4 * size
        if size < need:
            size = need
        if position + size > self.end:
            size = max(0, self.end - position)
            need = min(need, size)
        window = os.pread(self._descriptor, size, position)
        if len(window) < need:
            window += self._rest(position + len(window), need - len(window))
        self._reached = position + len(window)
        return window, 0

    def data(self, position: int, size: int, padding: int) -> bytes:
        self._window_bytes = _LEAST_WINDOW_BYTES
        data = os.pread(self._descriptor, size, position)
        return data if len(data) == size else data + self._rest(position + len(data), size - len(data))

    def _rest(self, position: int, size: int) -> bytes:
        """Continues after ``pread``, which returns at most 2 GiB, and less when it is interrupted."""
        pieces = []
        while size > 0:
            piece = os.pread(self._descriptor, size, position)
            if not piece:
                raise ShardError(
                    f"{self.url} became shorter while it was read: it ended at offset {self.end}, and now "
                    f"nothing is left at {position}"
                )
            pieces.append(piece)
            position += len(piece)
            size -= len(piece)
        return b"".join(pieces)


class StreamInput(Input):
    """A stream at an offset of the archive. Reads pieces as they come: waits for no more than it needs."""

    def __init__(self, stream: Readable, url: str, offset: int, largest: int = sys.maxsize) -> None:
        super().__init__(stream, url)
        self.largest = largest
        self.end = sys.maxsize
        self._read = piece_reader(stream)
        self._piece_bytes = _MOST_PIECE_BYTES if isinstance(unbuffered(stream), PieceStream) else _PIECE_BYTES
        self._chunk = b""
        self._position = offset  # of the chunk

    def window(self, position: int, need: int) -> tuple[bytes, int]:
        self._skip_to(position)
        at = position - self._position
        have = len(self._chunk) - at
        if have >= need:
            return self._chunk, at
        pieces = [self._chunk[at:]] if have > 0 else []
        while have < need and (piece := self._read(self._piece_bytes)):
            pieces.append(piece)
            have += len(piece)
        if have < need:
            self.end = min(self.end, position + have)
        self._chunk = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._position = position
        return self._chunk, 0

    def data(self, position: int, size: int, padding: int) -> bytes:
        self._skip_to(position)
        at = position - self._position
        if at + size <= len(self._chunk):
            data = self._chunk[at : at + size]
        else:
            # The rest is copied, so that the chunk's memory can be used again; later pieces are views.
            pieces: list[bytes | memoryview] = [self._chunk[at:]]
            missing = size - len(pieces[0])
            while missing > 0 and (piece := self._read(self._piece_bytes)):
                self._position += len(self._chunk)
                self._chunk = piece
                pieces.append(memoryview(piece)[:missing])
                missing -= len(pieces[-1])
            data = b"".join(pieces)
            if missing > 0:
                self.end = min(self.end, self._position + len(self._chunk))
                return data
        self.window(position + size, padding)
        return data

    def _skip_to(self, position: int) -> None:
        """Reads until the chunk, or its end, is at ``position``, or the stream ends."""
        while position > self._position + len(self._chunk):
            self._position += len(self._chunk)
            self._chunk = self._read(self._piece_bytes)
            if not self._chunk:
                self.end, self._position = min(self.end, self._position), position


class Decompressed:
    """A stream of decompressed bytes; consecutive compressed members form one stream.

    Zero bytes after the last member are padding; anything else there is an error.
    """

    def __init__(self, source: Input, codec: Codec) -> None:
        self._source = source
        self._codec = codec
        self._decompressor = codec.decompressor()
        self._position = 0  # in the compressed bytes
        self._pending = b""  # compressed bytes that were read and not yet decompressed
        self._ended = False

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, as soon as there are any; none at the end."""
        while not self._ended:
            decompressor = self._decompressor
            if decompressor.eof:
                self._begin_next(decompressor.unused_data)
                continue
            data = self._input() if decompressor.needs_input else b""
            try:
                piece: bytes = decompressor.decompress(data, size)
            except Exception as error:  # each of these modules raises a type of its own
                # A checksum comes after the data that it is of.
                raise self._damaged(f"{error}; what was read before may be wrong, too") from error
            if piece:
                return piece
        return b""

    def close(self) -> None:
        self._source.close()

    def _input(self) -> bytes:
        data, self._pending = self._pending or self._more(), b""
        if not data:
            raise self._damaged("it ends in the middle, so it is truncated")
        return data

    def _more(self) -> bytes:
        window, at = self._source.window(self._position, 1)
        data = window[at:]
        self._position += len(data)
        return data

    def _begin_next(self, unused: bytes) -> None:
        """Starts the next member. The last decompressor left ``unused``."""
        rest = (unused + self._pending).lstrip(b"\0")
        while len(rest) < LOOK_BYTES and (more := self._more()):
            rest = (rest + more).lstrip(b"\0")
        self._pending = rest
        following = compression_of(rest)
        if not rest:
            self._ended = True
        elif following is None or following.name != self._codec.name:
            raise self._damaged(f"the bytes after its end are not {self._codec.name}: cut them off")
        else:
            self._decompressor = following.decompressor()

    def _damaged(self, why: str) -> ShardError:
        url, codec = self._source.url, self._codec.name
        return ShardError(f"{url} cannot be decompressed ({codec}), {self._position} bytes read: {why}")


def open_archive(url: str, offset: int, open: OpenAt, max_decompressed_bytes: int) -> Input:
    """Opens an archive, decompressed if need be, for reading from ``offset`` on. Close the result.

    Raises ``ShardError`` if nothing can be read at ``offset``.
    """
    fault: Exception | None = None
    if offset > 0:
        try:
            return _open_inside(url, offset, open)
        except Exception as error:  # as it must be if the archive is compressed: then look at its beginning
            fault = error
    source = _input_of(open(url, 0), url, 0)
    try:
        start = source.window(0, BLOCK)[0][:BLOCK]
        compression = None if begins_archive(start) else compression_of(start)
        if compression is not None:
            source = StreamInput(Decompressed(source, compression), source.url, 0, max_decompressed_bytes)
            source.window(offset, BLOCK)
            if offset > source.end or source.end == 0:
                raise nothing_there(source, offset)
        elif fault is not None:
            raise fault
        elif not start:
            raise nothing_there(source, offset)
    except BaseException:
        source.close()
        raise
    return source


def _open_inside(url: str, offset: int, open: OpenAt) -> Input:
    source = _input_of(open(url, offset), url, offset)
    try:
        block = source.window(offset, BLOCK)[0][:BLOCK]
        if offset > source.end or not (block or isinstance(source, FileInput)):
            raise nothing_there(source, offset)
        if not begins_archive(block):
            raise no_header(block, source, offset)
    except BaseException:
        source.close()
        raise
    return source


def _input_of(stream: BinaryIO, url: str, offset: int) -> Input:
    """The fastest input for ``stream``, which stands at ``offset`` of the archive.

    Objects that decompress or decrypt have the descriptor of their file, too, so only Python's own plain
    files are read by descriptor.
    """
    raw = stream.raw if type(stream) is io.BufferedReader else stream
    is_file = type(raw) is io.FileIO and stat.S_ISREG(os.fstat(raw.fileno()).st_mode)
    if is_file and stream.tell() == offset:
        return FileInput(stream, without_credentials(url))
    return StreamInput(stream, without_credentials(url), offset)
