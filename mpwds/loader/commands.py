"""What the trainer tells a worker: to start an epoch, to leave it, what to fetch, and, by closing, to end."""

from __future__ import annotations

import select
from collections import deque
from typing import Any

from mpwds.loader import protocol
from mpwds.loader.channel import Channel


class Commands:
    """A worker's ear for its trainer.

    Of ``start`` and ``stop`` only the newest counts: a trainer may have changed its mind. Tasks are taken in
    order, and only those of the epoch that runs.

    Args:
        channel: From the trainer.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._start: dict[str, Any] | None = None
        self._stopped = 0
        self._tasks: deque[dict[str, Any]] = deque()
        self._arrival = select.poll()
        self._arrival.register(channel, select.POLLIN)

    def fileno(self) -> int:
        """A descriptor that becomes readable when there is a command to read."""
        return self._channel.fileno()

    def wait_for_start(self) -> dict[str, Any]:
        """The fields of the next ``start``.

        Raises:
            ChannelClosed: The worker shall end.
        """
        while (start := self.next_start()) is None:
            self._arrival.poll()
        return start

    def next_start(self) -> dict[str, Any] | None:
        """The fields of the next ``start``, if it has come; never waits.

        Raises:
            ChannelClosed: The worker shall end.
        """
        self._read_all()
        start, self._start = self._start, None
        return start

    def wait_for_task(self, generation: int) -> bytes | None:
        """The next task of a running epoch, pickled; ``None`` when the epoch shall be left.

        Raises:
            ChannelClosed: The worker shall end.
        """
        while not self.stopped(generation):
            while self._tasks:
                task = self._tasks.popleft()
                if task["generation"] == generation:
                    index: bytes = task["index"]
                    return index
            with self._channel.waiting():
                self._arrival.poll()
        return None

    def stopped(self, generation: int) -> bool:
        """Whether a running epoch shall be left; never waits.

        Raises:
            ChannelClosed: The worker shall end.
        """
        self._read_all()
        return self._start is not None or self._stopped >= generation

    def _read_all(self) -> None:
        while (message := self._channel.receive()) is not None:
            fields = message.fields
            if fields["kind"] == protocol.TASK:
                self._tasks.append(fields)
            elif fields["kind"] == protocol.START:
                self._start = fields
            else:
                self._start = None
                self._stopped = fields["generation"]
