"""What is wrong with the samples of shards."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from mpwds.cli.looking.checking.checks import check_checksums, make_decoder
from mpwds.cli.looking.samples.reading import Problem, Sample, all_data
from mpwds.cli.looking.samples.sources import Shard
from mpwds.errors import ShardError

_USUAL_SHARE = 0.95
_MOST_KEPT = 1000  # problems of a shard, and samples of one set of fields
_MOST_SETS = 100  # sets of fields in a shard

FieldSet = tuple[str, ...]


class Checker:
    """Function that checks the samples of one shard, in order.

    Args:
        decode: Decode fields, too.
    """

    def __init__(self, decode: bool) -> None:
        self._decode = make_decoder() if decode else None
        self.offsets: dict[str, int] = {}
        """Where the first sample of each key begins."""

    def __call__(self, sample: Sample) -> Iterator[Problem]:
        """Yields what is wrong with a sample: its key, and the fields that have data."""
        before = self.offsets.setdefault(sample.key, sample.offset)
        if before != sample.offset:
            yield _problem(sample, f"the sample at offset {before} has the same key")
        for member in sample.members:
            if member.data is None:
                continue
            try:
                check_checksums(member.data)
                if self._decode is not None:
                    self._decode(member.field, member.data)
            except ImportError:  # concerns every sample
                raise
            except Exception as error:  # decoders raise many kinds
                reason = str(error) or type(error).__name__
                yield Problem(sample.shard, member.offset, sample.key, member.field, reason)


@dataclass
class Report:
    """What verifying a shard found. Can be pickled.

    Attributes:
        shard: The shard.
        samples: How many there are.
        problems: The first of what is wrong.
        problem_count: How many problems there are in all.
        sets: How many samples, of those that are not damaged, have each set of fields.
        places: The first samples of each set, without their data.
        keys: A number of 64 bits for each key.
        is_readable: Whether there are samples in it, or nothing is wrong.
    """

    shard: str
    samples: int = 0
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0
    sets: Counter[FieldSet] = field(default_factory=Counter)
    places: dict[FieldSet, list[Sample]] = field(default_factory=dict)
    keys: np.ndarray[tuple[int], np.dtype[np.uint64]] = field(default_factory=lambda: np.empty(0, np.uint64))
    is_readable: bool = True

    def add(self, problem: Problem) -> None:
        """Adds a problem."""
        self.problem_count += 1
        if len(self.problems) < _MOST_KEPT:
            self.problems.append(problem)

    def count(self, sample: Sample, is_sound: bool) -> None:
        """Counts a sample, and its fields unless it is known to be damaged."""
        self.samples += 1
        if not is_sound:
            return
        fields = tuple(sorted(member.field for member in sample.members))
        if fields not in self.sets and len(self.sets) >= _MOST_SETS:
            return
        self.sets[fields] += 1
        places = self.places.setdefault(fields, [])
        if len(places) < _MOST_KEPT:
            places.append(Sample(sample.shard, sample.number, sample.key, sample.offset))


@dataclass(frozen=True)
class Verify:
    """Function that reads a shard from end to end, and reports what is wrong with it."""

    decode: bool

    def __call__(self, shard: Shard) -> Report:
        report, check = Report(shard.name), Checker(self.decode)
        try:
            with closing(shard.read(all_data)) as read:
                for found in read:
                    if isinstance(found, Problem):
                        report.add(found)
                    elif isinstance(found, Sample):
                        problems = list(check(found))
                        for problem in problems:
                            report.add(problem)
                        report.count(found, not (problems or found.interrupted))
            for what in shard.contradictions(report.samples):
                report.add(Problem(shard.name, 0, "", "", what))
        except (OSError, ShardError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            report.add(Problem(shard.name, 0, "", "", f"it cannot be read: {reason}"))
        report.is_readable = report.samples > 0 or not report.problem_count
        report.keys = np.array(sorted(map(_hash, check.offsets)), np.uint64)
        return report


def usual_fields(reports: Sequence[Report]) -> frozenset[str]:
    """The fields that nearly all samples (95 %) have, so that every sample should."""
    counts: Counter[str] = Counter()
    for report in reports:
        for fields, count in report.sets.items():
            counts.update(dict.fromkeys(fields, count))
    total = sum(report.sets.total() for report in reports)
    return frozenset(name for name, count in counts.items() if count >= _USUAL_SHARE * total)


def add_incomplete(reports: Sequence[Report]) -> None:
    """Adds a problem to the reports for each sample that lacks a field which nearly all others have."""
    usual = usual_fields(reports)
    for report in reports:
        for fields, places in report.places.items():
            if lacking := usual.difference(fields):
                for sample in places:
                    report.add(_problem(sample, lacks(lacking)))
                report.problem_count += report.sets[fields] - len(places)
        report.problems.sort(key=lambda problem: problem.offset)


def lacks(fields: frozenset[str]) -> str:
    """How a problem is worded."""
    return f"it lacks {', '.join(sorted(fields))}, which nearly all other samples have"


def keys_in_several(reports: Sequence[Report]) -> int:
    """How many keys occur in more than one shard."""
    keys = [np.empty(0, np.uint64), *(report.keys for report in reports)]
    _, counts = np.unique(np.concatenate(keys), return_counts=True)
    return int((counts > 1).sum())


def _problem(sample: Sample, what: str) -> Problem:
    return Problem(sample.shard, sample.offset, sample.key, "", what)


def _hash(key: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big"
    )
