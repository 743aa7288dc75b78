"""A worker's counters, in memory that its trainer reads while it runs and after its death.

All numbers are signed integers of 64 bits in the machine's byte order. Only the worker writes them, each in
one store, so the trainer may read them at any moment. First come 16 cells, of which these are used:

    ===  ==========================================================================================
      0  nanoseconds inside epochs, from ``start`` to ``end``
      1  nanoseconds of these in which it waited for its trainer: for a free block, or for room in
         the channel
      2  batches sent (single elements, where the dataset makes no batches)
      3  samples in them
      4  bytes of their arrays
      5  nanoseconds of processor time inside epochs, of all its threads
      6  nanoseconds inside epochs in which its main thread could run, but others had the processors
      7  number of the stages that are described behind
      8  number of the kinds of error that are described behind those
    ===  ==========================================================================================

Cells 0 and 1 are negative while such a time runs: adding the present time, by ``time.monotonic_ns``,
which is one clock for all processes, gives the time until now.

Then come 48 stages of 128 bytes: nanoseconds, elements that came out, 1 for a stage that reads storage, and
in the last 104 bytes the name in UTF-8, padded with zeros. Nanoseconds are an estimate from some batches
(``worker.meter``): they show how the time is shared, not how long it was. Stage 0 stands for all work outside
stages, stage 1 for writing batches into shared memory. Behind these come 24 kinds of error, 128 bytes each:
the number of elements left out, and the name. An entry is written before it is counted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ACTIVE_NS, WAITING_NS, BATCHES, SAMPLES, NBYTES, CPU_NS, QUEUED_NS, _STAGES, _KINDS = range(9)

OTHER, WRITING = range(2)
"""Stages that always exist."""

THE_DATASET, WRITING_BATCHES = "the dataset", "writing batches"
"""What they are called in statistics and errors."""

_ENTRY_NBYTES = 128
_ENTRY_CELLS = _ENTRY_NBYTES // 8
_FIRST_STAGE = 16
_MOST_STAGES = 48
_FIRST_KIND = _FIRST_STAGE + _MOST_STAGES * _ENTRY_CELLS
_MOST_KINDS = 24
_NUMBERS = 3

NBYTES_OF_ALL = (_FIRST_KIND + _MOST_KINDS * _ENTRY_CELLS) * 8

THE_DATASET = "the dataset"
WRITING_BATCHES = "writing batches"
"""Names of these two, where a dataset has no stages."""

_FURTHER = "further ones"
"""Name of the last entry, which stands for all that do not fit."""


@dataclass(frozen=True)
class StageReading:
    """A stage's estimated time, the elements that came out of it, and whether it reads storage."""

    time_ns: int = 0
    elements: int = 0
    storage: bool = False


@dataclass(frozen=True)
class Reading:
    """A worker's counters at some moment. Readings can be added, and an earlier one subtracted."""

    active_ns: int = 0
    waiting_ns: int = 0
    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    cpu_ns: int = 0
    queued_ns: int = 0
    other: StageReading = StageReading()
    writing: StageReading = StageReading()
    stages: Mapping[str, StageReading] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, more: Reading) -> Reading:
        return _combined(self, more, 1)

    def __sub__(self, before: Reading) -> Reading:
        return _combined(self, before, -1)


class Counters:
    """The counters in ``NBYTES_OF_ALL`` bytes of memory, zeros at first; by default of this process."""

    def __init__(self, memory: Any = None) -> None:
        self._bytes = memoryview(bytearray(NBYTES_OF_ALL) if memory is None else memory)[:NBYTES_OF_ALL]
        self._cells = self._bytes.cast("q")
        self._kinds: dict[str, int] = {}

    def set(self, cell: int, value: int) -> None:
        """Writes one of the first cells."""
        self._cells[cell] = value

    def begin(self, cell: int, now_ns: int) -> None:
        """Begins a time that this cell counts."""
        self._cells[cell] -= now_ns

    def end(self, cell: int, now_ns: int) -> None:
        """Ends that time."""
        self._cells[cell] += now_ns

    def describe_stage(self, stage: int, name: str, storage: bool) -> int:
        """Describes the next stage; returns its number, or the last entry's if there are too many stages."""
        if stage >= _MOST_STAGES:
            return _MOST_STAGES - 1
        name = _FURTHER if stage == _MOST_STAGES - 1 else name
        first = _FIRST_STAGE + stage * _ENTRY_CELLS
        self._cells[first + 2] = storage
        self._write_name(first + _NUMBERS, name)
        self._cells[_STAGES] = max(stage + 1, self._cells[_STAGES])
        return stage

    def add_time(self, stage: int, time_ns: int) -> None:
        """Adds to the time of a stage."""
        self._cells[_FIRST_STAGE + stage * _ENTRY_CELLS] += time_ns

    def set_elements(self, stage: int, elements: int) -> None:
        """Writes how many elements came out of a stage."""
        self._cells[_FIRST_STAGE + stage * _ENTRY_CELLS + 1] = elements

    def count_skipped(self, kind: str) -> None:
        """Counts an element that an error handler left out, by the kind of error."""
        number = self._kinds.get(kind)
        if number is None:
            number = min(len(self._kinds), _MOST_KINDS - 1)
            self._kinds[kind] = number
            first = _FIRST_KIND + number * _ENTRY_CELLS
            self._write_name(first + 1, _FURTHER if number == _MOST_KINDS - 1 else kind)
            self._cells[_KINDS] = number + 1
        self._cells[_FIRST_KIND + number * _ENTRY_CELLS] += 1

    def read(self) -> Reading:
        """Everything counted so far."""
        cells, now_ns = self._cells, time.monotonic_ns()
        count = max(int(cells[_STAGES]), WRITING + 1)
        stages = [self._stage(number) for number in range(count)]
        skipped: dict[str, int] = {}
        for number in range(cells[_KINDS]):
            first = _FIRST_KIND + number * _ENTRY_CELLS
            skipped[self._name(first + 1)] = cells[first]
        return Reading(
            active_ns=_until(cells[ACTIVE_NS], now_ns),
            waiting_ns=_until(cells[WAITING_NS], now_ns),
            batches=cells[BATCHES],
            samples=cells[SAMPLES],
            nbytes=cells[NBYTES],
            cpu_ns=cells[CPU_NS],
            queued_ns=cells[QUEUED_NS],
            other=stages[OTHER][1],
            writing=stages[WRITING][1],
            stages=_told_apart(stages[WRITING + 1 :]),
            skipped=skipped,
        )

    def close(self) -> None:
        """Releases the memory."""
        self._cells.release()
        self._bytes.release()

    def _stage(self, number: int) -> tuple[str, StageReading]:
        first = _FIRST_STAGE + number * _ENTRY_CELLS
        time_ns, elements, storage = self._cells[first : first + _NUMBERS]
        return self._name(first + _NUMBERS), StageReading(time_ns, elements, bool(storage))

    def _write_name(self, cell: int, name: str) -> None:
        room = -(cell - _FIRST_STAGE) % _ENTRY_CELLS * 8
        text = name.encode("utf-8", "replace")[:room].ljust(room, b"\0")
        self._bytes[cell * 8 : cell * 8 + room] = text

    def _name(self, cell: int) -> str:
        room = -(cell - _FIRST_STAGE) % _ENTRY_CELLS * 8
        return bytes(self._bytes[cell * 8 : cell * 8 + room]).rstrip(b"\0").decode("utf-8", "ignore")


def _until(value: int, now_ns: int) -> int:
    """The time in a cell, which may still run."""
    return value if value >= 0 else value + now_ns


def _told_apart(stages: list[tuple[str, StageReading]]) -> dict[str, StageReading]:
    """The stages by name; the second of two that print alike is called ``map(crop) #2``."""
    named: dict[str, StageReading] = {}
    for name, reading in stages:
        unique, number = name, 2
        while unique in named:
            unique, number = f"{name} #{number}", number + 1
        named[unique] = reading
    return named


def _combined(one: Reading, other: Reading, sign: int) -> Reading:
    def stage(a: StageReading, b: StageReading) -> StageReading:
        return StageReading(
            a.time_ns + sign * b.time_ns, a.elements + sign * b.elements, a.storage or b.storage
        )

    def value(a: Any, b: Any) -> Any:
        if isinstance(a, int):
            return a + sign * b
        if isinstance(a, StageReading):
            return stage(a, b)
        return {name: stage(a.get(name, StageReading()), b.get(name, StageReading())) for name in {**a, **b}}

    values = {name: value(mine, vars(other)[name]) for name, mine in vars(one).items() if name != "skipped"}
    kinds = {**one.skipped, **other.skipped}
    skipped = {kind: one.skipped.get(kind, 0) + sign * other.skipped.get(kind, 0) for kind in kinds}
    return Reading(**values, skipped={kind: count for kind, count in skipped.items() if count})
