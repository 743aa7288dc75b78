"""The stream of what a loader delivers. Batches that stages held parts of are made again for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

from mpwds.loader.progress import EpochProgress
from mpwds.loader.state import progress_as_state, progress_from_state
from mpwds.pipeline.place import Place
from mpwds.pipeline.stream import Address

STATES_KEPT = 32
"""States that are kept of each worker: the newest, and fewer and fewer of those before. What a stage holds
may be from long ago, and is made again from the state before it."""

Batch: TypeAlias = "tuple[int, int]"
"""A batch's place: its worker, and its number among that worker's."""


class Delivering(Protocol):
    """An iteration of a loader."""

    progress: EpochProgress
    place: Batch

    def __next__(self) -> Any: ...

    def remake(self, worker: int) -> tuple[int, Any]:
        """The number and the batch that a worker sends next, which was delivered before."""
        ...


class Delivered:
    """What a loader delivers in an epoch, as a stream. A batch's address is its place.

    Batches can be fetched while a state is loaded, and then those alone that the state names: its workers
    begin at the earliest of these.

    Args:
        iterate: Begins the loader's iteration, from where a progress says, or from the epoch's start.
    """

    def __init__(self, iterate: Callable[[EpochProgress | None], Delivering]) -> None:
        self._iterate = iterate
        self._held: dict[Batch, int] = {}
        self._remade: dict[Batch, Any] = {}
        self._begin(None)

    def __iter__(self) -> Delivered:
        return self

    def __next__(self) -> tuple[Address, Any]:
        if self._held:
            self._held, self._remade = {}, {}
        element = next(self._iterator)
        return self._iterator.place, element

    def fetch(self, address: Any) -> Any:
        worker, number = place = (address[0], address[1])
        if place not in self._held:
            raise LookupError(f"{self.describe(address)} cannot be made again")
        while place not in self._remade:
            if self._iterator.progress.workers[worker].received > number:
                raise LookupError(f"{self.describe(address)} was asked for more often than its state says")
            made, batch = self._iterator.remake(worker)
            if (worker, made) in self._held:
                self._remade[worker, made] = batch
        self._held[place] -= 1
        return self._remade[place] if self._held[place] else self._remade.pop(place)

    def describe(self, address: Any, element: object = None) -> Place:
        worker, number = address
        return Place.of_sample(element, Place(f"element {number} that worker {worker} delivered"))

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


def only_needed(state: Any) -> Any:
    """The state of stages behind a loader, reduced to what resuming needs.

    Of the states of each worker, only the last one before all batches that stages hold parts of is kept.
    Those batches are named, so that they can be fetched while the state is loaded.

    Args:
        state: What the last stage's ``state_dict`` returned.
    """
    held: Counter[Batch] = Counter()

    def reduced(state: Any) -> Any:
        if "loaded" in state:
            return {**state, "loaded": _reduced(state["loaded"], held)}
        if "source" not in state:  # not a stage that says what it holds
            return state
        held.update(_batches_in(state.get("held", ())))
        return {**state, "source": reduced(state["source"])}

    return reduced(state)


def _reduced(loaded: Any, held: Counter[Batch]) -> Any:
    workers = []
    for index, worker in enumerate(loaded["workers"]):
        first = min((number for other, number in held if other == index), default=worker["delivered"])
        before = [entry for entry in worker["states"] if entry[0] <= first]
        workers.append({**worker, "states": before[-1:]})
    return {**loaded, "workers": workers, "held": [[*batch, count] for batch, count in held.items()]}


def _batches_in(addresses: Any) -> Iterator[Batch]:
    """The batches in addresses that stages made of theirs: the innermost pairs of numbers."""
    for address in addresses:
        if isinstance(address, (list, tuple)):
            if len(address) == 2 and type(address[0]) is type(address[1]) is int:
                yield address[0], address[1]
            else:
                yield from _batches_in(address)
