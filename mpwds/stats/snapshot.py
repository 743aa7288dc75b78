"""A worker's counters at one moment, as trainers, servers and pages read them.

Snapshots add up (processes of one worker, epochs) and subtract (what happened in between).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

THE_DATASET, WRITING_BATCHES = "the dataset", "writing batches"
"""Names of what every worker has: the work outside stages, and writing batches into shared memory."""


def stage_name(part: Any) -> str:
    """The name of a part of a pipeline: one line that is the same in all workers."""
    return str(part).partition("\n")[0]


@dataclass(frozen=True)
class StageSnapshot:
    """A stage's estimated time, its elements, whether it reads storage, and the bytes that it read there."""

    time_ns: int = 0
    elements: int = 0
    storage: bool = False
    nbytes: int = 0


@dataclass(frozen=True)
class CounterSnapshot:
    """Counters of a worker, in all of its processes.

    ``pid``, ``shard``, ``server`` and ``lost_s`` describe the latest moment and are no counts. ``server`` is
    the URL of the worker's server, which has not answered for ``lost_s`` seconds (0 if it answers). A server
    counts ``assigned_ns``, in which a client had the worker.
    """

    active_ns: int = 0
    waiting_ns: int = 0
    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    cpu_ns: int = 0
    queued_ns: int = 0
    restarts: int = 0
    assigned_ns: int = 0
    other: StageSnapshot = StageSnapshot()
    writing: StageSnapshot = StageSnapshot()
    stages: Mapping[str, StageSnapshot] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    shard: str = ""
    pid: int = 0
    server: str = ""
    lost_s: float = 0.0

    def __add__(self, more: CounterSnapshot) -> CounterSnapshot:
        counts = CounterSnapshot(**_combined(vars(self), vars(more), 1))
        pid, shard = more.pid or self.pid, more.shard or self.shard
        return replace(counts, pid=pid, shard=shard, server=more.server, lost_s=more.lost_s)

    def __sub__(self, before: CounterSnapshot) -> CounterSnapshot:
        counts = CounterSnapshot(**_combined(vars(self), vars(before), -1))
        return replace(counts, pid=self.pid, server=self.server, lost_s=self.lost_s)


NOTHING_COUNTED = CounterSnapshot()


def added(
    earlier: Mapping[int, CounterSnapshot], now: Mapping[int, CounterSnapshot]
) -> dict[int, CounterSnapshot]:
    """The counters of workers by index, with those of earlier processes or epochs."""
    more = {index: earlier.get(index, NOTHING_COUNTED) + counters for index, counters in now.items()}
    return {**earlier, **more}


def _combined(one: Mapping[str, Any], other: Mapping[str, Any], sign: int) -> dict[str, Any]:
    """Adds or subtracts values of the same name; what one side lacks counts as zero there."""
    zeros = {name: type(value)() for name, value in {**one, **other}.items()}
    return {name: _sum(one.get(name, zero), other.get(name, zero), sign) for name, zero in zeros.items()}


def _sum(one: Any, other: Any, sign: int) -> Any:
    if isinstance(one, StageSnapshot):
        return StageSnapshot(**_combined(vars(one), vars(other), sign))
    if isinstance(one, Mapping):
        return {name: value for name, value in _combined(one, other, sign).items() if value != 0}
    if isinstance(one, (bool, str)):
        return one or other
    return one + sign * other


_PLAIN = {"int": int, "float": float, "str": str, "bool": bool}


def plain_values(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass's numbers, flags and texts, which came from outside, as these types.

    Raises ``KeyError``, ``TypeError`` or ``ValueError`` if one is missing, or of another type.
    """
    types = {each.name: _PLAIN[str(each.type)] for each in fields(kind) if each.type in _PLAIN}
    return {name: convert(values[name]) for name, convert in types.items()}
