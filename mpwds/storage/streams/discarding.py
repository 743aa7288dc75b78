"""Output that is thrown away, not completed, when what writes it fails."""

from __future__ import annotations

import io
import warnings
from abc import abstractmethod
from types import TracebackType


class DiscardsOnError(io.BufferedIOBase):
    """Mixin for streams whose ``close`` completes what was written, and whose ``discard`` throws it away.

    A ``with`` block that an exception leaves discards, so that half of a shard does not look like a whole
    one. So does garbage collection: who never closed a stream did not say that it is complete.
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
