"""Rename fields of dict samples by patterns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import Count, one_of_each
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handled import Applied
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.stages.fields import check_sample
from mpwds.pipeline.stream import Stream


def rename_keys(
    *renamings: Sequence[str],
    keep_unselected: bool = False,
    must_match: bool = True,
    duplicate_is_error: bool = True,
    handler: Handler = reraise_exception,
    **more: str,
) -> RenameKeys:
    """Stage that renames the fields of dict samples that match patterns.

    Patterns are those of the shell (``*``, ``?``, ``[a-z]``); they match the part of a field's name behind
    its last slash, in lower case. If several patterns match, the last one counts.

    Args:
        renamings: Pairs of a new name and a pattern: ``("image", "*.jpg")``.
        keep_unselected: Whether fields that match no pattern stay, ``__key__`` among them.
        must_match: Whether a pattern that no field of a sample matches is an error.
        duplicate_is_error: Whether two fields that get the same name are an error; else the first one stays.
        handler: What to do about a sample with such an error; raises by default.
        more: Pattern for each new name.

    Raises:
        ValueError: While iterating, a sample has such an error.
        TypeError: A renaming is not a pair of strings; or, while iterating, a sample is not a dict.

    Source:
        ``webdataset.filters.rename_keys``.

    Example:
        >>> list(rename_keys(image="*.png", keep_unselected=True)([{"left.PNG": b"..", "cls": 7}]))
        [{'image': b'..', 'cls': 7}]
    """
    pairs = (*map(_pair, renamings), *more.items())
    return RenameKeys(pairs, keep_unselected, must_match, duplicate_is_error, handler)


@dataclass(frozen=True)
class RenameKeys(Filter):
    """The stage that ``rename_keys`` makes."""

    renamings: tuple[tuple[str, str], ...]
    keep_unselected: bool = False
    must_match: bool = True
    duplicate_is_error: bool = True
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        for renaming in self.renamings:
            _pair(renaming)
        check_handler("rename_keys", self.handler)

    def __str__(self) -> str:
        more = options(
            keep_unselected=(self.keep_unselected, False),
            must_match=(self.must_match, True),
            duplicate_is_error=(self.duplicate_is_error, True),
            handler=(self.handler, reraise_exception),
        )
        return f"rename_keys({arguments(*self.renamings, **more)})"

    def count_of(self, incoming: Count) -> Count:
        return one_of_each(self, incoming, self.handler)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return Applied(source, self, self._apply, handler=self.handler)

    def _apply(self, sample: Any) -> dict[str, Any]:
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
            raise ValueError(
                f"rename_keys: no field matches {' or '.join(map(repr, unmatched))}; "
                f"the sample has {', '.join(sample)}"
            )
        return renamed

    def _match(self, field: str) -> tuple[str, str] | None:
        base = field.rpartition("/")[2].lower()
        for renaming in reversed(self.renamings):
            if fnmatchcase(base, renaming[1]):
                return renaming
        return None


def _pair(renaming: Sequence[str]) -> tuple[str, str]:
    if isinstance(renaming, (tuple, list)) and len(renaming) == 2:
        name, pattern = renaming
        if isinstance(name, str) and isinstance(pattern, str):
            return name, pattern
    raise TypeError(f"rename_keys: expected a pair of a new name and a pattern, got {renaming!r}")
