"""Write samples to a tar archive."""

from __future__ import annotations

import bz2
import errno
import io
import lzma
import os
import re
import tarfile
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Literal

from mpwds.imports import require
from mpwds.storage.closing import ClosesOrDiscards
from mpwds.storage.streams.urls import without_credentials
from mpwds.storage.writing.destinations import OwnedStream, open_destination, write_all
from mpwds.storage.writing.encoders import EncoderSpec, make_encoder
from mpwds.storage.writing.ustar import ustar_header

Sample = Mapping[str, Any]
Format = Literal[0, 1, 2, "USTAR_FORMAT", "GNU_FORMAT", "PAX_FORMAT"]

_FORMATS = ("USTAR_FORMAT", "GNU_FORMAT", "PAX_FORMAT")

_PIECE_BYTES = 16 << 20  # so that Ctrl-C does not wait for long
_LEVEL = 6  # gzip's own default: 9 takes twice the time for 1 % less
_SUFFIXES = {"gz": "gz", "tgz": "gz", "bz2": "bz2", "tbz2": "bz2", "xz": "xz", "txz": "xz", "zst": "zst"}

_READABLE_KEY = re.compile(r"(?:.*/)?[^.]+")
_METADATA = re.compile(r"__[^/]*__(?:/|$)")


class TarWriter(ClosesOrDiscards):
    """Writes samples to a tar archive, one file for each field.

    The field ``png`` of a sample whose ``__key__`` is ``a/b`` becomes the file ``a/b.png``; fields are
    written in the order of their names. A sample that cannot be encoded leaves the archive as it was.

    A path is written under a temporary name, ``.NAME.XXXXXXXX.partial``, and gets its own when ``close`` has
    made it durable. An exception inside ``with``, and a writer that is never closed, leave no file. For other
    URLs, an exception kills the ``pipe:`` command or drops the upload. What a command has written elsewhere
    by then stays there: let it write under a temporary name and rename, ``pipe:cat > x.tmp && mv x.tmp
    x.tar``. The writer does not close a stream that you pass.

    Args:
        fileobj: Path, URL that ``gopen`` writes to (``file:``, ``pipe:``, ``"-"`` for standard output, ...)
            or writable binary stream. A named pipe or a device is written to directly.
        user: Owner's name in the archive.
        group: Owner's group in the archive.
        mode: Permissions in the archive.
        compress: ``True`` or ``"gz"``, ``"bz2"``, ``"xz"``, ``"zst"``; ``False`` for no compression. ``None``
            goes by the end of the path or URL: ``.gz .tgz .bz2 .tbz2 .xz .txz .zst``.
        encoder: ``True`` encodes each field by its extension (``encode_field``); a dictionary gives functions
            ``value -> bytes`` by extension; a function maps whole samples to samples of bytes; ``False`` or
            ``None`` expects bytes.
        keep_meta: Write fields whose names start with ``_`` too; they must hold ``str`` or bytes.
        mtime: Modification time in the archive, in seconds; a fixed one makes the bytes reproducible.
            ``None`` takes the current time.
        format: ``"USTAR_FORMAT"``, ``"GNU_FORMAT"``, ``"PAX_FORMAT"`` or tarfile's constant of that name.
            ``None`` writes ustar, and pax headers for the members that need them.
        sync: Wait until a path's file is on the disk before it gets its name. Without that, a crash of the
            machine soon afterwards may leave a damaged archive under the name.
        replace: Replace a file that has the path's name when the archive is complete; else that is a
            ``FileExistsError``.

    Attributes:
        discarded: The archive was given up, by ``discard`` or because writing it failed.

    Raises:
        ValueError: An argument is invalid, or the URL's scheme is unknown.
        OSError: The path's directory does not exist, a directory has that name, or the URL cannot be written.
        BlockingIOError: While writing: a raw stream does not block.
        ImportError: A package is missing, such as zstandard for ``"zst"``.

    Source:
        ``webdataset.writer.TarWriter``.

    Example:
        >>> import io
        >>> stream = io.BytesIO()
        >>> with TarWriter(stream, mtime=0) as sink:
        ...     sink.write({"__key__": "000000", "cls": 7, "txt": "seven"})
        6
        >>> tarfile.open(fileobj=io.BytesIO(stream.getvalue())).getnames()
        ['000000.cls', '000000.txt']
    """

    def __init__(
        self,
        fileobj: str | os.PathLike[str] | BinaryIO | OwnedStream,
        user: str = "bigdata",
        group: str = "bigdata",
        mode: int = 0o444,
        compress: bool | str | None = None,
        encoder: EncoderSpec = True,
        keep_meta: bool = False,
        mtime: float | None = None,
        format: Format | None = None,
        sync: bool = True,
        replace: bool = True,
    ) -> None:
        self.user = user
        self.group = group
        self.mode = mode
        self.keep_meta = keep_meta
        self.mtime = mtime
        self._encode = make_encoder(encoder)
        self._format = _make_format(format)
        self._last_key: str | None = None
        self._bytes_in_archive = 0
        self._closed = False
        self.discarded = False
        name = os.fspath(fileobj) if isinstance(fileobj, (str, os.PathLike)) else ""
        self.compress = compression_of(compress, name)
        self._compressor = None if self.compress is None else _COMPRESSORS[self.compress]()
        self._name = without_credentials(name) or None
        self._destination = open_destination(fileobj, sync, replace)
        self._stream = self._destination.stream

    def write(self, sample: Sample) -> int:
        """Write one sample.

        Args:
            sample: A dictionary with a string under ``__key__`` and at least one other field.

        Returns:
            The bytes of data written: the sum of the fields' sizes.

        Raises:
            ValueError: The key is missing, cannot be read back (it holds a dot, say) or equals the previous
                sample's; a field cannot be encoded; there is no field; the writer is closed. Nothing has been
                written.
        """
        if self._closed:
            raise ValueError("the archive is closed: no more samples can be written to it")
        key, files = self._files(sample)
        try:
            self.write_blocks(
                b"".join(
                    part
                    for header, data in files
                    for part in (header, data, bytes(-len(data) % tarfile.BLOCKSIZE))
                )
            )
        except BaseException:
            self.discard()  # a torn archive must not be published
            raise
        self._last_key = key
        return sum(len(data) for _, data in files)

    def dwrite(self, key: str | None = None, **fields: Any) -> int:
        """Write a sample given as keyword arguments; otherwise like ``write``.

        Args:
            key: The sample's key, unless ``__key__`` is among the fields.
            fields: The fields; an underscore in a name stands for a dot (``mask_png`` for ``mask.png``),
                except in names that start with two.

        Example:
            >>> import io
            >>> with TarWriter(io.BytesIO()) as sink:
            ...     sink.dwrite("000000", cls=7, best_cls=12)
            3
        """
        return self.write(named_sample(key, fields))

    def close(self) -> None:
        """Ends the archive and, if it was given as a path, makes it appear. Closing twice does nothing."""
        if self._closed:
            return
        try:
            self.write_blocks(bytes(archive_bytes(self._bytes_in_archive) - self._bytes_in_archive))
            if self._compressor is not None:
                write_all(self._stream, self._compressor.flush(), self._name)
        except BaseException:
            self.discard()
            raise
        self._closed = True
        try:
            self._destination.publish()
        except BaseException:
            self.discarded = True
            raise

    def discard(self) -> None:
        """Closes without an archive: removes a path's file, drops an upload, leaves a stream as it is."""
        if self._closed:
            return
        self._closed = self.discarded = True
        self._destination.discard()

    def write_blocks(self, data: bytes | memoryview) -> None:
        """Append members of another tar archive as they lie there: headers, data and padding."""
        self._bytes_in_archive += len(data)
        write_all(
            self._stream, data if self._compressor is None else self._compressor.compress(data), self._name
        )

    def write_from(self, descriptor: int, start: int, stop: int) -> int:
        """Append members that lie in a file, without taking them through this process.

        Returns:
            The offset up to which that worked; ``start`` where the system cannot do it.
        """
        if self._compressor is None and isinstance(self._stream, io.FileIO):
            while start < stop:
                wanted = min(stop - start, _PIECE_BYTES)
                try:
                    count = os.sendfile(self._stream.fileno(), descriptor, start, wanted)
                except OSError as error:
                    if error.errno in (errno.EINVAL, errno.ENOSYS):
                        break
                    error.filename = error.filename or self._name
                    raise
                if not count:
                    break
                start += count
                self._bytes_in_archive += count
        return start

    def _files(self, sample: Sample) -> tuple[str, list[tuple[bytes, bytes]]]:
        """The sample's key, and header and data of each of its files."""
        if "__key__" not in sample:
            has = f"with fields {', '.join(map(str, sample))}" if sample else "without fields"
            raise ValueError(f"sample {has} has no __key__")
        key = check_key(sample["__key__"])
        if key == self._last_key:
            raise ValueError(f"sample key {key!r} equals the previous sample's; the two would be read as one")
        for field in sample:
            if not isinstance(field, str):
                raise ValueError(f"field name {field!r} of sample {key!r} is not a str")
        try:
            encoded = self._encode(dict(sample))
        except ValueError as error:
            raise ValueError(f"sample {key!r}: {error}") from error
        fields = [
            field for field in encoded if field != "__key__" and (self.keep_meta or not field.startswith("_"))
        ]
        if not fields:
            raise ValueError(f"sample {key!r} has no fields to write")
        if len({field.lower() for field in fields}) < len(fields):
            raise ValueError(
                f"sample {key!r} has fields that differ in case alone, which readers ignore: {fields}"
            )
        now = int(time.time() if self.mtime is None else self.mtime)
        files = []
        for field in sorted(fields):
            data = _as_bytes(key, field, encoded[field])
            name = file_name(key, field)
            try:
                header = self._header(name, len(data), now)
            except ValueError as error:
                raise ValueError(f"sample {key!r}: no tar header for {name!r}: {error}") from error
            files.append((header, data))
        return key, files

    def _header(self, name: str, size: int, mtime: int) -> bytes:
        if self._format is None:
            header = ustar_header(name, size, mtime, self.mode, self.user, self.group)
            if header is not None:
                return header
        info = tarfile.TarInfo(name)
        info.size = size
        info.mtime = mtime
        info.mode = self.mode
        info.uname = self.user
        info.gname = self.group
        if self._format is not None:
            return info.tobuf(self._format, "utf-8", "surrogateescape")
        # tarfile would split a long name that starts with a slash into an empty prefix and a relative name.
        if name.isascii() and (len(name) <= tarfile.LENGTH_NAME or not name.startswith("/")):
            try:
                return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
            except ValueError:
                pass  # a name or a size that does not fit
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def named_sample(key: str | None, fields: dict[str, Any]) -> dict[str, Any]:
    """The sample for ``dwrite``'s arguments."""
    sample = {
        name if name.startswith("__") else name.replace("_", "."): value for name, value in fields.items()
    }
    return sample if key is None else {"__key__": key, **sample}


def member_bytes(size: int, name: str = "") -> int:
    """Bytes that a file of ``size`` bytes takes in an archive: its header, and its data in whole blocks.

    Example:
        >>> member_bytes(1), member_bytes(512), member_bytes(513)
        (1024, 1024, 1536)
    """
    is_plain = name.isascii() and len(name) <= tarfile.LENGTH_NAME
    header = tarfile.BLOCKSIZE if is_plain else 3 * tarfile.BLOCKSIZE
    return header + size + -size % tarfile.BLOCKSIZE


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
            f"sample key {key!r} would be read back as {directory + slash + base!r}: names end at "
            "the first dot, replace it"
        )
    raise ValueError(
        f"sample key {key!r} cannot be read back: expected a name, with directories before it or not"
    )


def file_name(key: str, field: Any) -> str:
    """The name of the file that holds a field. Raises ``ValueError`` if readers would not find it again."""
    if not isinstance(field, str) or not field or "/" in field or "\n" in field or "\0" in field:
        raise ValueError(
            f"field name {field!r} of sample {key!r} cannot be part of a file name: expected a str such as "
            "'png' or 'mask.png'"
        )
    name = f"{key}.{field}"
    if name.startswith("__") and _METADATA.match(name) is not None:
        raise ValueError(
            f"{name!r} would be skipped by readers, as a name with __ at both ends: change the key"
        )
    return name


def _as_bytes(key: str, field: str, data: Any) -> bytes:
    if isinstance(data, str) and field.startswith("_"):
        return data.encode("utf-8")
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ValueError(
            f"field {field!r} of sample {key!r} is {type(data).__name__} after encoding, expected bytes"
        )
    return bytes(data)


def _make_format(archive_format: Format | None) -> Literal[0, 1, 2] | None:
    if archive_format is None or archive_format in (0, 1, 2):
        return archive_format
    if archive_format not in _FORMATS:
        raise ValueError(f"format {archive_format!r} is not one of {', '.join(_FORMATS)}")
    number: Literal[0, 1, 2] = getattr(tarfile, archive_format)
    return number


def compression_of(compress: bool | str | None, name: str) -> str | None:
    """``"gz"``, ``"bz2"``, ``"xz"``, ``"zst"`` or ``None``, by the argument or the name's last suffix."""
    if compress is None:
        _, dot, suffix = name.rpartition(".")
        return _SUFFIXES.get(suffix.lower()) if dot else None
    if compress is False:
        return None
    if compress is True:
        return "gz"
    if compress not in _COMPRESSORS:
        raise ValueError(
            f"compress={compress!r} is not one of True, False, {', '.join(map(repr, _COMPRESSORS))}"
        )
    return compress


def _gzip() -> Any:
    return zlib.compressobj(_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)


def _zstd() -> Any:
    zstandard = require("zstandard", "zstd is written with zstandard: pip install 'mpwds[zstd]'")
    return zstandard.ZstdCompressor().compressobj()


_COMPRESSORS: dict[str, Callable[[], Any]] = {
    "gz": _gzip,
    "bz2": bz2.BZ2Compressor,
    "xz": lzma.LZMACompressor,
    "zst": _zstd,
}
