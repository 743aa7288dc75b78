"""Pick fields of dict samples into tuples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.applied import Applied
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.handlers import Handler, check_handler, reraise_exception
from mpwds.pipeline.notes import arguments, options
from mpwds.pipeline.stream import Stream


def to_tuple(
    *specs: str,
    handler: Handler = reraise_exception,
    missing_is_error: bool = True,
    none_is_error: bool | None = None,
) -> ToTuple:
    """Stage that turns dict samples into tuples of some of their fields.

    Args:
        specs: Field names; ``"png;jpg"`` takes the first of these that is there, ``"png cls"`` is two specs.
        handler: What to do about a sample that lacks a field; raises by default.
        missing_is_error: Whether a missing field is an error; else it becomes ``None``.
        none_is_error: Whether a field that holds ``None`` is an error; as ``missing_is_error`` by default.

    Raises:
        ValueError: There are no fields.

    Example:
        >>> list(to_tuple("png;jpg cls")([{"jpg": b"..", "cls": 7}]))
        [(b'..', 7)]
    """
    return ToTuple(specs, missing_is_error, none_is_error, handler)


@dataclass(frozen=True)
class ToTuple(Filter):
    """Stage that turns dict samples into tuples of some of their fields.

    Args:
        specs: Field names. ``"png;jpg"`` takes the first of these that a sample has; ``"png cls"``
            is the same as ``"png", "cls"``.
        missing_is_error: Whether a missing field is an error; else it becomes ``None``.
        none_is_error: Whether a field that holds ``None`` is an error; as ``missing_is_error`` by default.
        handler: What to do about a sample that lacks a field; raises by default.

    Raises:
        ValueError: There are no fields; or, while iterating, a sample lacks one.
        TypeError: A spec is no string; or, while iterating, a sample is no dict.

    Example:
        >>> from mpwds.pipeline.stream import collect
        >>> collect(ToTuple(("png;jpg", "cls")), [{"__key__": "a", "jpg": b"..", "cls": 7}])
        [(b'..', 7)]
    """

    specs: tuple[str, ...]
    missing_is_error: bool = True
    none_is_error: bool | None = None
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        for spec in self.specs:
            if not isinstance(spec, str):
                raise TypeError(f"to_tuple: expected field names, got {spec!r}")
        if not any(spec.split() for spec in self.specs):
            raise ValueError("to_tuple: no fields given; write to_tuple('png', 'cls'), for example")
        check_handler("to_tuple", self.handler)

    def __str__(self) -> str:
        more = options(
            missing_is_error=(self.missing_is_error, True),
            none_is_error=(self.none_is_error, None),
            handler=(self.handler, reraise_exception),
        )
        return f"to_tuple({arguments(*self.specs, **more)})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return Applied(source, self, _Picker(self), handler=self.handler)


class _Picker:
    def __init__(self, stage: ToTuple) -> None:
        fields = [field for spec in stage.specs for field in spec.split()]
        self._alternatives = [[name for name in field.split(";") if name] for field in fields]
        self._missing_is_error = stage.missing_is_error
        self._none_is_error = stage.missing_is_error if stage.none_is_error is None else stage.none_is_error

    def __call__(self, sample: Any) -> tuple[Any, ...]:
        if not isinstance(sample, dict):
            raise TypeError(f"to_tuple needs dict samples, got a {type(sample).__name__}")
        picked = []
        for names in self._alternatives:
            for name in names:
                if name in sample:
                    picked.append(sample[name])
                    break
            else:
                if self._missing_is_error:
                    raise ValueError(
                        f"to_tuple: no field {' or '.join(map(repr, names))}; the sample has "
                        f"{', '.join(map(str, sample))}"
                    )
                picked.append(None)
        if self._none_is_error:
            for names, value in zip(self._alternatives, picked, strict=True):
                if value is None:
                    raise ValueError(f"to_tuple: field {' or '.join(map(repr, names))} is None")
        return tuple(picked)
