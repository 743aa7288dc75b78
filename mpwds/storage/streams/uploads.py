"""Output that is completed by ``close`` and thrown away when what writes it fails."""

from __future__ import annotations

import io
import logging
import os
import tempfile
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, cast

from mpwds.errors import StreamError
from mpwds.storage.streams.resuming import Interrupted, Retries

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_IN_MEMORY_BYTES = 16 * 1024 * 1024
_log = logging.getLogger("mpwds")


class DiscardsOnError(io.BufferedIOBase):
    """Mixin for streams whose ``close`` completes what was written, and whose ``discard`` throws it away.

    A ``with`` block that an exception leaves discards, so that half of a shard does not look like a whole
    one. So does garbage collection: a stream that was never closed was never said to be complete.
    """

    @abstractmethod
    def discard(self) -> None:
        """Closes the stream without completing what was written; does nothing once it is closed."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        if not self.closed:
            warnings.warn(
                f"{self!r} was never closed: what was written to it is thrown away",
                ResourceWarning,
                stacklevel=2,
            )
            self.discard()


@dataclass
class Upload:
    """A file to send, all of it: ``size`` bytes."""

    file: BinaryIO
    size: int


class SpooledUpload(DiscardsOnError):
    """A stream to write to, whose content is sent when it is closed.

    So a server sees all of it or nothing, knows its size, and gets it again after a failure. Up to 16 MiB
    are kept in memory, more in a file in the directory for temporary files (``TMPDIR``). A fork of the
    process that opened it sends nothing.

    Args:
        name: The stream's name in messages.
        send: Sends the file. Raises ``Interrupted`` where another try may succeed.
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
                if failures >= self._retries.most(interruption):
                    message = f"{what}; gave up after {failures} tries, and nothing was written"
                    raise StreamError(message, self.name, None, failures) from interruption
                pause = self._retries.pause_s(failures, interruption.wait_s)
                _log.info("%s (try %d of %d); again in %.1f s", what, failures, self._retries.tries, pause)
                time.sleep(pause)
