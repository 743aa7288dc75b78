"""The stream of what a loader delivers. Batches that stages held parts of are made again for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from mpwds.loader.progress import EpochProgress
from mpwds.loader.state import progress_as_state, progress_from_state
from mpwds.pipeline.stream import Address, Description

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


def only_needed(state: Any) -> Any:
    """The state of stages behind a loader, with that state of each worker alone that it takes to go on.

    Args:
        state: What the last stage's ``state_dict`` returned.
    """

    def lessened(loaded: Any, held: Counter[Batch]) -> Any:
        workers = []
        for index, worker in enumerate(loaded["workers"]):
            first = min((number for other, number in held if other == index), default=worker["delivered"])
            before = [entry for entry in worker["states"] if entry[0] <= first]
            workers.append({**worker, "states": before[-1:]})
        return {**loaded, "workers": workers}

    return _with_loaded(state, lessened)


def naming_what_is_held(state: Any) -> Any:
    """The same state, where the part of :class:`Delivered` names the batches whose parts stages held."""

    def naming(loaded: Any, held: Counter[Batch]) -> Any:
        return {**loaded, "held": [[*place, count] for place, count in held.items()]}

    return _with_loaded(state, naming)


def _with_loaded(state: Any, change: Callable[[Any, Counter[Batch]], Any]) -> Any:
    loaded = _find_loaded(state)
    if loaded is None:
        return state
    delivered = [worker["delivered"] for worker in loaded["workers"]]
    held: Counter[Batch] = Counter()
    _count_places(state, delivered, held)
    changed = change(loaded, held)

    def replaced(value: Any) -> Any:
        if value is loaded:
            return changed
        return {key: replaced(item) for key, item in value.items()} if isinstance(value, Mapping) else value

    return replaced(state)


def _find_loaded(state: Any) -> Any:
    if not isinstance(state, Mapping):
        return None
    if "loaded" in state:
        return state["loaded"]
    return next(filter(None, map(_find_loaded, state.values())), None)


def _count_places(state: Any, delivered: list[int], found: Counter[Batch]) -> None:
    """Counts all pairs of numbers that may be places of batches. Too many cost time, nothing else."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            if key != "loaded":
                _count_places(value, delivered, found)
    elif isinstance(state, (list, tuple)):
        if len(state) == 2 and type(state[0]) is int and type(state[1]) is int:
            worker, number = state
            if 0 <= worker < len(delivered) and 0 <= number < delivered[worker]:
                found[worker, number] += 1
        else:
            for value in state:
                if isinstance(value, (list, tuple, Mapping)):
                    _count_places(value, delivered, found)
