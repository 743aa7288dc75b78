"""Stages after a loader: the stream of the loader's batches, and the epoch of the stages.

Both resume exactly: stages name the rows that they hold, and the workers make the batches of these again. An
epoch of which a stage has no state is replayed.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator
from typing import Any

from mpwds.errors import shorten
from mpwds.loader.engine.epoch import TAKE_TURNS, EpochBatches, EpochIterator
from mpwds.loader.resume.held import BATCH, Batch, begun_with, reduced_to_needed
from mpwds.loader.resume.progress import EpochProgress, field_of, warn_of_empty_epoch
from mpwds.pipeline.iterable_sources import Replayed, iter_elements
from mpwds.pipeline.stream import Address, Description, Stream
from mpwds.stats.collector import ConsumerTimer
from mpwds.warn import warn

_TIME_EVERY_NS = 100_000


class StagesIterator(EpochBatches):
    """The elements of the last stage after a loader, for one thread at a time, and timed.

    Timing takes about a microsecond, more than small elements take. So an element is timed about every tenth
    of a millisecond, at random distances, and stands for those since the one before.
    """

    def __init__(self, elements: Generator[Any, None, None], clock: Callable[[], ConsumerTimer]) -> None:
        self._elements = elements
        self._clock = clock
        self._lock = threading.Lock()
        self._random = random.Random(0)  # of its own: a user's numbers stay as they are
        self._untimed = 0
        self._weight = 1
        self._since_ns = time.monotonic_ns()

    def __next__(self) -> Any:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(TAKE_TURNS)
        try:
            if self._untimed:
                self._untimed -= 1
                return next(self._elements)
            return self._timed()
        except (Exception, KeyboardInterrupt) as error:
            shorten(error)
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        self._elements.close()

    def _timed(self) -> Any:
        clock = self._clock()
        clock.stages_began()
        try:
            element = next(self._elements)
        finally:
            clock.stages_ended(self._weight)
        now_ns = time.monotonic_ns()
        each_ns = max(1.0, (now_ns - self._since_ns) / self._weight)
        # From 0 to twice the mean: what is done once in so many elements is neither always met nor never.
        distance = 0 if clock.runs_ahead else 2 * _TIME_EVERY_NS / each_ns
        self._untimed = int(self._random.uniform(0, distance))
        self._weight, self._since_ns = 1 + self._untimed, now_ns
        return element


STATES_KEPT = 32
"""States kept of each stream. Stages may hold rows of old batches, which are made again from an old state."""


class LoaderStream:
    """A loader's batches in an epoch, as a stream. ``iterate`` begins the loader's iteration at a progress.

    ``numbers`` are those of the loader's streams, so that a batch has the same address on all ranks. Batches
    can be fetched only while a state is loaded that names them as held: each stream begins at the earliest.
    Without ``remakes``, because elements come in any order, a state that names a batch is refused.
    """

    def __init__(
        self,
        iterate: Callable[[EpochProgress | None], EpochIterator],
        numbers: range,
        remakes: bool = True,
    ) -> None:
        self._iterate = iterate
        self._numbers = numbers
        self._remakes = remakes
        self._held: Counter[Batch] = Counter()  # how often each batch will be fetched
        self._remade: dict[Batch, Any] = {}
        self._begin(None)

    def __iter__(self) -> LoaderStream:
        return self

    def __next__(self) -> tuple[Address, Any]:
        if self._held:
            self._held, self._remade = Counter(), {}
        element = next(self._iterator)
        stream, number = self._iterator.place
        return (BATCH, self._numbers[stream], number), element

    def fetch(self, address: Any) -> Any:
        _, stream, number = address
        batch = stream, number
        if not self._held[batch]:
            raise LookupError(f"a stage holds {self.describe(address)}, and its state does not name it")
        while batch not in self._remade:
            made, made_number, element = self._iterator.remake(self._numbers.index(stream))
            if self._held[found := (self._numbers[made], made_number)]:
                self._remade[found] = element
        self._held[batch] -= 1
        return self._remade[batch] if self._held[batch] else self._remade.pop(batch)

    def describe(self, address: Any, element: object = None) -> Description:
        _, stream, number = address
        return Description.of_sample(element, Description(f"element {number} that stream {stream} delivered"))

    def state_dict(self) -> dict[str, Any]:
        progress = self._iterator.progress.state_dict(packed=True)  # see ``reduced_to_needed``
        return {"loaded": {**progress, "numbers": list(self._numbers)}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        loaded = state["loaded"]
        progress = EpochProgress.from_dict(loaded)
        self._held = Counter({(stream, number): count for stream, number, count in loaded.get("held", ())})
        if self._held and not self._remakes:
            raise LookupError("stages hold batches of workers whose elements come in any order")
        for number, batch in self._held:
            stream = progress.streams[self._numbers.index(number)]
            stream.received = min(stream.received, batch)
        self._remade = {}
        self._begin(progress)

    def _begin(self, progress: EpochProgress | None) -> None:
        self._iterator = self._iterate(progress)
        for stream in self._iterator.progress.streams:
            stream.keeps = STATES_KEPT


def _state_or_reason(make: Callable[[], Any]) -> dict[str, Any]:
    """The stages' state, or why there is none: a stage may have no state."""
    try:
        return {"stages": make()}
    except Exception as error:
        return {"replay": str(error) if type(error) is LookupError else f"{type(error).__name__}: {error}"}


def _reduced(state: dict[str, Any]) -> dict[str, Any]:
    return state if "replay" in state else _state_or_reason(lambda: reduced_to_needed(state["stages"]))


class StagesStream(Replayed):
    """An epoch of the stages after a loader, and how far it is.

    Its state is the number of elements delivered, and the stages' state. If a stage has no state, or cannot
    load it, the epoch is replayed from its start, if the loader delivers in the ``same_order`` each time.

    Attributes:
        running: Elements may still come.
        finished: The program got all of them.
        got: Elements that the program got, if a later step takes some ahead; otherwise ``None``.
        keeps_states: The state before each element that was taken ahead is kept.
    """

    def __init__(self, start: Callable[[], Stream[Any]], epoch: int, same_order: bool) -> None:
        super().__init__(start)
        self.epoch = epoch
        self.running = True
        self.finished = False
        self.got: int | None = None
        self.keeps_states = False
        self._states: deque[dict[str, Any]] = deque()  # before each element that the program did not get yet
        self._same_order = same_order
        self._left: dict[str, Any] | None = None
        self._moved = False  # other ranks began it

    def elements(self) -> Generator[Any, None, None]:
        """The elements. When the iterator is dropped, only the state is kept."""
        elements = self._elements()
        next(elements)  # begins it: what it does at its end is done even if no element is asked for
        return elements

    def _elements(self) -> Generator[Any, None, None]:
        loaded, resumed = self._delivered, self.resumed
        try:
            yield None
            yield from iter_elements(self)
            if self.got is None and resumed and self._delivered == loaded:
                warn_of_empty_epoch()
            self.finished = self.got is None
        finally:
            if not self.finished:
                self._left = _reduced(self._state_of_stages())
            self.running = False
            del self._source, self._next, self._start  # the stages hold elements, and the loader's iteration

    def __next__(self) -> tuple[Address, Any]:
        if self.keeps_states:
            self._states.append(self._state_of_stages())
        return super().__next__()

    @property
    def resumed(self) -> bool:
        return self._delivered > 0 or self._moved

    def mark_delivered(self) -> None:
        self.got = (self.got or 0) + 1
        if self._states:
            self._states.popleft()

    def state_dict(self) -> dict[str, Any]:
        made = self._delivered
        got = made if self.got is None else self.got
        if got < made:
            return {"delivered": got, "repeated": 0, "moved": self._moved, **_reduced(self._states[0])}
        stages = _reduced(self._state_of_stages()) if self._left is None else self._left
        return {"delivered": made, "repeated": got - made, "moved": self._moved, **stages}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where the state was saved, with a warning if the epoch has to be replayed."""
        delivered, stages = field_of(state, "delivered", int), state.get("stages")
        self._moved = bool(state.get("moved"))
        if delivered == 0 and not self._moved:
            self._run_to(0)
        elif stages is None:
            self._replay(delivered, str(state.get("replay")))
        else:
            if self._delivered:
                self._run_to(0)
            try:
                if held := state.get("held"):
                    stages = begun_with(self._source.state_dict(), held, stages)
                self._source.load_state_dict(stages)
                self._delivered = delivered
            except LookupError as error:
                self._replay(delivered, str(error))

    def _state_of_stages(self) -> dict[str, Any]:
        return _state_or_reason(self._source.state_dict)

    def _replay(self, delivered: int, reason: str) -> None:
        if self._moved:
            raise ValueError(
                f"this epoch cannot be continued: it would have to be run again from its start ({reason}), "
                "and other ranks began it. Load an older state, or begin the epoch again"
            )
        if not self._same_order:
            raise ValueError(
                f"this epoch cannot be continued: it would have to be run again from its start ({reason}), "
                "and with in_order=False elements come in another order then. Use in_order=True, or begin "
                "the epoch again"
            )
        warn(
            f"the stages after the loader are continued by running the first {delivered} elements of the "
            f"epoch again ({reason})",
            UserWarning,
        )
        self._run_to(delivered)
