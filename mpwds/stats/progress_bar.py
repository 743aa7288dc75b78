"""A live line about the epoch that a loader delivers."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import Any

from mpwds.imports import require
from mpwds.stats.collector import WAITED, ConsumerTimer

_REDRAW_TERMINAL_S = 0.25
_REDRAW_FILE_S = 10.0
_WITH_TOTAL = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_WITHOUT_TOTAL = "{desc}: {n_fmt} [{elapsed}{postfix}]"


def require_tqdm() -> Any:
    return require("tqdm.auto", "progress=True needs tqdm: pip install 'mpwds[progress]'")


class ShownTimer(ConsumerTimer):
    """The clock of an epoch's iterator, shown as a line on stderr or in a notebook's cell.

    It ends with the epoch, and does not keep the loader alive.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__()
        self._loader = weakref.ref(loader)
        self._process = os.getpid()
        self._bar: Any = None
        self._next_ns = 0
        self._redraw_ns = int((_REDRAW_TERMINAL_S if sys.stderr.isatty() else _REDRAW_FILE_S) * 1e9)

    def enter(self, doing: int, of_stages: bool = False) -> None:
        super().enter(doing, of_stages)
        if doing == WAITED and self._bar is None:
            self._bar = _open_bar(self._loader())
            self._next_ns = self._since_ns + self._redraw_ns

    def delivered(self, samples: int, nbytes: int) -> None:
        super().delivered(samples, nbytes)
        if self._since_ns >= self._next_ns:
            self._update(self._bar)
            self._bar.refresh()
            self._next_ns = self._since_ns + self._redraw_ns

    def end(self) -> None:
        super().end()
        bar, self._bar = self._bar, None
        if bar is not None and os.getpid() == self._process:
            self._update(bar)
            bar.close()

    def _update(self, bar: Any) -> None:
        bar.n = self._batches
        loader = self._loader()
        if loader is not None:
            bar.set_postfix_str(_summary(loader.stats()), refresh=False)


def _open_bar(loader: Any) -> Any:
    # Without the thread that tqdm has for slow bars, and without its lock for processes, which may start one.
    own = {"monitor_interval": 0, "_lock": threading.RLock()}
    bar = type("Bar", (require_tqdm().tqdm,), own)
    try:
        total = None if loader is None else len(loader)
    except (TypeError, NotImplementedError):
        total = None
    return bar(
        total=total,
        desc="batches" if loader is None else f"epoch {loader.stats().epoch}",
        bar_format=_WITHOUT_TOTAL if total is None else _WITH_TOTAL,
        leave=None,
        dynamic_ncols=True,
        mininterval=0,
    )


def _summary(stats: Any) -> str:
    if stats.batches < 2:
        return ""
    parts = [f"{stats.samples_per_s:,.0f} samples/s", f"waits {stats.waiting_share:.0%}"]
    top = max(stats.stages, key=lambda stage: stage.share, default=None)
    if top is not None and top.share:
        parts.append(f"{top.name} {top.share:.0%}")
    return ", ".join(parts)
