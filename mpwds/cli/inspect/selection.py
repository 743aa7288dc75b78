"""Which samples and fields a command is about."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from fnmatch import fnmatchcase

import typer

from mpwds.cli.inspect.expressions import Expression
from mpwds.cli.inspect.shards import Problem, Sample, Shard, Wants, read_or_report
from mpwds.cli.options import Chosen
from mpwds.viewing.wording import printable


class SampleSelection:
    """The samples of shards that a user chose by options, with their chosen fields alone.

    Iterating reads the fields, and leaves out samples that damage may have made incomplete. ``limit`` is the
    most samples, ``None`` for all. ``problems`` counts the problems that standard error names.
    """

    def __init__(self, shards: Sequence[Shard], chosen: Chosen, limit: int | None = None) -> None:
        try:
            self._ranges = tuple(map(_range, _words(chosen.number)))
            self._where = Expression(chosen.where) if chosen.where else None
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        self._shards = shards
        self._keys = chosen.key or ()
        self._fields = _words(chosen.fields.lower())
        self._end = max((each.stop for each in self._ranges), default=sys.maxsize)
        self.limit = limit
        self.problems = 0

    def __iter__(self) -> Iterator[Sample]:
        for sample in self.read(self.takes):
            if sample.is_whole:
                yield sample
            else:
                what = "left out: members may be missing, because the shard is damaged here"
                self.report(Problem(sample.shard, sample.offset, sample.key, "", what))

    def read(self, wants: Wants, report: Callable[[Problem], None] | None = None) -> Iterator[Sample]:
        """Yields all chosen samples, and reads nothing after the last number and the limit.

        ``wants`` says which fields to read, beside those that the choice depends on. ``report`` is called
        with each damaged place; by default :meth:`report`.
        """

        def needs(number: int, key: str, field: str) -> object:
            where = self._where
            is_tested = where is not None and key and where.needs(field) and self._names(number, key)
            return is_tested or wants(number, key, field)

        unknown = {*self._fields, *(self._where.fields if self._where is not None else ())}
        seen: dict[str, None] = {}
        number = count = 0
        for shard in self._shards:
            if count == self.limit or number >= self._end:
                break
            with closing(read_or_report(shard, needs, number)) as read:
                for found in read:
                    if isinstance(found, Problem):
                        (report or self.report)(found)
                    if not isinstance(found, Sample):
                        continue
                    number = found.number + 1
                    if unknown:
                        seen.update((member.field, None) for member in found.members)
                        unknown -= {name for name in unknown if _is_there(name, seen)}
                    if self._holds(found):
                        count += 1
                        found.members = [each for each in found.members if _matches(each.field, self._fields)]
                        yield found
                    if count == self.limit or number >= self._end:
                        break
        for name in sorted(unknown) if seen else ():
            print(printable(f"no sample has a field {name!r}: there are {', '.join(seen)}"), file=sys.stderr)
        if not count and not (unknown and seen) and (self._keys or self._ranges or self._where):
            print("no sample is chosen by --key, --number and --where", file=sys.stderr)

    def takes(self, number: int, key: str, field: str) -> bool:
        """True if a field of a sample may be chosen."""
        return bool(key) and _matches(field, self._fields) and self._names(number, key)

    def report(self, problem: Problem) -> None:
        """Counts a problem and prints it on standard error."""
        self.problems += 1
        print(printable(str(problem)), file=sys.stderr)

    def _names(self, number: int, key: str) -> bool:
        in_ranges = not self._ranges or any(number in each for each in self._ranges)
        return in_ranges and _matches(key, self._keys)

    def _holds(self, sample: Sample) -> bool:
        if not self._names(sample.number, sample.key):
            return False
        return self._where is None or self._where(sample.data(), sample.key)


def _is_there(name: str, fields: Iterable[str]) -> bool:
    return any(fnmatchcase(field, name) or field.startswith(f"{name}.") for field in fields)


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
