"""Pick and rename fields of dict samples by shell patterns: ``extract_keys`` and ``rename_keys``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from mpwds.mistakes import explained, shown
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.stages.fields import OfFields, alternatives, check_sample

_CACHED_NAMES = 1000  # a limit, because each sample may have new field names


@explained
def extract_keys(
    *patterns: str | Iterable[str],
    duplicate_is_error: bool = True,
    ignore_missing: bool = False,
    handler: Handler = reraise_exception,
) -> ExtractKeys:
    """Stage that turns dict samples into tuples of the fields that match shell patterns.

    They match a field's name with or without a dot before it: ``"*.png"`` matches ``png`` and ``left.png``.

    Args:
        patterns: One for each field of the tuple; ``"*.png;*.jpg"``, or a list, matches either.
        duplicate_is_error: Whether it is an error if several fields match; otherwise the first is taken.
        ignore_missing: Whether to omit a field from the tuple if nothing matches; otherwise that is an error.
        handler: Called when a sample causes an error; the default raises it.

    Raises:
        ValueError: While iterating, no field or several fields of a sample match a pattern.
        TypeError: While iterating, a sample is not a dict.

    Source:
        ``webdataset.filters.extract_keys``.

    Example:
        >>> list(extract_keys("*.png;*.jpg", "cls")([{"left.jpg": b"..", "cls": 7}]))
        [(b'..', 7)]
    """
    return ExtractKeys(patterns, duplicate_is_error, ignore_missing, handler)


def rename_keys(
    *renamings: Sequence[str],
    keep_unselected: bool = False,
    must_match: bool = True,
    duplicate_is_error: bool = True,
    handler: Handler = reraise_exception,
    **more: str,
) -> RenameKeys:
    """Stage that renames the fields of dict samples that match shell patterns.

    They match the part of a field's name after its last slash, in lower case. If several match, the last one
    counts.

    Args:
        renamings: Pairs of a new name and a pattern: ``("image", "*.jpg")``.
        keep_unselected: Whether to keep fields that match no pattern, including ``__key__``.
        must_match: Whether it is an error if no field of a sample matches a pattern.
        duplicate_is_error: Whether it is an error if two fields get one name; otherwise the first is kept.
        handler: Called when a sample causes an error; the default raises it.
        more: Pattern for each new name.

    Raises:
        ValueError: While iterating, no field of a sample matches a pattern, or two fields get the same name.
        TypeError: While iterating, a sample is not a dict.

    Source:
        ``webdataset.filters.rename_keys``.

    Example:
        >>> list(rename_keys(image="*.png", keep_unselected=True)([{"left.PNG": b"..", "cls": 7}]))
        [{'image': b'..', 'cls': 7}]
    """
    pairs = tuple(map(_pair, (*renamings, *more.items())))
    return RenameKeys(pairs, keep_unselected, must_match, duplicate_is_error, handler)


@dataclass(frozen=True)
class ExtractKeys(OfFields, called="extract_keys"):
    patterns: tuple[str | Iterable[str], ...]
    duplicate_is_error: bool = True
    ignore_missing: bool = False
    handler: Handler = reraise_exception

    def prepared(self) -> Callable[[Any], tuple[Any, ...]]:
        alternative_patterns = [alternatives(pattern) for pattern in self.patterns]
        matches = functools.lru_cache(_CACHED_NAMES)(_matches)

        def extract(sample: Any) -> tuple[Any, ...]:
            check_sample("extract_keys", sample)
            extracted = []
            for patterns in alternative_patterns:
                found = [field for field in sample if matches(field, patterns)]
                if len(found) > 1 and self.duplicate_is_error:
                    raise ValueError(f"extract_keys: {_either(patterns)} matches {' and '.join(found)}")
                if found:
                    extracted.append(sample[found[0]])
                elif not self.ignore_missing:
                    raise ValueError(f"extract_keys: {_no_match(patterns, sample)}")
            return tuple(extracted)

        return extract


def _matches(field: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase("." + field, pattern) or fnmatchcase(field, pattern) for pattern in patterns)


def _either(patterns: Iterable[str]) -> str:
    return " or ".join(map(repr, patterns))


def _no_match(patterns: Iterable[str], sample: dict[str, Any]) -> str:
    return f"no field matches {_either(patterns)}; the sample has {', '.join(sample)}"


@dataclass(frozen=True)
class RenameKeys(OfFields, called="rename_keys"):
    renamings: tuple[tuple[str, str], ...]
    keep_unselected: bool = False
    must_match: bool = True
    duplicate_is_error: bool = True
    handler: Handler = reraise_exception

    def apply(self, sample: Any) -> dict[str, Any]:
        check_sample("rename_keys", sample)
        unmatched = dict.fromkeys(pattern for _, pattern in self.renamings)
        renamed: dict[str, Any] = {}
        for field, value in sample.items():
            match = self._match(field)
            if match is None:
                if self.keep_unselected:
                    renamed[field] = value
                continue
            name, pattern = match
            unmatched.pop(pattern, None)
            if name not in renamed:
                renamed[name] = value
            elif self.duplicate_is_error:
                raise ValueError(
                    f"rename_keys: two fields get the name {name!r}; the sample has {', '.join(sample)}"
                )
        if unmatched and self.must_match:
            raise ValueError(f"rename_keys: {_no_match(unmatched, sample)}")
        return renamed

    def _match(self, field: str) -> tuple[str, str] | None:
        base = field.rpartition("/")[2].lower()
        return next((pair for pair in reversed(self.renamings) if fnmatchcase(base, pair[1])), None)


def _pair(renaming: Sequence[str]) -> tuple[str, str]:
    if isinstance(renaming, (tuple, list)) and len(renaming) == 2:
        name, pattern = renaming
        if isinstance(name, str) and isinstance(pattern, str):
            return name, pattern
    raise TypeError(f"rename_keys: expected a pair of a new name and a pattern, got {shown(renaming)}")
