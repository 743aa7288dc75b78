"""Pick fields of dict samples into tuples by patterns."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import Count, one_of_each
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handled import Applied
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.stages.fields import alternatives, check_sample
from mpwds.pipeline.stream import Stream

_NAMES_KEPT = 1000  # field names are data: there may be a new one in each sample


def extract_keys(
    *patterns: str | Iterable[str],
    duplicate_is_error: bool = True,
    ignore_missing: bool = False,
    handler: Handler = reraise_exception,
) -> ExtractKeys:
    """Stage that turns dict samples into tuples of the fields that match patterns.

    Patterns are those of the shell (``*``, ``?``, ``[a-z]``) and match a field's name, with or without a dot
    before it: ``"*.png"`` matches the fields ``png`` and ``left.png``.

    Args:
        patterns: One for each field of the tuple; ``"*.png;*.jpg"``, or a list, matches either.
        duplicate_is_error: Whether it is an error if several fields match a pattern; else the first one is
            taken.
        ignore_missing: Whether to leave a field out of the tuple if nothing matches; else that is an error.
        handler: What to do about a sample with such an error; raises by default.

    Raises:
        ValueError: While iterating, a sample has such an error.
        TypeError: A pattern is not a string; or, while iterating, a sample is not a dict.

    Source:
        ``webdataset.filters.extract_keys``.

    Example:
        >>> list(extract_keys("*.png;*.jpg", "cls")([{"left.jpg": b"..", "cls": 7}]))
        [(b'..', 7)]
    """
    return ExtractKeys(patterns, duplicate_is_error, ignore_missing, handler)


@dataclass(frozen=True)
class ExtractKeys(Filter):
    """The stage that ``extract_keys`` makes."""

    patterns: tuple[str | Iterable[str], ...]
    duplicate_is_error: bool = True
    ignore_missing: bool = False
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        check_handler("extract_keys", self.handler)
        self._extraction()

    def __str__(self) -> str:
        more = options(
            duplicate_is_error=(self.duplicate_is_error, True),
            ignore_missing=(self.ignore_missing, False),
            handler=(self.handler, reraise_exception),
        )
        return f"extract_keys({arguments(*self.patterns, **more)})"

    def count_of(self, incoming: Count) -> Count:
        return one_of_each(self, incoming, self.handler)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return Applied(source, self, self._extraction(), handler=self.handler)

    def _extraction(self) -> _Extraction:
        return _Extraction([alternatives(pattern) for pattern in self.patterns], self)


class _Extraction:
    def __init__(self, patterns: list[tuple[str, ...]], stage: ExtractKeys) -> None:
        self._patterns = patterns
        self._duplicate_is_error = stage.duplicate_is_error
        self._ignore_missing = stage.ignore_missing
        self._matches = functools.lru_cache(_NAMES_KEPT)(_matches)

    def __call__(self, sample: Any) -> tuple[Any, ...]:
        check_sample("extract_keys", sample)
        matches = self._matches
        extracted = []
        for patterns in self._patterns:
            found = [field for field in sample if matches(field, patterns)]
            if len(found) > 1 and self._duplicate_is_error:
                raise ValueError(f"extract_keys: {_either(patterns)} matches {' and '.join(found)}")
            if found:
                extracted.append(sample[found[0]])
            elif not self._ignore_missing:
                raise ValueError(
                    f"extract_keys: no field matches {_either(patterns)}; the sample has {', '.join(sample)}"
                )
        return tuple(extracted)


def _matches(field: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase("." + field, pattern) or fnmatchcase(field, pattern) for pattern in patterns)


def _either(patterns: tuple[str, ...]) -> str:
    return " or ".join(map(repr, patterns))
