"""The trainer's commands, as a worker reads them: start an epoch, stop it, do a task."""

from __future__ import annotations

import select
from collections import deque
from typing import Any

from mpwds.loader.engine import protocol
from mpwds.loader.engine.channel import Channel


class Commands:
    """Reads the trainer's commands.

    Of ``start`` and ``stop`` only the newest counts. Tasks are taken in order; those of other epochs are
    dropped. A closed channel ends the worker.

    Args:
        channel: The worker's end of the channel.
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
        """Waits for the next ``start`` and returns its fields.

        Raises:
            ChannelClosed: The worker must end.
        """
        while (start := self.next_start()) is None:
            self._arrival.poll()
        return start

    def next_start(self) -> dict[str, Any] | None:
        """The fields of the next ``start``; ``None`` if none has arrived. Never waits.

        Raises:
            ChannelClosed: The worker must end.
        """
        self._read_all()
        start, self._start = self._start, None
        return start

    def wait_for_task(self, generation: int) -> bytes | None:
        """Waits for the next task of the running epoch; ``None`` if that is stopped. Tasks are pickled.

        Raises:
            ChannelClosed: The worker must end.
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
        """Whether the running epoch was stopped. Never waits.

        Raises:
            ChannelClosed: The worker must end.
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
