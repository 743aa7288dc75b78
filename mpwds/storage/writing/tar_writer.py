"""Writes samples to a tar archive, or to a series of them."""

from __future__ import annotations

import errno
import io
import os
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from inspect import signature
from numbers import Real
from typing import Any, BinaryIO

from mpwds.storage.streams.base import ClosesOrDiscards
from mpwds.storage.streams.urls import without_credentials
from mpwds.storage.tar.compression import COMPRESSORS, compression_for
from mpwds.storage.writing.destinations import OwnedStream, open_destination, write_all
from mpwds.storage.writing.encoders import EncoderSpec, make_encoder
from mpwds.storage.writing.tar_members import (
    Format,
    archive_bytes,
    check_key,
    field_bytes,
    file_header,
    file_name,
    format_number,
)
from mpwds.suggestions import did_you_mean, suggest_arguments

Sample = Mapping[str, Any]

_PIECE_BYTES = 16 << 20  # so that Ctrl-C does not wait for long


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

    @suggest_arguments
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
        self._format = format_number(format)
        self._last_key: str | None = None
        self._bytes_in_archive = 0
        self._closed = False
        self.discarded = False
        name = os.fspath(fileobj) if isinstance(fileobj, (str, os.PathLike)) else ""
        self.compress = compression_for(compress, name)
        self._compressor = None if self.compress is None else COMPRESSORS[self.compress]()
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
        key, blocks, size = self._encoded(sample)
        try:
            self.write_blocks(b"".join(blocks))
        except BaseException:
            self.discard()  # a torn archive must not be published
            raise
        self._last_key = key
        return size

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

    def _encoded(self, sample: Sample) -> tuple[str, list[bytes], int]:
        """The sample's key, the headers, data and padding of its files, and the bytes of data."""
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
            raise ValueError(f"fields of sample {key!r} differ in case alone, which readers ignore: {fields}")
        now = int(time.time() if self.mtime is None else self.mtime)
        blocks, size = [], 0
        for field in sorted(fields):
            data = field_bytes(key, field, encoded[field])
            name = file_name(key, field)
            try:
                header = file_header(name, len(data), now, self.mode, self.user, self.group, self._format)
            except ValueError as error:
                raise ValueError(f"sample {key!r}: no tar header for {name!r}: {error}") from error
            blocks += [header, data, bytes(-len(data) % tarfile.BLOCKSIZE)]
            size += len(data)
        return key, blocks, size


class ShardWriter(ClosesOrDiscards):
    """Writes samples to a series of tar archives, and begins a new one when one is full.

    Each shard appears under its name when it is complete; an exception inside ``with`` leaves the complete
    ones and drops the current one. A shard without samples is never left.

    Args:
        pattern: The shards' paths or URLs with a ``%`` directive for the number: ``"digits-%06d.tar"``.
        maxcount: Samples in a shard, at most.
        maxsize: Bytes of data in a shard: the sample that reaches it is the shard's last.
        post: Called with the name of each complete shard.
        start_shard: Number of the first shard.
        verbose: Print a line on standard error for each complete shard.
        opener: Called with each shard's name, returns the binary stream to write it to, which is closed when
            the shard is complete. To drop a shard, the writer calls the stream's ``discard`` (streams of
            ``gopen`` and fsspec have one), or else its ``__exit__`` with an error. A plain file is removed.
            Any other stream is left open, with a warning.
        **kw: Arguments of ``TarWriter``.

    Attributes:
        shard: Number of the next shard.
        fname: Name of the current shard.
        count: Samples in the current shard.
        size: Bytes of data in the current shard.
        total: Samples in all shards.

    Raises:
        ValueError: The pattern has no ``%`` directive for an integer, or a limit is not positive.

    Source:
        ``webdataset.writer.ShardWriter``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     with ShardWriter(f"{directory}/x-%03d.tar", maxcount=2, verbose=0) as sink:
        ...         for index in range(3):
        ...             sink.write({"__key__": f"{index:06d}", "cls": index})
        ...     sorted(os.listdir(directory))
        ['x-000.tar', 'x-001.tar']
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        maxcount: int = 100000,
        maxsize: float = 3e9,
        post: Callable[[str], object] | None = None,
        start_shard: int = 0,
        verbose: int = 1,
        opener: Callable[[str], BinaryIO] | None = None,
        **kw: Any,
    ) -> None:
        known = [*signature(ShardWriter).parameters, *signature(TarWriter).parameters]
        if unknown := next((name for name in kw if name not in known), None):
            raise TypeError(f"ShardWriter() has no argument {unknown!r}{did_you_mean(unknown, known)}")
        self.pattern = check_pattern(os.fspath(pattern))
        if not all(isinstance(limit, Real) and limit > 0 for limit in (maxcount, maxsize)):
            raise ValueError(f"maxcount ({maxcount!r}) and maxsize ({maxsize!r}) must be positive numbers")
        self.maxcount = maxcount
        self.maxsize = maxsize
        self.post = post
        self.verbose = verbose
        self.opener = opener
        self.shard = start_shard
        self.total = 0
        self._options = kw
        self._closed = False
        self._writer: TarWriter | None = self._open_next()

    def write(self, sample: Sample) -> None:
        """Write one sample, in a new shard if the current one is full. Raises as ``TarWriter.write``."""
        self._check_open()
        if self._writer is None or self.count >= self.maxcount or self.size >= self.maxsize:
            self.finish()
            self._writer = self._open_next()
        size = self._writer.write(sample)
        self.count += 1
        self.total += 1
        self.size += size

    def dwrite(self, key: str | None = None, **fields: Any) -> None:
        """Write a sample given as keyword arguments, as ``TarWriter.dwrite`` does."""
        self.write(named_sample(key, fields))

    def next_stream(self) -> None:
        """End the current shard, if there is a sample in it, and begin the next."""
        self._check_open()
        if self._writer is None or self.count or self._writer.discarded:
            self.finish()
            self._writer = self._open_next()

    def finish(self) -> None:
        """Complete the current shard; the next sample begins another."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if not self.count or writer.discarded:
            writer.discard()
            return
        writer.close()
        if self.verbose:
            figures = f"{self.count} samples, {shown_bytes(self.size)}; {self.total} samples in all"
            print(f"wrote {self.fname}: {figures}", file=sys.stderr)
        if self.post is not None:
            self.post(self.fname)

    def close(self) -> None:
        """Complete the last shard. Closing twice does nothing."""
        if not self._closed:
            self._closed = True
            self.finish()

    def discard(self) -> None:
        """Close and drop the shard that is being written; complete shards stay."""
        if not self._closed:
            self._closed = True
            if self._writer is not None:
                self._writer.discard()

    def _open_next(self) -> TarWriter:
        self.fname = self.pattern % self.shard
        if self.opener is None:
            writer = TarWriter(self.fname, **self._options)
        else:
            opened = OwnedStream(self.opener(self.fname), without_credentials(self.fname))
            try:
                writer = TarWriter(opened, **self._options)
            except BaseException:
                opened.discard()
                raise
        self.shard += 1
        self.count = 0
        self.size = 0
        return writer

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the shard writer is closed: no more samples can be written to it")


def shown_bytes(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def check_pattern(pattern: str) -> str:
    try:
        if pattern % 0 != pattern % 1:
            return pattern
        reason = "it gives every shard the same name"
    except (TypeError, ValueError) as error:
        reason = str(error)
    raise ValueError(
        f"shard pattern {pattern!r} needs one % directive for the number, such as %06d: {reason}"
    )


def named_sample(key: str | None, fields: dict[str, Any]) -> dict[str, Any]:
    """The sample for ``dwrite``'s arguments."""
    sample = {
        name if name.startswith("__") else name.replace("_", "."): value for name, value in fields.items()
    }
    return sample if key is None else {"__key__": key, **sample}
