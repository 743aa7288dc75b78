"""Keep a stream's elements in memory."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from mpwds.pipeline.caching.stored import Store, Stored, part_of
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.stream import Address, Stream

_IMMUTABLE = {bool, int, float, complex, str, bytes, type(None)}


def mcached() -> Cached:
    """Stage that keeps its source's elements in memory, and yields these from the second epoch on.

    Put it after stages that are slow and the same in every epoch (``decode``), and before those that are not
    (``shuffle``, random augmentation). The stages before it run as in epoch 0, in every epoch. If an epoch
    stops early, the next one yields what is stored and continues with the source.

    The memory belongs to the stage object in each process: a worker keeps its own part as long as it lives
    (workers of ``MultiLoader`` do; those of torch's ``DataLoader`` with ``persistent_workers=True``). It is
    not pickled. Elements are copied, so a later stage may change them. The source must be finite: resampled
    shards never complete it.

    Example:
        >>> cached = mcached()
        >>> list(cached("ab")), list(cached("cd"))
        (['a', 'b'], ['a', 'b'])
    """
    return Cached()


@dataclass(frozen=True)
class Cached(Filter):
    """The stage that ``mcached`` makes, by webdataset's name (``webdataset.filters.Cached``)."""

    pins_epoch = True
    _parts: _Memories = field(default_factory=lambda: _Memories(), repr=False, compare=False)

    def __str__(self) -> str:
        return "mcached()"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return Stored(source, self._parts[part_of(context)])


class _Memories(dict[str, "_Memory"]):
    """The memories of a stage's streams, by part. Copies of the stage, and pickles, are empty."""

    def __missing__(self, part: str) -> _Memory:
        return self.setdefault(part, _Memory())

    def __reduce__(self) -> tuple[type[_Memories], tuple[()]]:
        return _Memories, ()


class _Memory(Store):
    survives = False

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._elements: list[tuple[Address, Any]] = []
        self._positions: dict[Address, int] = {}
        self._states: dict[int, dict[str, Any]] = {}
        self._complete = False

    def count(self) -> int:
        return len(self._elements)

    def is_complete(self) -> bool:
        return self._complete

    def get(self, position: int) -> tuple[Address, Any]:
        address, element = self._elements[position]
        return address, copied(element)

    def find(self, address: Address) -> int | None:
        return self._positions.get(address)

    def append(self, position: int, address: Address, element: Any) -> None:
        if position == len(self._elements):
            self._elements.append((address, copied(element)))
            self._positions[address] = position

    def set_checkpoint(self, position: int, state: dict[str, Any]) -> None:
        self._states[position] = copied(state)

    def checkpoint(self, position: int) -> tuple[int, dict[str, Any] | None]:
        at = max((at for at in self._states if at <= position), default=0)
        return at, copied(self._states.get(at))

    def finish(self, count: int) -> None:
        self._complete = count == len(self._elements)


def copied(element: Any) -> Any:
    """A copy of an element that shares no mutable object with it."""
    kind = type(element)
    if kind in _IMMUTABLE:
        return element
    if kind is dict:
        return {key: copied(value) for key, value in element.items()}
    if kind is list:
        return [copied(value) for value in element]
    if kind is tuple:
        return tuple([copied(value) for value in element])
    return copy.deepcopy(element)
