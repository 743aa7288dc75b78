"""Pick fields of dict samples into tuples."""

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


def to_tuple(
    *specs: str | Iterable[str],
    handler: Handler = reraise_exception,
    missing_is_error: bool = True,
    none_is_error: bool | None = None,
) -> ToTuple:
    """Stage that turns dict samples into tuples of some of their fields.

    Args:
        specs: Field names; ``"png;jpg"`` or ``["png", "jpg"]`` takes the first of these that a sample has,
            ``"png cls"`` is the same as ``"png", "cls"``.
        handler: What to do about a sample that lacks a field; raises by default.
        missing_is_error: Whether a missing field is an error; else it becomes ``None``.
        none_is_error: Whether a field that holds ``None`` is an error; as ``missing_is_error`` by default.

    Raises:
        ValueError: There are no fields; or, while iterating, a sample lacks one.
        TypeError: A specification is not a string; or, while iterating, a sample is not a dict.

    Source:
        ``webdataset.filters.to_tuple``.

    Example:
        >>> list(to_tuple("png;jpg cls")([{"jpg": b"..", "cls": 7}]))
        [(b'..', 7)]
    """
    return ToTuple(specs, missing_is_error, none_is_error, handler)


@dataclass(frozen=True)
class ToTuple(Filter):
    """The stage that ``to_tuple`` makes."""

    specs: tuple[str | Iterable[str], ...]
    missing_is_error: bool = True
    none_is_error: bool | None = None
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        if not self._fields():
            raise ValueError("to_tuple: no fields given; write to_tuple('png', 'cls'), for example")
        check_handler("to_tuple", self.handler)

    def __str__(self) -> str:
        more = options(
            missing_is_error=(self.missing_is_error, True),
            none_is_error=(self.none_is_error, None),
            handler=(self.handler, reraise_exception),
        )
        return f"to_tuple({arguments(*self.specs, **more)})"

    def count_of(self, incoming: Count) -> Count:
        return one_of_each(self, incoming, self.handler)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return Applied(source, self, _Picker(self._fields(), self), handler=self.handler)

    def _fields(self) -> list[tuple[str, ...]]:
        try:
            fields = [spec.split() if isinstance(spec, str) else [spec] for spec in self.specs]
            return [alternatives(field) for spec in fields for field in spec]
        except (TypeError, ValueError) as error:
            raise type(error)(f"to_tuple: {error}") from None


class _Picker:
    def __init__(self, fields: list[tuple[str, ...]], stage: ToTuple) -> None:
        self._alternatives = fields
        self._missing_is_error = stage.missing_is_error
        self._none_is_error = stage.missing_is_error if stage.none_is_error is None else stage.none_is_error

    def __call__(self, sample: Any) -> tuple[Any, ...]:
        check_sample("to_tuple", sample)
        picked = []
        for names in self._alternatives:
            for name in names:
                if name in sample:
                    picked.append(sample[name])
                    break
            else:
                if self._missing_is_error:
                    raise ValueError(f"to_tuple: {missing(sample, names)}")
                picked.append(None)
        if self._none_is_error:
            for names, value in zip(self._alternatives, picked, strict=True):
                if value is None:
                    raise ValueError(f"to_tuple: field {' or '.join(map(repr, names))} is None")
        return tuple(picked)
