"""The files of samples as members of tar archives: names, headers and sizes."""

from __future__ import annotations

import functools
import re
import tarfile
from collections.abc import Mapping
from typing import Any, Literal

from mpwds.storage.tar.names import is_meta

Format = Literal[0, 1, 2, "USTAR_FORMAT", "GNU_FORMAT", "PAX_FORMAT"]

_FORMATS = ("USTAR_FORMAT", "GNU_FORMAT", "PAX_FORMAT")
_READABLE_KEY = re.compile(r"(?:.*/)?[^.]+")
_SIZE_LIMIT = 8**11
_SIZE = slice(124, 136)
_CHECKSUM = slice(148, 156)


def file_header(
    name: str,
    size: int,
    mtime: int,
    mode: int,
    user: str,
    group: str,
    archive_format: Literal[0, 1, 2] | None,
) -> bytes:
    """The headers of a file; by default ustar's, and pax headers where these are needed.

    Raises ``ValueError`` if a field does not fit the format.
    """
    if archive_format is None:
        header = ustar_header(name, size, mtime, mode, user, group)
        if header is not None:
            return header
    info = tarfile.TarInfo(name)
    info.size = size
    info.mtime = mtime
    info.mode = mode
    info.uname = user
    info.gname = group
    if archive_format is not None:
        return info.tobuf(archive_format, "utf-8", "surrogateescape")
    # tarfile would split a long name that starts with a slash into an empty prefix and a relative name.
    if name.isascii() and (len(name) <= tarfile.LENGTH_NAME or not name.startswith("/")):
        try:
            return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
        except ValueError:
            pass  # a name or a size that does not fit
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def ustar_header(name: str, size: int, mtime: int, mode: int, user: str, group: str) -> bytes | None:
    """tarfile's header, in a tenth of the time; ``None`` if the plain fields of ustar cannot hold it.

    They hold names of up to 100 ASCII characters, and less than 8 GiB of data. Raises ``ValueError`` if
    another field does not fit.
    """
    if not name.isascii() or len(name) > tarfile.LENGTH_NAME or not 0 <= size < _SIZE_LIMIT:
        return None
    before_size, between, after, checksum = _template(mtime, mode, user, group)
    raw_name, raw_size = name.encode(), b"%011o\0" % size
    checksum += sum(raw_name) + sum(raw_size)
    padding = bytes(tarfile.LENGTH_NAME - len(raw_name))
    return b"".join((raw_name, padding, before_size, raw_size, between, b"%06o\0 " % checksum, after))


@functools.lru_cache(maxsize=16)
def _template(mtime: int, mode: int, user: str, group: str) -> tuple[bytes, bytes, bytes, int]:
    """The bytes between name and size, those between size and checksum, those after it, and their sum."""
    info = tarfile.TarInfo()
    info.mtime, info.mode, info.uname, info.gname = mtime, mode, user, group
    header = info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
    parts = (
        header[tarfile.LENGTH_NAME : _SIZE.start],
        header[_SIZE.stop : _CHECKSUM.start],
        header[_CHECKSUM.stop :],
    )
    spaces = 8 * ord(" ")  # the checksum's own field counts as spaces
    return *parts, sum(map(sum, parts)) + spaces


def member_bytes(size: int, name: str = "") -> int:
    """Bytes that a file of ``size`` bytes takes in an archive: its header, and its data in whole blocks.

    Example:
        >>> member_bytes(1), member_bytes(512), member_bytes(513)
        (1024, 1024, 1536)
    """
    is_plain = name.isascii() and len(name) <= tarfile.LENGTH_NAME
    header = tarfile.BLOCKSIZE if is_plain else 3 * tarfile.BLOCKSIZE
    return header + size + -size % tarfile.BLOCKSIZE


def sample_bytes(sample: Mapping[str, Any]) -> int:
    """Bytes that a sample of encoded fields takes in an archive."""
    key = sample["__key__"]
    return sum(member_bytes(len(data), f"{key}.{name}") for name, data in sample.items() if name != "__key__")


def archive_bytes(members: int) -> int:
    """Bytes of an archive whose members take ``members`` bytes: with its end, in whole records.

    Example:
        >>> archive_bytes(1024), archive_bytes(10_000)
        (10240, 20480)
    """
    end = members + 2 * tarfile.BLOCKSIZE
    return end + -end % tarfile.RECORDSIZE


def check_key(key: Any) -> str:
    """Returns a sample's key if readers, which cut file names at the first dot, will find it again."""
    if not isinstance(key, str):
        raise ValueError(f"sample key {key!r} is {type(key).__name__}, expected a str")
    if _READABLE_KEY.fullmatch(key) is not None and "\0" not in key:
        return key
    directory, slash, last = key.rpartition("/")
    base, dot, _ = last.partition(".")
    if base and dot:
        raise ValueError(
            f"sample key {key!r} would be read back as {directory + slash + base!r}: replace the dot"
        )
    raise ValueError(f"sample key {key!r} cannot be read back: expected a name, perhaps after directories")


def file_name(key: str, field: Any) -> str:
    """The name of the file that holds a field. Raises ``ValueError`` if readers would not find it again."""
    if not isinstance(field, str) or not field or "/" in field or "\n" in field or "\0" in field:
        raise ValueError(
            f"field name {field!r} of sample {key!r} cannot be part of a file name, such as 'mask.png'"
        )
    name = f"{key}.{field}"
    if is_meta(name):
        raise ValueError(f"{name!r} would be skipped by readers, for it has __ at both ends: change the key")
    return name


def field_bytes(key: str, field: str, data: Any) -> bytes:
    if isinstance(data, str) and field.startswith("_"):
        return data.encode("utf-8")
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ValueError(
            f"field {field!r} of sample {key!r} is {type(data).__name__} after encoding, expected bytes"
        )
    return bytes(data)


def format_number(archive_format: Format | None) -> Literal[0, 1, 2] | None:
    if archive_format is None or archive_format in (0, 1, 2):
        return archive_format
    if archive_format not in _FORMATS:
        raise ValueError(f"format {archive_format!r} is not one of {', '.join(_FORMATS)}")
    number: Literal[0, 1, 2] = getattr(tarfile, archive_format)
    return number
