"""Pick and rename fields of dict samples by name: ``to_tuple`` and ``rename``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mpwds.mistakes import explained, shown
from mpwds.pipeline.filter import OneOfEach
from mpwds.pipeline.handlers import Handler, reraise_exception


@explained
def to_tuple(
    *specs: str | Iterable[str],
    handler: Handler = reraise_exception,
    missing_is_error: bool = True,
    none_is_error: bool | None = None,
) -> ToTuple:
    """Stage that turns dict samples into tuples of some of their fields.

    Args:
        specs: Field names. ``"png;jpg"`` or ``["png", "jpg"]`` takes the first of these that a sample has;
            ``"png cls"`` is the same as ``"png", "cls"``.
        handler: Called when a sample lacks a field; the default raises the exception.
        missing_is_error: Whether a missing field is an error; otherwise it becomes ``None``.
        none_is_error: Whether a field that holds ``None`` is an error; by default as ``missing_is_error``.

    Raises:
        ValueError: There are no fields; or, while iterating, a sample lacks one.
        TypeError: While iterating, a sample is not a dict.

    Source:
        ``webdataset.filters.to_tuple``.

    Example:
        >>> list(to_tuple("png;jpg cls")([{"jpg": b"..", "cls": 7}]))
        [(b'..', 7)]
    """
    return ToTuple(specs, missing_is_error, none_is_error, handler)


def rename(handler: Handler = reraise_exception, keep: bool = True, **fields: str | Iterable[str]) -> Rename:
    """Stage that renames fields of dict samples. Renamed fields come last and replace others of that name.

    Args:
        handler: Called when a sample lacks a field; the default raises the exception.
        keep: Whether the sample keeps its other fields. If false, even ``__key__`` is dropped.
        fields: The old name for each new one. ``image="png;jpg"``, or a list, takes the first of these that a
            sample has and drops the others.

    Raises:
        ValueError: While iterating, a sample lacks a field.
        TypeError: While iterating, a sample is not a dict.

    Source:
        ``webdataset.filters.rename``.

    Example:
        >>> list(rename(image="png;jpg", keep=False)([{"__key__": "a", "jpg": b"..", "cls": 7}]))
        [{'image': b'..'}]
    """
    return Rename(fields, keep, handler)


def getfirst(
    a: Mapping[str, Any], keys: str | Iterable[str], default: Any = None, missing_is_error: bool = True
) -> Any:
    """The value of the first of the fields ``keys``, a list or ``"png;jpg"``, that the sample ``a`` has.

    Without any of them it is ``default``, or a ``ValueError`` if ``missing_is_error``.

    Example:
        >>> getfirst({"__key__": "a", "jpg": b".."}, "png;jpg")
        b'..'
        >>> getfirst({"__key__": "a", "jpg": b".."}, "cls;json")
        Traceback (most recent call last):
        ValueError: no field 'cls' or 'json'; the sample has __key__, jpg
    """
    names = alternatives(keys)
    for name in names:
        if name in a:
            return a[name]
    if missing_is_error:
        raise ValueError(missing(a, names))
    return default


def parse_field_spec(fields: str | Iterable[str]) -> list[list[str]]:
    """The alternative names for each field of a specification, ``"png;jpg cls"`` or ``["png;jpg", "cls"]``.

    Example:
        >>> parse_field_spec("png;jpg cls")
        [['png', 'jpg'], ['cls']]
    """
    specs = fields.split() if isinstance(fields, str) else fields
    return [spec.split(";") for spec in specs]


def alternatives(spec: str | Iterable[str]) -> tuple[str, ...]:
    """The alternative names for one field: ``"png;jpg"`` and ``["png", "jpg"]`` give ``("png", "jpg")``."""
    if not isinstance(spec, Iterable):
        raise TypeError(f"expected a field name such as 'png' or 'png;jpg', got {shown(spec)}")
    names = tuple(filter(None, spec.split(";")) if isinstance(spec, str) else spec)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"expected field names, got {shown(name)}")
        if " " in name:
            raise ValueError(f"expected the name of one field, but {name!r} contains a space")
    if not names:
        raise ValueError(f"{spec!r} names no field")
    return names


def missing(sample: Mapping[Any, Any], names: Sequence[str]) -> str:
    """Which fields a sample lacks, and which it has."""
    return f"no field {' or '.join(map(repr, names))}; the sample has {', '.join(map(str, sample))}"


def check_sample(stage: str, sample: Any) -> None:
    """Raises ``TypeError`` if ``sample`` is not a dict."""
    if not isinstance(sample, dict):
        raise TypeError(f"{stage} needs dict samples, got a {type(sample).__name__}")


class OfFields(OneOfEach):
    """Base of stages that pick or rename fields."""

    draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            self.prepared()
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self.called}: {error}") from None


@dataclass(frozen=True)
class ToTuple(OfFields, called="to_tuple"):
    specs: tuple[str | Iterable[str], ...]
    missing_is_error: bool = True
    none_is_error: bool | None = None
    handler: Handler = reraise_exception

    def prepared(self) -> Callable[[Any], tuple[Any, ...]]:
        specs = [spec.split() if isinstance(spec, str) else [spec] for spec in self.specs]
        fields = [alternatives(field) for spec in specs for field in spec]
        if not fields:
            raise ValueError("no fields given; write to_tuple('png', 'cls'), for example")
        missing_is_error = self.missing_is_error
        none_is_error = missing_is_error if self.none_is_error is None else self.none_is_error

        def pick(sample: Any) -> tuple[Any, ...]:
            check_sample("to_tuple", sample)
            picked = []
            for names in fields:
                for name in names:
                    if name in sample:
                        picked.append(sample[name])
                        break
                else:
                    if missing_is_error:
                        raise ValueError(f"to_tuple: {missing(sample, names)}")
                    picked.append(None)
            if none_is_error:
                for names, value in zip(fields, picked, strict=True):
                    if value is None:
                        raise ValueError(f"to_tuple: field {' or '.join(map(repr, names))} is None")
            return tuple(picked)

        return pick


@dataclass(frozen=True)
class Rename(OfFields, called="rename"):
    fields: dict[str, str | Iterable[str]]
    keep: bool = True
    handler: Handler = reraise_exception

    def prepared(self) -> Callable[[Any], dict[str, Any]]:
        fields, keep = {new: alternatives(old) for new, old in self.fields.items()}, self.keep
        replaced = frozenset(old for names in fields.values() for old in names)

        def renamed(sample: Any) -> dict[str, Any]:
            check_sample("rename", sample)
            kept = {name: value for name, value in sample.items() if name not in replaced} if keep else {}
            for new, names in fields.items():
                for name in names:
                    if name in sample:
                        kept[new] = sample[name]
                        break
                else:
                    raise ValueError(f"rename: {missing(sample, names)}")
            return kept

        return renamed
