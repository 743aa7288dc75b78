"""Which samples and fields a command is about."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase

import typer

from mpwds.cli.inspect.expressions import Expression
from mpwds.cli.inspect.reading import Member, Problem, Sample, Wants
from mpwds.cli.inspect.shards import Shard, read_or_report
from mpwds.viewing.wording import printable


@dataclass(frozen=True)
class Choice:
    """A choice of samples by the options ``--key --number --where --fields --limit``.

    Attributes:
        keys: Globs, of which one matches a sample's key; empty for all samples.
        ranges: Ranges of numbers; empty for all samples.
        where: Condition on a sample.
        fields: Globs, of which one matches a field's name; empty for all fields.
        limit: The most samples.
    """

    keys: tuple[str, ...] = ()
    ranges: tuple[range, ...] = ()
    where: Expression | None = None
    fields: tuple[str, ...] = ()
    limit: int | None = None

    @property
    def end(self) -> int:
        """No sample from this number on is chosen."""
        return max((each.stop for each in self.ranges), default=sys.maxsize)

    def names(self, number: int, key: str) -> bool:
        """True if a sample is chosen, as far as its number and key say."""
        return (not self.ranges or any(number in each for each in self.ranges)) and _matches(key, self.keys)

    def wants(self, number: int, key: str, field: str) -> bool:
        """True if a field of a sample may be chosen."""
        return bool(key) and self.takes(field) and self.names(number, key)

    def tests(self, number: int, key: str, field: str) -> bool:
        """True if a field must be read to choose the sample."""
        if self.where is None or not key:
            return False
        return self.where.needs(field) and self.names(number, key)

    def takes(self, field: str) -> bool:
        """True if a field is chosen."""
        return _matches(field, self.fields)

    def members(self, sample: Sample) -> list[Member]:
        """The chosen fields of a sample."""
        return [member for member in sample.members if self.takes(member.field)]

    def holds(self, sample: Sample) -> bool:
        """True if a sample is chosen."""
        if not self.names(sample.number, sample.key):
            return False
        return self.where is None or self.where(sample.data(), sample.key)


class _UnknownFields:
    """Finds out which fields that the user names are in no sample."""

    def __init__(self, choice: Choice) -> None:
        of_where = choice.where.fields if choice.where is not None else set()
        self._unknown = {*choice.fields, *of_where}
        self._fields: dict[str, None] = {}

    def look_at(self, sample: Sample) -> None:
        if self._unknown:
            self._fields.update((member.field, None) for member in sample.members)
            self._unknown -= {name for name in self._unknown if self._is_there(name)}

    def _is_there(self, name: str) -> bool:
        return any(fnmatchcase(field, name) or field.startswith(f"{name}.") for field in self._fields)

    def tell(self) -> bool:
        """Names them on standard error; returns whether there are any."""
        unknown = sorted(self._unknown) if self._fields else []
        for name in unknown:
            there = ", ".join(self._fields)
            print(printable(f"no sample has a field {name!r}: there are {there}"), file=sys.stderr)
        return bool(unknown)


def make_choice(
    keys: Sequence[str] | None = None,
    numbers: str = "",
    where: str = "",
    fields: str = "",
    limit: int | None = None,
) -> Choice:
    """The choice that options, as they are written, make."""
    try:
        return Choice(
            tuple(keys or ()),
            tuple(map(_range, _words(numbers))),
            Expression(where) if where else None,
            tuple(_words(fields.lower())),
            limit,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def read_chosen(
    shards: Sequence[Shard], choice: Choice, wants: Wants, report: Callable[[Problem], None]
) -> Iterator[Sample]:
    """Yields the chosen samples, and reads nothing after the last number and the limit.

    Args:
        shards: The shards.
        choice: What is chosen.
        wants: Which fields to read, beside those that the choice depends on.
        report: Called with each damaged place.
    """

    unknown = _UnknownFields(choice)
    is_empty = True
    for sample in _read(shards, choice, wants, report, unknown):
        is_empty = False
        yield sample
    if not unknown.tell() and is_empty and (choice.keys or choice.ranges or choice.where):
        print("no sample is chosen by --key, --number and --where", file=sys.stderr)


def _read(
    shards: Sequence[Shard],
    choice: Choice,
    wants: Wants,
    report: Callable[[Problem], None],
    unknown: _UnknownFields,
) -> Iterator[Sample]:
    def needs(number: int, key: str, field: str) -> object:
        return wants(number, key, field) or choice.tests(number, key, field)

    number, left = 0, sys.maxsize if choice.limit is None else choice.limit
    for shard in shards:
        if not left or number >= choice.end:
            return
        with closing(read_or_report(shard, needs, number)) as read:
            for found in read:
                if isinstance(found, Problem):
                    report(found)
                elif isinstance(found, Sample):
                    number = found.number + 1
                    unknown.look_at(found)
                    if choice.holds(found):
                        left -= 1
                        yield found
                    if not left or number >= choice.end:
                        return


class SampleSelection:
    """The chosen samples, with their chosen fields alone, without those that damage may have made incomplete.

    Attributes:
        problems: How many problems there were, which standard error names.
    """

    def __init__(self, shards: Sequence[Shard], choice: Choice) -> None:
        self._shards = shards
        self._choice = choice
        self.problems = 0

    def __iter__(self) -> Iterator[Sample]:
        for sample in read_chosen(self._shards, self._choice, self._choice.wants, self.report):
            if not sample.is_whole:
                what = "left out: members may be missing, because the shard is damaged here"
                self.report(Problem(sample.shard, sample.offset, sample.key, "", what))
                continue
            sample.members = self._choice.members(sample)
            yield sample

    def report(self, problem: Problem) -> None:
        """Counts a problem and prints it on standard error."""
        self.problems += 1
        print(printable(str(problem)), file=sys.stderr)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _range(text: str) -> range:
    """``7`` or ``10:20``, of which either side may be missing."""
    start, colon, stop = text.partition(":")
    try:
        first = int(start or "0")
        found = range(first, int(stop) if stop else sys.maxsize if colon else first + 1)
    except ValueError:
        raise ValueError(f"{text!r} is no number of a sample, or a range of them such as 10:20") from None
    if first < 0 or not found:
        raise ValueError(f"{text!r} holds no number of a sample: they begin at 0, and a range before its end")
    return found


def _matches(name: str, globs: Sequence[str]) -> bool:
    return not globs or any(fnmatchcase(name, glob) for glob in globs)
