"""Shard patterns: variables, braces and globs, and the check of names from untrusted files."""

from __future__ import annotations

import glob
import math
import os
import re
import string
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any
from urllib.parse import unquote

from mpwds.errors import SecurityError
from mpwds.storage.streams.urls import (
    apply_rules,
    as_str,
    is_local,
    local_path,
    url_scheme,
    without_credentials,
)
from mpwds.suggestions import shown

MAX_NAMES = 1_000_000
"""The most names that patterns may stand for: about a petabyte of shards."""

_MAX_CHARACTERS = 1_000_000_000  # of all names
_TOKEN = re.compile(r"\\.|[{},]", re.DOTALL)
_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?")
_ALPHABET = string.ascii_uppercase + string.ascii_lowercase
_ESCAPED = re.compile(r"\\(.)")
_SHARDS_SHOWN = 3
_NESTED_VARIABLES = 10
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_NO_RANGE = re.compile(r"\{(\d+)(?:-|:|\.{3})(\d+)\}")
_GLOB = re.compile(r"[*?[]")
# One word that a shell leaves unchanged, and that cannot be an option.
_PLAIN_WORD = re.compile(r"(?:[\w/.:][\w@%+=:,./-]*)?", re.ASCII)


def expand_urls(urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """The shards of a pattern, or of an iterable of names.

    In a pattern (a string or a path), ``::`` separates patterns, ``${NAME}`` stands for the environment
    variable ``WDS_NAME``, and ``{000..131}`` and ``{a,b}`` for one name for each value. A local name with
    ``*``, ``?`` or ``[a-z]`` stands for the files that match, sorted, unless a file has that very name;
    ``**`` matches folders at any depth. Names from an iterable stay as they are.

    Args:
        urls: A pattern, or an iterable of shard names.

    Returns:
        The names in the order they are written; at least one.

    Raises:
        ValueError: There is no shard, a variable is not set, braces do not match, hold no range, or stand for
            more than a million names.
        FileNotFoundError: No file matches a glob.
        TypeError: ``urls``, or one of its elements, is neither a string nor a path.

    Source:
        ``webdataset.shardlists.expand_urls``.

    Example:
        >>> expand_urls("digits-{000..002}.tar::extra.tar")
        ['digits-000.tar', 'digits-001.tar', 'digits-002.tar', 'extra.tar']
        >>> expand_urls(["a{1}.tar", "b.tar"])
        ['a{1}.tar', 'b.tar']
    """
    return list(shard_names(urls))


def shard_names(urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Sequence[str]:
    """The shards that ``expand_urls`` lists. Those of a pattern without a glob are computed, not stored.

    Variables have the values, and globs the files, of this moment.

    Example:
        >>> shard_names("x-{000000..999999}.tar")
        Names('x-{000000..999999}.tar')
    """
    shards: Sequence[str]
    if isinstance(urls, Names):
        return urls
    if isinstance(urls, (str, os.PathLike)):
        shards = names = _names(as_str(urls))
        if any(_GLOB.search(part) and url_scheme(part) in ("", "file") for part in names.patterns):
            shards = [file for name in names for file in _matching(name)]
    elif isinstance(urls, (bytes, bytearray)) or not isinstance(urls, Iterable):
        raise TypeError(f"shards are given as a string or an iterable of strings, not {type(urls).__name__}")
    else:
        shards = [as_str(url) for url in urls]
    if not shards:
        raise ValueError(f"no shards: {shown(urls)} is empty")
    if "" in (shards.patterns if isinstance(shards, Names) else shards):
        raise ValueError(f"shard {shards.index('')} of {shown(urls)} has an empty name")
    return shards


def _names(pattern: str) -> Names:
    """The names that a pattern stands for, with globs as they are."""
    parts = [_substitute_variables(part) for part in pattern.split("::")]
    for part in parts:
        if (wrong := _NO_RANGE.search(part)) and url_scheme(part) != "pipe":
            raise ValueError(
                f"{wrong[0]} in {shown(without_credentials(part))} is no range: "
                f"did you mean {{{wrong[1]}..{wrong[2]}}}?"
            )
    return Names(*parts)


def check_url(url: str, trusted: bool, where: str) -> None:
    """Refuses a URL that runs a command, unless it comes from the user's own code.

    Call it for every URL that was read from a file or fetched. The user's environment may later turn such a
    URL into a command (``WDS_REWRITE``). Then the part of the URL that ends up in the command must be a plain
    word: no option (a leading ``-``), nothing that the shell would expand or split. Whatever it is rewritten
    to, it must not lead to a parent folder (``..``). All that a pattern expands to is checked, too, because
    ``{pipe,}:rm`` and ``${X}rm`` may hide a command.

    ``where`` names the place that the URL comes from, which the caller may have ``trusted``. Raises
    ``SecurityError`` if it is not trusted, and the URL is ``pipe:`` or breaks one of these rules.
    """
    if trusted:
        return
    try:
        readings: Iterable[str] = chain([url], _names(url))
    except ValueError:  # an invalid pattern: the caller that expands it raises
        readings = [url, *url.split("::")]
    for candidate in readings:
        if why := _danger(candidate):
            raise SecurityError(
                f"{where}: the URL {without_credentials(candidate)!r} {why}; if you wrote that file "
                "yourself, write the URL in your code, or load a specification with trusted=True"
            )


def _danger(url: str) -> str:
    """The reason for which a URL from an untrusted file is refused; empty if it is not."""
    if url_scheme(url) == "pipe":
        return "runs a command, which only URLs in your code and results of your WDS_REWRITE may"
    rewritten = apply_rules(url)
    if any(".." in unquote(piece).split("/") for piece in rewritten.pieces):
        return f"has '..', which leaves the place to which {rewritten.variable} in your environment maps it"
    if url_scheme(rewritten.url) == "pipe" and not all(map(_PLAIN_WORD.fullmatch, rewritten.pieces)):
        return (
            "would add an option, or characters with a meaning for the shell, to the command that "
            f"{rewritten.variable} in your environment makes of it"
        )
    return ""


def _matching(name: str) -> list[str]:
    """The local files that match a name, sorted; the name itself if it is no glob or names a file."""
    if _GLOB.search(name) is None or not is_local(name) or os.path.exists(path := local_path(name)):
        return [name]
    files = sorted(glob.glob(path, recursive=True))
    if not files:
        raise FileNotFoundError(f"no file matches {name}")
    # A file may be called "pipe:rm x".
    return [f"./{file}" if url_scheme(file) or file == "-" else file for file in files]


def _substitute_variables(pattern: str) -> str:
    """Replaces each ``${NAME}``, also in the values."""
    expanded = pattern
    for _ in range(_NESTED_VARIABLES):
        if _VARIABLE.search(expanded) is None:
            return expanded
        expanded = _VARIABLE.sub(lambda match: _variable(match[1], pattern), expanded)
    raise ValueError(f"variables of shard pattern {shown(pattern)} refer to each other without end")


def _variable(name: str, pattern: str) -> str:
    value = os.environ.get("WDS_" + name)
    if value is None:
        raise ValueError(
            f"shard pattern {shown(pattern)} needs the environment variable WDS_{name}, which is not set"
        )
    return value


def listed(urls: Sequence[str]) -> str:
    """Shards in Python's notation: the pattern; of a long list, the beginning."""
    if isinstance(urls, Names):
        return repr("::".join(urls.patterns))
    more = [f"... ({len(urls)} shards)"] if len(urls) > _SHARDS_SHOWN else []
    return f"[{', '.join([*map(repr, urls[:_SHARDS_SHOWN]), *more])}]"


class Names(Sequence[str]):
    """The names that the braces of patterns stand for, in order; each is computed when it is asked for.

    Braces are those of a shell: ``{000..131}``, ``{9..0..3}``, ``{a..c}`` and ``{a,b}``, also nested. A
    backslash takes the meaning from the character after it. Pickles of it are as short as the patterns.

    Args:
        patterns: The names of one follow those of another.

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

    __slots__ = "_names", "patterns"

    def __init__(self, *patterns: str) -> None:
        self.patterns = patterns
        parsed = list(map(_parsed, patterns))
        self._names = _alternatives(parsed)
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
    """A fragment of a pattern: the number of its names, and each by number."""

    count: int  # len() fails beyond 2**63
    name: Callable[[int], str]


def _values(values: Sequence[object], count: int = 1, written: str = "%s") -> _Fragment:
    """Written values: a text, letters, or numbers."""

    return _Fragment(count, lambda number: written % values[number])


def _combinations(parts: Sequence[_Fragment]) -> _Fragment:
    """A name for each combination of the parts' names, of which the last part's change first."""

    def name(number: int) -> str:
        names = []
        for part in reversed(parts):
            number, own = divmod(number, part.count)
            names.append(part.name(own))
        return _ESCAPED.sub(r"\1", "".join(reversed(names)))

    return _Fragment(math.prod(part.count for part in parts), name)


def _alternatives(parts: Sequence[_Fragment]) -> _Fragment:
    """The names of one part, and then those of the next."""
    starts = [0, *accumulate(part.count for part in parts)]

    def name(number: int) -> str:
        at = bisect_right(starts, number) - 1
        return parts[at].name(number - starts[at])

    return _Fragment(starts[-1], name)


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
