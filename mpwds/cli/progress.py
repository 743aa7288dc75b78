"""A progress line: redrawn in place on a terminal, printed now and then elsewhere."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import TextIO

_REDRAW_S = 0.2
_USUAL_COLUMNS = 80
_BETWEEN_FIELDS = "  "
_BAR = 12


class Progress:
    """Shows progress on ``stream``; a context manager, which ends the line that it drew.

    A text consists of fields with two spaces between them. On a terminal ``show`` and ``milestone`` redraw
    the same line, without the last fields if they do not fit. Elsewhere (a pipe, a file) ``show`` does
    nothing and ``milestone`` prints a line, so logs stay short.

    Example:
        >>> import sys
        >>> with Progress(sys.stdout) as progress:
        ...     progress.show("epoch 1/2  loss 0.7")
        ...     progress.milestone("epoch 1/2  loss 0.4")
        epoch 1/2  loss 0.4
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._drawn = ""
        self._next_s = 0.0

    def show(self, text: str, share: float | None = None) -> None:
        """Redraws the line of a terminal, five times a second at most; ``share`` (0 to 1) adds a bar."""
        if self._is_terminal and time.monotonic() >= self._next_s:
            self._draw(text, share)

    def milestone(self, text: str, share: float | None = None) -> None:
        """Redraws the line at once, or prints ``text`` without a bar if there is no terminal."""
        if self._is_terminal:
            self._draw(text, share)
        else:
            print(text, file=self._stream, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._drawn:
            print(file=self._stream, flush=True)
            self._drawn = ""

    def _draw(self, text: str, share: float | None) -> None:
        text = text if share is None else _bar(share) + text
        # One column stays free: after a full line some terminals wrap, and \r does not lead back.
        text = _shortened(text, self._columns() - 1)
        self._stream.write("\r" + text.ljust(len(self._drawn)))
        self._stream.flush()
        self._drawn = text
        self._next_s = time.monotonic() + _REDRAW_S

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _USUAL_COLUMNS
        except OSError:
            return _USUAL_COLUMNS


def _bar(share: float) -> str:
    done = min(_BAR, int(_BAR * share))
    return f"[{'#' * done}{'.' * (_BAR - done)}] "


def _shortened(text: str, columns: int) -> str:
    while len(text) > columns and _BETWEEN_FIELDS in text:
        text = text.rpartition(_BETWEEN_FIELDS)[0]
    return text[:columns]
