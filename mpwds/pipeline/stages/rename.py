"""Rename fields of dict samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.counts import Count, one_of_each
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handled import Applied
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.stages.fields import alternatives, check_sample, missing
from mpwds.pipeline.stream import Stream


def rename(handler: Handler = reraise_exception, keep: bool = True, **fields: str | Iterable[str]) -> Rename:
    """Stage that renames fields of dict samples.

    Renamed fields come last, and replace those that have their new names.

    Args:
        handler: What to do about a sample that lacks a field; raises by default.
        keep: Whether the sample keeps its other fields; else it has the renamed ones only, without
            ``__key__``.
        fields: Old name for each new one; ``image="png;jpg"``, or a list, takes the first of these that a
            sample has and drops the others.

    Raises:
        ValueError: An old name cannot be a field's; or, while iterating, a sample lacks a field.
        TypeError: An old name is not a string; or, while iterating, a sample is not a dict.

    Source:
        ``webdataset.filters.rename``.

    Example:
        >>> list(rename(image="png;jpg", keep=False)([{"__key__": "a", "jpg": b"..", "cls": 7}]))
        [{'image': b'..'}]
    """
    return Rename(fields, keep, handler)


@dataclass(frozen=True)
class Rename(Filter):
    """The stage that ``rename`` makes."""

    fields: dict[str, str | Iterable[str]]
    keep: bool = True
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        check_handler("rename", self.handler)
        self._renaming()

    def __str__(self) -> str:
        more = options(keep=(self.keep, True), handler=(self.handler, reraise_exception))
        return f"rename({arguments(**self.fields, **more)})"

    def count_of(self, incoming: Count) -> Count:
        return one_of_each(self, incoming, self.handler)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return Applied(source, self, self._renaming(), handler=self.handler)

    def _renaming(self) -> _Renaming:
        return _Renaming({new: alternatives(old) for new, old in self.fields.items()}, self.keep)


class _Renaming:
    def __init__(self, fields: dict[str, tuple[str, ...]], keep: bool) -> None:
        self._fields = fields
        self._keep = keep
        self._replaced = frozenset(old for names in fields.values() for old in names)

    def __call__(self, sample: Any) -> dict[str, Any]:
        check_sample("rename", sample)
        replaced = self._replaced
        kept = {name: value for name, value in sample.items() if name not in replaced} if self._keep else {}
        for new, names in self._fields.items():
            for name in names:
                if name in sample:
                    kept[new] = sample[name]
                    break
            else:
                raise ValueError(f"rename: {missing(sample, names)}")
        return kept
