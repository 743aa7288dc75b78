"""Pick fields of dict samples into tuples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.applied import Applied
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.notes import arguments
from mpwds.pipeline.stream import Stream


@dataclass(frozen=True)
class ToTuple:
    """Stage that turns dict samples into tuples of some of their fields.

    Args:
        specs: Field names. ``"png;jpg"`` takes the first of these that a sample has; ``"png cls"``
            is the same as ``"png", "cls"``.
        missing_is_error: Whether a missing field is an error; else it becomes ``None``.

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

    def __post_init__(self) -> None:
        for spec in self.specs:
            if not isinstance(spec, str):
                raise TypeError(f"to_tuple: expected field names, got {spec!r}")
        if not any(spec.split() for spec in self.specs):
            raise ValueError("to_tuple: no fields given; write to_tuple('png', 'cls'), for example")

    def __str__(self) -> str:
        more = {} if self.missing_is_error else {"missing_is_error": False}
        return f"to_tuple({arguments(*self.specs, **more)})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return Applied(source, self, _Picker(self))


class _Picker:
    def __init__(self, stage: ToTuple) -> None:
        fields = [field for spec in stage.specs for field in spec.split()]
        self._alternatives = [[name for name in field.split(";") if name] for field in fields]
        self._missing_is_error = stage.missing_is_error

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
        return tuple(picked)
