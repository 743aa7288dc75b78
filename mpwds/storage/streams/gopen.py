"""Byte streams by URL, of any scheme."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from mpwds.storage.streams.base import Version, stream_version
from mpwds.storage.streams.urls import (
    has_rules,
    is_local,
    local_path,
    refuse_in_secure_mode,
    rewrite_url,
    too_short,
    url_scheme,
    verbose,
    without_credentials,
)
from mpwds.suggestions import shown

_MODES = {"r": "rb", "rb": "rb", "w": "wb", "wb": "wb"}
_SKIPPED_BYTES = 256 * 1024

Opener = Callable[..., BinaryIO]


def gopen(url: str | os.PathLike[str], mode: str = "rb", bufsize: int = 8192, **options: Any) -> BinaryIO:
    """Opens a URL for reading or writing.

    =============================== ====================================================================
    URL                             Opened by
    =============================== ====================================================================
    a path, ``file:``               ``open``, with a buffer of ``GOPEN_BUFFER`` bytes
    ``-``                           standard input or output
    ``pipe:``                       a shell command: :func:`mpwds.storage.streams.pipes.open_pipe`
    ``http: https:``                :func:`mpwds.storage.streams.http.open_http`
    ``hf:``                         Hugging Face Hub: :func:`mpwds.storage.streams.http.open_hf`
    ``s3: gs: az: abfs: r2:`` ...   cloud storage: :func:`mpwds.storage.streams.cloud.open_cloud`
    ``ais:``                        AIStore: :func:`mpwds.storage.streams.http.open_ais`
    ``ftp: ftps: sftp: scp:``       ``curl``: :func:`mpwds.storage.streams.pipes.open_curl`
    another scheme                  its opener in ``gopen_schemes``
    =============================== ====================================================================

    Rules in the environment may rewrite the URL first: :func:`mpwds.storage.streams.urls.rewrite_url`.

    What you write to a command or a server is complete once the stream is closed. The stream's method
    ``discard`` throws it away; a ``with`` block that raises calls it.

    ``gopen_schemes`` maps schemes to functions ``opener(url, mode, bufsize, **options)``; add your own. The
    one under ``"__default__"`` gets all other schemes. :func:`open_at` passes ``offset`` to an opener that
    has such a parameter.

    Args:
        url: What to open.
        mode: ``"rb"`` or ``"wb"``; ``"r"`` and ``"w"`` mean the same.
        bufsize: Bytes to buffer; for local files, ``GOPEN_BUFFER`` in the environment decides.
        options: For the scheme's opener; local files ignore them. ``retries`` and ``read_ahead`` go only to
            openers that have such parameters: those of web servers and cloud storage.

    Raises:
        FileNotFoundError: There is no such file or resource.
        StreamError: It cannot be opened.
        ValueError: The scheme has no opener, or the mode is invalid.
        SecurityError: The URL is a local file or a command, in secure mode.

    Source:
        ``webdataset.gopen``.

    Example:
        >>> with gopen("pipe:echo hello") as stream:
        ...     stream.read()
        b'hello\\n'
    """
    if mode not in _MODES:
        raise ValueError(f"gopen: mode must be 'rb' or 'wb', got {shown(mode)}")
    return _open(os.fspath(url), _MODES[mode], bufsize, 0, options)


def open_at(url: str | os.PathLike[str], offset: int = 0, **options: Any) -> BinaryIO:
    """Opens a URL, as for :func:`gopen`, for reading from the byte ``offset`` on.

    Files seek, and servers send only the rest. Other streams are read and dropped up to that byte. Raises
    ``StreamError`` if such a stream ends before it; a local file reads as empty. ``options`` are those of
    :func:`gopen`.
    """
    if offset < 0:
        raise ValueError(f"offset in a stream must not be negative, got {offset}")
    return _open(os.fspath(url), "rb", 8192, offset, options)


def open_range(url: str | os.PathLike[str], offset: int, size: int) -> BinaryIO:
    """Opens a URL for reading ``size`` bytes from ``offset`` on; of other streams than those of web servers
    and cloud storage, more bytes may follow.

    Raises ``StreamError`` if a server does not do ranges.
    """
    return _open(os.fspath(url), "rb", 8192, offset, {}, offset + size)


def shards_ahead(url: str, read_ahead: int | None = None, size: int | None = None) -> int:
    """The number of shards, of about ``size`` bytes, to open while one at this URL is read.

    They are one more than have a stream's part of the bytes that are read ahead with this option (``None``:
    the scheme's default), at most two if the size is not known, and none if nothing is read ahead.
    """
    opener = _opener_of(url)[1]
    if opener is None or not _takes(opener, "read_ahead"):
        return 0
    from mpwds.storage.streams.ranges import RANGE_BYTES, READ_AHEAD, count_streams_read

    if read_ahead is None:
        read_ahead = READ_AHEAD if opener is _CLOUD else 0
    part = read_ahead * RANGE_BYTES // max(1, count_streams_read())
    return min(read_ahead, 1 + part // max(size or part, RANGE_BYTES))


def exists(url: str) -> bool:
    """True if there is a file or an object of this name. Commands and pipes never exist."""
    if url == "-" or url_scheme(url) == "pipe":
        return False
    if is_local(url):
        return os.path.isfile(local_path(url))
    try:
        version_at(url)
    except FileNotFoundError:
        return False
    return True


def version_at(url: str) -> Version:
    """The version of a file or object, as far as its storage tells. ``FileNotFoundError`` if there is none.

    Cloud storage is asked without opening the object.
    """
    name, opener = _opener_of(url)
    if opener is _CLOUD:
        from mpwds.storage.streams.cloud import object_version

        return object_version(name)
    with open_at(url, read_ahead=0) as stream:
        if opener in (_CURL, _SCP):
            stream.read(1)  # a program has not asked yet when it runs
        return stream_version(stream)


def reader(url: str | os.PathLike[str], **options: Any) -> BinaryIO:
    """Opens a URL for reading: :func:`gopen` in mode ``"rb"``."""
    return gopen(url, "rb", **options)


@dataclass(frozen=True)
class _BuiltIn:
    """An opener of this package, imported when it is first used."""

    module: str
    function: str
    takes: tuple[str, ...] = ("offset", "stop", "retries", "read_ahead")

    def __call__(self, url: str, mode: str = "rb", bufsize: int = 8192, **options: Any) -> BinaryIO:
        opener: Opener = getattr(importlib.import_module(self.module), self.function)
        return opener(url, mode, bufsize, **options)


def _open_unknown(url: str, mode: str = "rb", bufsize: int = 8192, **options: Any) -> BinaryIO:
    raise ValueError(
        f"{without_credentials(url)!r}: no opener is known for {url_scheme(url)}: URLs; add one to "
        "gopen_schemes, or use pipe: with a command that writes the bytes to its standard output"
    )


_AIS = _BuiltIn("mpwds.storage.streams.http", "open_ais")
_CLOUD = _BuiltIn("mpwds.storage.streams.cloud", "open_cloud")
_CURL = _BuiltIn("mpwds.storage.streams.pipes", "open_curl", ("offset",))
_SCP = _BuiltIn("mpwds.storage.streams.pipes", "open_curl", ())  # which always sends the whole file

gopen_schemes: dict[str, Opener] = {
    "__default__": _open_unknown,
    "pipe": _BuiltIn("mpwds.storage.streams.pipes", "open_pipe", ()),
    **dict.fromkeys(("http", "https"), _BuiltIn("mpwds.storage.streams.http", "open_http")),
    "hf": _BuiltIn("mpwds.storage.streams.http", "open_hf"),
    "ais": _AIS,
    **dict.fromkeys(("s3", "s3a", "r2", "gs", "az", "azure", "adl", "abfs", "abfss"), _CLOUD),
    **dict.fromkeys(("ftp", "ftps", "sftp"), _CURL),
    "scp": _SCP,
}


def _open(
    url: str, mode: str, bufsize: int, offset: int, options: dict[str, Any], stop: int | None = None
) -> BinaryIO:
    if verbose():
        print(f"GOPEN {without_credentials(url)}", file=sys.stderr)
    if url == "-":
        return _skip(sys.stdin.buffer if mode == "rb" else sys.stdout.buffer, url, offset)
    url, opener = _opener_of(url)
    if opener is None:
        return _open_local(url, mode, offset)
    for name in ("retries", "read_ahead"):
        if options.get(name, False) is None or not _takes(opener, name):
            options = {each: value for each, value in options.items() if each != name}
    if isinstance(opener, _BuiltIn) and "stop" in opener.takes:
        return opener(url, mode, bufsize, offset=offset, stop=stop, **options)
    if offset and _takes(opener, "offset"):
        return opener(url, mode, bufsize, offset=offset, **options)
    return _skip(opener(url, mode, bufsize, **options), url, offset)


def _opener_of(url: str) -> tuple[str, Opener | None]:
    """A URL after the user's rules, and its opener; ``None`` for local files."""
    if has_rules():
        url = rewrite_url(url)
    scheme = url_scheme(url)
    opener = gopen_schemes.get(scheme)
    if scheme in ("", "file") or (opener is None and os.path.exists(url)):
        return url, None
    if opener in (None, _CLOUD) and os.environ.get("USE_AIS_FOR"):
        from mpwds.storage.streams.http import schemes_for_aistore

        opener = _AIS if scheme in schemes_for_aistore() else opener
    return url, opener or gopen_schemes["__default__"]


def _open_local(url: str, mode: str, offset: int) -> BinaryIO:
    refuse_in_secure_mode("local files may not be opened", url)
    given = os.environ.get("GOPEN_BUFFER", "-1")
    try:
        buffer_bytes = int(given)
    except ValueError:
        raise ValueError(f"GOPEN_BUFFER in the environment is {given!r}, not a number of bytes") from None
    stream = cast(BinaryIO, open(local_path(url), mode, buffering=buffer_bytes))  # noqa: SIM115
    if offset and stream.seekable():
        stream.seek(offset)
        return stream
    return _skip(stream, url, offset)


def _takes(opener: Opener, option: str) -> bool:
    if isinstance(opener, _BuiltIn):
        return option in opener.takes
    try:
        return option in inspect.signature(opener).parameters
    except (TypeError, ValueError):
        return False


def _skip(stream: BinaryIO, url: str, offset: int) -> BinaryIO:
    left = offset
    try:
        while left > 0:
            block = stream.read(min(left, _SKIPPED_BYTES))
            if not block:
                raise too_short(without_credentials(url), offset - left, offset)
            left -= len(block)
    except BaseException:
        stream.close()
        raise
    return stream
