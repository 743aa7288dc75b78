"""The names that braces stand for: as many as a pattern has, and none of them stored."""

from __future__ import annotations

import math
import re
import string
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from mpwds.suggestions import shown

MAX_NAMES = 1_000_000
"""The most names that patterns may stand for: about a petabyte of shards."""

_MAX_CHARACTERS = 1_000_000_000  # of all names
_TOKEN = re.compile(r"\\.|[{},]", re.DOTALL)
_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?")
_ALPHABET = string.ascii_uppercase + string.ascii_lowercase
_ESCAPED = re.compile(r"\\(.)")


class Names(Sequence[str]):
    """The names that the braces of patterns stand for, in order; each is computed when it is asked for.

    Braces are those of a shell: ``{000..131}``, ``{9..0..3}``, ``{a..c}`` and ``{a,b}``, also nested. A
    backslash takes the meaning from the character after it. Pickles of it are as short as the patterns.

    Args:
        patterns: The names of one follow those of another.

    Attributes:
        may_be_empty: Whether one of the names is empty.

    Raises:
        ValueError: Braces do not match, or stand for more than a million names, or for names of more than a
            gigabyte in all (zeros to pad with multiply, too).

    Source:
        The package braceexpand, whose names these are.

    Example:
        >>> names = Names("x-{000000..899999}.tar", "y.{tar,txt}")
        >>> len(names), names[899_999], names[-2:]
        (900002, 'x-899999.tar', ['y.tar', 'y.txt'])
    """

    __slots__ = "_names", "may_be_empty", "patterns"

    def __init__(self, *patterns: str) -> None:
        self.patterns = patterns
        parsed = list(map(_parsed, patterns))
        self._names = _alternatives(parsed)
        self.may_be_empty = self._names.may_be_empty
        characters = sum(part.count * len(text) for part, text in zip(parsed, patterns, strict=True))
        if self._names.count > MAX_NAMES or characters > _MAX_CHARACTERS:
            count, text = max((part.count, text) for part, text in zip(parsed, patterns, strict=True))
            raise ValueError(
                f"the braces in {shown(text)} stand for {count} names; {MAX_NAMES} are allowed, "
                f"of {_MAX_CHARACTERS} characters in all. If you have that many shards, pass a list of names"
            )

    def __len__(self) -> int:
        return self._names.count

    def __getitem__(self, number: Any) -> Any:
        numbers = range(len(self))[number]
        name = self._names.name
        return name(numbers) if isinstance(numbers, int) else list(map(name, numbers))

    def __reduce__(self) -> Any:
        return Names, self.patterns

    def __repr__(self) -> str:
        return f"Names({', '.join(map(repr, self.patterns))})"


@dataclass(frozen=True)
class _Fragment:
    """A fragment of a pattern: the number of its names, whether one may be empty, and each by number."""

    count: int  # len() fails beyond 2**63
    may_be_empty: bool
    name: Callable[[int], str]


def _values(values: Sequence[object], count: int = 1, written: str = "%s") -> _Fragment:
    """Written values: a text, letters, or numbers."""

    def name(number: int) -> str:
        return written % values[number]

    return _Fragment(count, not name(0), name)


def _combinations(parts: Sequence[_Fragment]) -> _Fragment:
    """A name for each combination of the parts' names, of which the last part's change first."""

    def name(number: int) -> str:
        names = []
        for part in reversed(parts):
            number, own = divmod(number, part.count)
            names.append(part.name(own))
        return _ESCAPED.sub(r"\1", "".join(reversed(names)))

    return _Fragment(math.prod(part.count for part in parts), all(part.may_be_empty for part in parts), name)


def _alternatives(parts: Sequence[_Fragment]) -> _Fragment:
    """The names of one part, and then those of the next."""
    starts = [0, *accumulate(part.count for part in parts)]

    def name(number: int) -> str:
        at = bisect_right(starts, number) - 1
        return parts[at].name(number - starts[at])

    return _Fragment(starts[-1], any(part.may_be_empty for part in parts), name)


def _parsed(pattern: str) -> _Fragment:
    parts: list[_Fragment] = []
    depth = start = 0
    for token in _TOKEN.finditer(pattern):
        if token[0] == "{":
            if depth == 0:
                parts.append(_values([pattern[start : token.start()]]))
                start = token.end()
            depth += 1
        elif token[0] == "}":
            depth -= 1
            if depth == 0:
                parts += _in_braces(pattern[start : token.start()])
                start = token.end()
    if depth:
        raise ValueError(f"the braces in {shown(pattern)} do not match: write train-{{000..011}}.tar")
    return _combinations([*parts, _values([pattern[start:]])])


def _in_braces(text: str) -> list[_Fragment]:
    if numbers := _NUMBERS.fullmatch(text):
        first, last, step = numbers.groups()
        padded = any(re.match("-?0.", end) for end in (first, last))
        written = f"%0{max(len(first), len(last)) if padded else 0}d"
        return [_values(*_numbers(int(first), int(last), step), written)]
    if letters := _LETTERS.fullmatch(text):
        first, last, step = letters.groups()
        places, count = _numbers(_ALPHABET.index(first), _ALPHABET.index(last), step)
        return [_values([_ALPHABET[place] for place in places], count)]
    depth, cuts = 0, [-1]
    for token in _TOKEN.finditer(text):
        depth += (token[0] == "{") - (token[0] == "}")
        if token[0] == "," and depth == 0:
            cuts.append(token.start())
    if len(cuts) == 1:
        return [_values(["{"]), _parsed(text), _values(["}"])]
    cuts.append(len(text))
    return [_alternatives([_parsed(text[cut + 1 : end]) for cut, end in pairwise(cuts)])]


def _numbers(first: int, last: int, step: str | None) -> tuple[range, int]:
    """The numbers of a range, which includes its last, and how many they are."""
    stride = int(step or 1) or 1
    direction = 1 if first < last else -1
    return range(first, last + direction, direction * stride), abs(last - first) // stride + 1
