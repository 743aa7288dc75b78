"""The number of servers that a fleet should have, by what its trainers tell."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mpwds.cluster.actors import TrainerFigures


@dataclass
class Scaling:
    """Decides, reading by reading, how many servers trainers need.

    If a trainer waits for batches more than ``waits`` of its time, in several readings on end, there will be
    as many servers as should end that. A server is taken away if no trainer waits, and one has no trainer, or
    the workers that remain would be busy for less than ``busy`` of their time. In between nothing changes, so
    that the number does not swing.

    Args:
        waits: The share of a trainer's time that it may wait for batches.
        busy: The share of their time that workers may work after a server is taken away.
        readings: Readings in which the same is seen before the number grows; five times as many before it
            falls.
    """

    waits: float = 0.05
    busy: float = 0.8
    readings: int = 3
    _before: dict[str, TrainerFigures] = field(default_factory=dict)
    _servers: int = 0
    _enough: int = 0  # readings on end in which so many served, and no trainer waited too long
    _seen: int = 0  # readings on end with too few servers; below 0, with too many

    @property
    def is_enough(self) -> bool:
        """True if those that serve have sufficed for some time: servers that have yet to start may go."""
        return self._enough >= self.readings

    def decide(self, servers: int, trainers: dict[str, TrainerFigures], idle: int = 0) -> int:
        """The number of servers from now on; ``servers`` serve now, and ``idle`` of them have no trainer.

        ``trainers`` are the figures of all trainers. While some of the servers have no work of theirs yet,
        the number grows no more. While no trainer trains, it stays.
        """
        steps = [_since(self._before[name], now) for name, now in trainers.items() if name in self._before]
        self._before = trainers
        used = {url for now in trainers.values() for url in now.servers}
        steps = [step for step in steps if step.seconds > 0]
        if servers != self._servers:
            self._servers, self._enough = servers, 0
        if not steps:  # nobody has told anything new
            return servers
        waiting = max(step.waited_s / step.seconds for step in steps)
        active_s = sum(step.workers_active_s for step in steps)
        working = 1 - sum(step.workers_waited_s for step in steps) / active_s if active_s else 1.0
        all_work = len(used) >= servers
        self._enough = 0 if waiting > self.waits else self._enough + 1
        if waiting > self.waits and all_work:
            self._seen = max(self._seen, 0) + 1
        elif (servers > 1 and waiting < self.waits / 2) and (
            idle or (all_work and working * servers / (servers - 1) < self.busy)
        ):
            self._seen = min(self._seen, 0) - 1
        else:
            self._seen = 0
        if self._seen >= self.readings:
            self._seen = 0
            return min(2 * servers, math.ceil(servers / max(1 - waiting, 0.1)))
        if self._seen <= -5 * self.readings:
            self._seen = 0
            return servers - 1
        return servers


def _since(before: TrainerFigures, now: TrainerFigures) -> TrainerFigures:
    return TrainerFigures(
        now.waited_s - before.waited_s,
        now.seconds - before.seconds,
        now.workers_waited_s - before.workers_waited_s,
        now.workers_active_s - before.workers_active_s,
        now.servers,
    )
