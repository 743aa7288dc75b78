"""Byte streams by ``curl``, for protocols that the standard library does not stream well."""

from __future__ import annotations

import shutil
from typing import BinaryIO

from mpwds.errors import StreamError
from mpwds.storage.streams.pipes import open_command
from mpwds.storage.streams.urls import url_scheme, without_credentials

_STALL_S = 60


def open_curl(url: str, mode: str = "rb", bufsize: int = 8192, *, offset: int = 0) -> BinaryIO:
    """A stream from an FTP or SSH server, or to one: ``ftp: ftps: sftp: scp:``.

    The program ``curl`` does it, as for webdataset; not every build of it knows ``sftp`` and ``scp``. A
    connection that breaks, or is silent for a minute, is an error: it is not taken up again. Passwords are
    better kept in ``~/.netrc`` than in the URL, where other users of the machine can see them while the
    program runs.

    Args:
        url: What to read or write.
        mode: ``"rb"`` or ``"wb"``.
        bufsize: Bytes that are buffered; at least 256 KiB when reading.
        offset: The byte at which to start reading; not for ``scp:``.

    Raises:
        StreamError: There is no ``curl``, or it fails; from ``read`` and ``close`` too.

    Source:
        ``webdataset.gopen.gopen_curl``.
    """
    shown = without_credentials(url)
    program = shutil.which("curl")
    if program is None:
        raise StreamError(
            f"{shown}: {url_scheme(url)}: URLs are opened by the program curl, which is not installed", shown
        )
    arguments = [program, "--fail", "--silent", "--show-error", "--globoff", "--netrc-optional"]
    arguments += ["--connect-timeout", "30", "--speed-time", str(_STALL_S), "--speed-limit", "1"]
    if mode[0] == "w":
        arguments += ["--upload-file", "-"]
    elif offset > 0:
        arguments += ["--continue-at", str(offset)]
    return open_command([*arguments, url], shown, mode, bufsize)
