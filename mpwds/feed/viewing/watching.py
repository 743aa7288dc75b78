"""What the commands and the page watch: feed servers, or anything else that has figures and batches."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from mpwds.errors import ServerLost
from mpwds.feed.inspecting import Inspector
from mpwds.feed.viewing.figures import Figures, Status, figures, lost

_STEADY = 10
"""Readings that figures are about: a single one has few batches where these are large."""

_ANSWER_S = 3.0
"""How long a server that has answered before may take: meanwhile, the figures of the others stand still."""


class Watched(Protocol):
    """A feed that is watched. One thread may call ``read`` while another calls ``peek``.

    Attributes:
        name: What it is called: its URLs.
        classes: Names of its labels, as far as they are known after a reading.
    """

    name: str
    classes: Sequence[str]

    def read(self) -> Figures:
        """The figures since some calls before; the first call's since the feed started."""

    def peek(self, timeout_s: float) -> Any:
        """A batch that was not shown before.

        Raises:
            TimeoutError: None came in time.
        """

    def close(self) -> None:
        """Ends the watching. The feed itself goes on."""


class WatchedServers:
    """Watches feed servers.

    Batches are copies: trainers get them as well.

    Args:
        urls: Their URLs, without braces.
        keys: Folder of the keys; servers of other machines need one.
        insecure: Connect to other machines without keys.
    """

    def __init__(
        self, urls: Sequence[str], keys: str | os.PathLike[str] | None = None, insecure: bool = False
    ) -> None:
        self.name = ", ".join(urls) if len(urls) < 4 else f"{urls[0]} and {len(urls) - 1} more servers"
        self.classes: Sequence[str] = ()
        self._inspector = Inspector(urls, keys, insecure=insecure)
        self._peeking = Inspector(urls, keys, insecure=insecure)  # sockets belong to one thread
        self._read: deque[Sequence[Status]] = deque(maxlen=_STEADY)
        self._heard: dict[str, tuple[float, Status | None]] = dict.fromkeys(urls, (time.monotonic(), None))

    def read(self) -> Figures:
        try:
            now = self._inspector.status(_ANSWER_S if self._read else None)
        except ServerLost:
            if not self._read:
                raise
            now = []
        named = {tuple(status["classes"]) for status in now}
        self.classes = named.pop() if len(named) == 1 else self.classes if not named else ()
        now_s = time.monotonic()
        self._heard.update((status["url"], (now_s, status)) for status in now)
        away = [(url, now_s - then, last) for url, (then, last) in self._heard.items() if then != now_s]
        oldest_last = [status for reading in reversed(self._read) for status in reading]
        self._read.append(now)
        return figures(oldest_last, [*now, *(lost(url, last, seconds) for url, seconds, last in away)])

    def peek(self, timeout_s: float) -> Any:
        try:
            _, batch = self._peeking.peek(timeout_s)
        except ServerLost:
            self._peeking.status(timeout_s)  # which raises, too, if a server does not answer at all
            raise TimeoutError(
                f"no worker of {self.name} sent a batch within {timeout_s:g} s: does a trainer read from it?"
            ) from None
        return batch

    def close(self) -> None:
        self._inspector.close()
        self._peeking.close()
