"""Decompress a field of a sample, up to a limit: a megabyte of gzip or zip can hold a gigabyte and more."""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import Any

from mpwds.errors import DecodeError

MAX_DECOMPRESSED_BYTES = 512 << 20
"""The most that a field may decompress to, by default: no ordinary field, and much less than a worker has."""


def gunzip(data: Any, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """The content of gzip data, of one member or several.

    Args:
        data: Bytes or a memoryview.
        max_bytes: The most that it may decompress to. No more memory is taken.

    Raises:
        DecodeError: It decompresses to more.
        EOFError: It is truncated.
        zlib.error: It is damaged, or not gzip.

    Example:
        >>> import gzip
        >>> gunzip(gzip.compress(b"abc"))
        b'abc'
    """
    pieces = []
    size = 0
    while data:
        member = zlib.decompressobj(wbits=31)
        pieces.append(member.decompress(data, max_bytes - size + 1))
        size += len(pieces[-1])
        if size > max_bytes:
            raise _too_large(max_bytes)
        if not member.eof:
            raise EOFError("the gzip data is truncated")
        data = member.unused_data.lstrip(b"\0")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def unzip(data: Any, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> dict[str, bytes]:
    """The files of a zip archive by name, stored or deflated.

    Args:
        data: Bytes or a memoryview.
        max_bytes: The most that they may decompress to together. No more memory is taken.

    Raises:
        DecodeError: They decompress to more, or are compressed in another way.
        zipfile.BadZipFile: The archive is damaged, or something else.

    Example:
        >>> with zipfile.ZipFile(stream := io.BytesIO(), "w") as archive:
        ...     archive.writestr("a.txt", "abc")
        >>> unzip(stream.getvalue())
        {'a.txt': b'abc'}
    """
    files = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > max_bytes:
            raise _too_large(max_bytes)
        for member in members:
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DecodeError(f"{member.filename} in the zip archive is neither stored nor deflated")
            with archive.open(member) as file:
                files[member.filename] = file.read(member.file_size)  # `read()` trusts the compressed data
                file.read(1)  # at its end the checksum is compared
    return files


def _too_large(max_bytes: int) -> DecodeError:
    return DecodeError(
        f"it decompresses to more than {max_bytes} bytes, the limit; if you trust whoever wrote the shard, "
        "raise it: decode(max_decompressed_bytes=...)"
    )
