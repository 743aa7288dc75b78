"""The stream of stages behind a loader. It resumes exactly, or by replay if a stage cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

from mpwds.loader.resume.progress import EpochProgress, warn_of_empty_epoch
from mpwds.loader.resume.state import field, progress_as_state, progress_from_state
from mpwds.pipeline.iterator_streams import skip
from mpwds.pipeline.stream import Address, Description, Stream
from mpwds.warn import warn

STATES_KEPT = 32
"""States kept of each worker: the newest, and fewer and fewer of the older ones. A stage may hold rows of old
batches, which are recomputed from the state before them."""

Batch: TypeAlias = "tuple[int, int]"
"""A batch's address: the worker, and the batch's number among that worker's."""


class LoaderIterator(Protocol):
    """An iteration of a loader."""

    progress: EpochProgress
    place: Batch

    def __next__(self) -> Any: ...

    def remake(self, worker: int) -> tuple[int, Any]:
        """Returns the number and the batch that a worker sends next, which had been delivered before."""
        ...


class LoaderStream:
    """A loader's batches in an epoch, as a stream.

    ``iterate`` begins the loader's iteration at a progress, or at the epoch's start. Batches can be fetched
    only while a state is loaded, and only those that the state names as held: each worker begins at the
    earliest of its own.
    """

    def __init__(self, iterate: Callable[[EpochProgress | None], LoaderIterator]) -> None:
        self._iterate = iterate
        self._held: dict[Batch, int] = {}
        self._remade: dict[Batch, Any] = {}
        self._begin(None)

    def __iter__(self) -> LoaderStream:
        return self

    def __next__(self) -> tuple[Address, Any]:
        if self._held:
            self._held, self._remade = {}, {}
        element = next(self._iterator)
        return self._iterator.place, element

    def fetch(self, address: Any) -> Any:
        worker, number = place = (address[0], address[1])
        if place not in self._held:
            raise LookupError(f"a stage holds {self.describe(address)}, and its state does not name it")
        while place not in self._remade:
            if self._iterator.progress.workers[worker].received > number:
                raise LookupError(f"{self.describe(address)} was asked for more often than its state says")
            made, batch = self._iterator.remake(worker)
            if (worker, made) in self._held:
                self._remade[worker, made] = batch
        self._held[place] -= 1
        return self._remade[place] if self._held[place] else self._remade.pop(place)

    def describe(self, address: Any, element: object = None) -> Description:
        worker, number = address
        return Description.of_sample(element, Description(f"element {number} that worker {worker} delivered"))

    def state_dict(self) -> dict[str, Any]:
        return {"loaded": progress_as_state(self._iterator.progress)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        loaded = state["loaded"]
        progress = progress_from_state(loaded)
        self._held = {(worker, number): count for worker, number, count in loaded.get("held", ())}
        for worker, number in self._held:
            progress.workers[worker].received = min(progress.workers[worker].received, number)
        self._remade = {}
        self._begin(progress)

    def _begin(self, progress: EpochProgress | None) -> None:
        self._iterator = self._iterate(progress)
        for worker in self._iterator.progress.workers:
            worker.keeps = STATES_KEPT


class ResumableStream:
    """The stream of stages behind a loader.

    Its state is the number of elements delivered, and the stages' state. If a stage has no state, or cannot
    load it, the epoch is replayed from its start.

    Args:
        start: Begins the epoch.
        same_order: Whether the loader delivers in the same order each time.
        unaddressed: The stage that yields elements without addresses, if there is one.
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

    def __iter__(self) -> ResumableStream:
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

    def describe(self, address: Any, element: object = None) -> Description:
        return self._stream.describe(address, element)

    def state_dict(self) -> dict[str, Any]:
        if self._unaddressed is not None:
            reason = f"{self._unaddressed} gives elements without addresses"
            return {"delivered": self._delivered, "replay": reason}
        try:
            stream = _reduced_to_needed(self._stream.state_dict())
        except Exception as error:  # a stage may have no state: the warning about the replay names the error
            return {"delivered": self._delivered, "replay": f"{type(error).__name__}: {error}"}
        return {"delivered": self._delivered, "stream": stream}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where the state was saved, with a warning if the epoch has to be replayed.

        Raises:
            ValueError: The epoch has to be replayed, and that would yield another order.
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
            raise ValueError(
                f"this epoch cannot be continued: it would have to be run again from its start ({reason}), "
                "and with in_order=False elements come in another order then. Use in_order=True, or begin "
                "the epoch anew"
            )
        warn(
            f"the stages behind the loader are continued by running the first {delivered} elements of the "
            f"epoch again ({reason})",
            UserWarning,
        )
        self._begin(delivered)
        skip(self._stream, delivered)


def _reduced_to_needed(state: Any) -> Any:
    """The state of the last stage behind a loader, reduced to what resuming needs.

    For each worker, only the last state before all batches that stages hold parts of is kept. Those batches
    are named, so that they can be fetched while the state is loaded.
    """
    held: Counter[Batch] = Counter()

    def reduced(state: Any) -> Any:
        if "loaded" in state:
            return {**state, "loaded": _reduced(state["loaded"], held)}
        if "source" not in state:  # this stage does not say what it holds
            return state
        held.update(_batches_in(state.get("held", ())))
        return {**state, "source": reduced(state["source"])}

    return reduced(state)


def _reduced(loaded: Any, held: Counter[Batch]) -> Any:
    workers = []
    batches: list[list[int]] = []
    for index, worker in enumerate(loaded["workers"]):
        delivered = worker["delivered"]
        # A stage may hold elements with addresses of its own, which could look like those of any batches.
        own = sorted(number for other, number in held if other == index and number < delivered)
        first = own[0] if own else delivered
        before = [entry for entry in worker["states"] if entry[0] <= first]
        workers.append({**worker, "states": before[-1:]})
        batches += [[index, number, held[index, number]] for number in own]
    return {**loaded, "workers": workers, "held": batches}


def _batches_in(addresses: Any) -> Iterator[Batch]:
    """The batches in addresses that stages composed of them: the innermost pairs of integers."""
    if isinstance(addresses, (list, tuple)):
        if len(addresses) == 2 and type(addresses[0]) is type(addresses[1]) is int:
            yield addresses[0], addresses[1]
        else:
            for address in addresses:
                yield from _batches_in(address)
