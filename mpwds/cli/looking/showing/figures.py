"""Figures of shards: samples, bytes, fields and problems."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from mpwds.cli.looking.samples.reading import Problem, Sample
from mpwds.cli.looking.samples.sources import Shard, read_or_report
from mpwds.cli.looking.showing.describing import FieldFigures

_MOST_PROBLEMS = 100
_MOST_FIELDS = 1000
_OTHERS = "(others)"


@dataclass
class ShardFigures:
    """What is in a shard, or in several.

    Attributes:
        name: The shard.
        samples: How many there are.
        nbytes: Bytes of data in them.
        fields: Figures of each field; of more than a thousand, those after them are counted as one.
        problems: The first problems.
        problem_count: How many there are in all.
    """

    name: str
    samples: int = 0
    nbytes: int = 0
    fields: dict[str, FieldFigures] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0

    def add(self, found: Sample | Problem) -> None:
        """Adds a sample or a problem."""
        if isinstance(found, Problem):
            self.problem_count += 1
            if len(self.problems) < _MOST_PROBLEMS:
                self.problems.append(found)
            return
        self.samples += 1
        self.nbytes += found.size
        for member in found.members:
            self._field(member.field).add(member.field, member.size, member.data)

    def merge(self, other: ShardFigures) -> None:
        """Adds those of another shard."""
        self.samples += other.samples
        self.nbytes += other.nbytes
        self.problem_count += other.problem_count
        self.problems += other.problems[: _MOST_PROBLEMS - len(self.problems)]
        for name, figures in other.fields.items():
            self._field(name).merge(figures)

    def as_dict(self) -> dict[str, Any]:
        """The figures that JSON shows, without the problems."""
        fields = {
            name: {
                "samples": each.samples,
                "bytes": {"total": each.total, "min": each.least, "mean": each.mean, "max": each.largest},
                "looked_into": each.looked_into,
                "kinds": dict(each.kinds.most_common()),
                "shapes": [{"min": low, "max": high} for low, high in each.shapes.values()],
                "values": None if each.low is None else {"min": each.low, "max": each.high},
            }
            for name, each in self.fields.items()
        }
        return {
            "samples": self.samples,
            "bytes": self.nbytes,
            "fields": fields,
            "problems": self.problem_count,
        }

    def _field(self, name: str) -> FieldFigures:
        if name not in self.fields and len(self.fields) >= _MOST_FIELDS:
            name = _OTHERS
        return self.fields.setdefault(name, FieldFigures())


@dataclass(frozen=True)
class SumUp:
    """Function that makes the figures of a shard, looking into the data of the first ``looks`` samples."""

    looks: int

    def __call__(self, shard: Shard) -> ShardFigures:
        figures = ShardFigures(shard.name)
        with closing(read_or_report(shard, self._wants)) as read:
            for found in read:
                if isinstance(found, (Sample, Problem)):
                    figures.add(found)
        return figures

    def _wants(self, number: int, key: str, name: str) -> bool:
        return bool(key) and number < self.looks
