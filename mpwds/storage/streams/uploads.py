"""What is written to a server: collected first, sent as a whole."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from mpwds.errors import StreamError
from mpwds.storage.streams.discarding import DiscardsOnError
from mpwds.storage.streams.retries import Interrupted, Retries

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_IN_MEMORY_BYTES = 16 * 1024 * 1024
_log = logging.getLogger("mpwds")


@dataclass
class Upload:
    """What is to be sent: ``size`` bytes, which are all that a file holds."""

    file: BinaryIO
    size: int


class SpooledUpload(DiscardsOnError):
    """A stream to write to, whose content is sent when it is closed.

    So that a server sees all of it or nothing, knows its size, and can be sent it again after a failure. Up
    to 16 MiB are kept in memory, more in a file in the directory for temporary files (``TMPDIR``). A fork
    of the process that opened it sends nothing.

    Args:
        name: What to call it in messages.
        send: Sends it. Raises ``Interrupted`` where another try may succeed.
        retries: How often to try.

    Raises:
        StreamError: From ``close``: it was not sent.

    Example:
        >>> upload = SpooledUpload("x", lambda upload: print(upload.file.read(), upload.size), Retries())
        >>> upload.write(b"hello")
        5
        >>> upload.close()
        b'hello' 5
    """

    def __init__(self, name: str, send: Callable[[Upload], None], retries: Retries) -> None:
        self.name = name
        self._send = send
        self._retries = retries
        self._pid = os.getpid()
        self._spool = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 - closed by close

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        if self.closed:
            raise ValueError(f"{self.name}: write to a closed stream")
        return self._spool.write(data)

    def tell(self) -> int:
        return self._spool.tell()

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self._pid == os.getpid():
                self._spool.seek(0, os.SEEK_END)
                self._send_with_tries(Upload(cast(BinaryIO, self._spool), self._spool.tell()))
        finally:
            self.discard()

    def discard(self) -> None:
        self._spool.close()
        super().close()

    def _send_with_tries(self, upload: Upload) -> None:
        failures = 0
        while True:
            upload.file.seek(0)
            try:
                return self._send(upload)
            except Interrupted as interruption:
                failures += 1
                what = f"{self.name}: {interruption}, sending {upload.size} bytes"
                if failures >= self._retries.tries:
                    message = f"{what}; gave up after {failures} tries, and nothing was written"
                    raise StreamError(message, self.name, None, failures) from interruption
                pause = self._retries.pause_s(failures, interruption.wait_s)
                _log.info("%s (try %d of %d); again in %.1f s", what, failures, self._retries.tries, pause)
                time.sleep(pause)
