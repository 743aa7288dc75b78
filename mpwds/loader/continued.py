"""A stream behind a loader that goes on where it was: exactly, or, where a stage cannot, by running again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mpwds.loader.delivered import only_needed
from mpwds.loader.progress import warn_of_empty_epoch
from mpwds.loader.state import field
from mpwds.pipeline.place import Place
from mpwds.pipeline.replay import skip
from mpwds.pipeline.stream import Address, Stream
from mpwds.warn import warn


class Continued:
    """The stream of stages behind a loader.

    Its state is that of the stages, and the number of elements delivered: if a stage has no state, or cannot
    load it, the epoch is run again from its start.

    Args:
        start: Begins the epoch.
        same_order: Whether the loader delivers in the same order each time it runs.
        unaddressed: The stage that gives elements without addresses, if there is one.
    """

    def __init__(
        self, start: Callable[[], Stream[Any]], same_order: bool, unaddressed: str | None = None
    ) -> None:
        self._start = start
        self._same_order = same_order
        self._unaddressed = unaddressed
        self._stream = start()
        self._next = self._stream.__next__
        self._delivered = 0
        self._loaded = 0

    def __iter__(self) -> Continued:
        return self

    def __next__(self) -> tuple[Address, Any]:
        try:
            item: tuple[Address, Any] = self._next()
        except StopIteration:
            if self._loaded and self._delivered == self._loaded:
                warn_of_empty_epoch()
            raise
        self._delivered += 1
        return item

    def fetch(self, address: Any) -> Any:
        return self._stream.fetch(address)

    def describe(self, address: Any, element: object = None) -> Place:
        return self._stream.describe(address, element)

    def state_dict(self) -> dict[str, Any]:
        if self._unaddressed is not None:
            reason = f"{self._unaddressed} gives elements without addresses"
            return {"delivered": self._delivered, "replay": reason}
        try:
            stream = only_needed(self._stream.state_dict())
        except Exception as error:  # a stage may have no state; the error is told where the replay is
            return {"delivered": self._delivered, "replay": f"{type(error).__name__}: {error}"}
        return {"delivered": self._delivered, "stream": stream}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was saved.

        Warns:
            UserWarning: The epoch is run again from its start, because of what it names.

        Raises:
            ValueError: That would give elements in another order, some of them twice and others not at all.
            RuntimeError: The epoch has fewer elements now.
        """
        delivered = self._loaded = field(state, "delivered", int)
        stream = state.get("stream")
        if delivered == 0:
            self._begin(0)
        elif stream is None:
            self._replay(delivered, str(state.get("replay")))
        else:
            if self._delivered:
                self._begin(0)
            try:
                self._stream.load_state_dict(stream)
                self._delivered = delivered
            except LookupError as error:
                self._replay(delivered, str(error))

    def _begin(self, delivered: int) -> None:
        self._stream = self._start()
        self._next = self._stream.__next__
        self._delivered = delivered

    def _replay(self, delivered: int, reason: str) -> None:
        if not self._same_order:
            raise _no_order(reason)
        warn(
            f"the stages behind the loader are continued by running the first {delivered} elements of the "
            f"epoch again ({reason})",
            UserWarning,
        )
        self._begin(delivered)
        skip(self._stream, delivered)


def _no_order(reason: str) -> ValueError:
    return ValueError(
        f"this epoch cannot be continued: it would have to be run again from its start ({reason}), and with "
        "in_order=False elements come in another order then. Use in_order=True, or begin the epoch anew"
    )
