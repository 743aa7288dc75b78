"""Field specs: how ``"png;jpg cls"`` names fields of a dict sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def getfirst(
    a: Mapping[str, Any], keys: str | Iterable[str], default: Any = None, missing_is_error: bool = True
) -> Any:
    """The value of the first of several fields that a sample has.

    Args:
        a: The sample.
        keys: Field names, as a list or as ``"png;jpg"``.
        default: What to return if it has none of them.
        missing_is_error: Whether that is an error instead.

    Raises:
        ValueError: The sample has none of them, or ``keys`` has a space: it names one field, not several.

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
    """The alternatives of each field that a spec names.

    Args:
        fields: ``"png;jpg cls"``, or a list of such specs for one field each.

    Example:
        >>> parse_field_spec("png;jpg cls")
        [['png', 'jpg'], ['cls']]
    """
    specs = fields.split() if isinstance(fields, str) else fields
    return [spec.split(";") for spec in specs]


def alternatives(spec: str | Iterable[str]) -> tuple[str, ...]:
    """The names that may stand for one field.

    Args:
        spec: ``"png;jpg"``, or those names one by one.

    Raises:
        TypeError: It is neither.
        ValueError: There are no names, or one has a space.

    Example:
        >>> alternatives("png;jpg"), alternatives(["png", "jpg"])
        (('png', 'jpg'), ('png', 'jpg'))
    """
    if isinstance(spec, str):
        names = tuple([name for name in spec.split(";") if name])
    elif isinstance(spec, Iterable):
        names = tuple(spec)
    else:
        raise TypeError(f"expected a field name such as 'png' or 'png;jpg', got {spec!r}")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"expected field names, got {name!r}")
        if " " in name:
            raise ValueError(f"{name!r} is to name one field, but has a space")
    if not names:
        raise ValueError(f"{spec!r} names no field")
    return names


def missing(sample: Mapping[Any, Any], names: Sequence[str]) -> str:
    """The message that a sample has none of the fields ``names``, and which it has.

    Example:
        >>> missing({"__key__": "a", "cls": 7}, ["png", "jpg"])
        "no field 'png' or 'jpg'; the sample has __key__, cls"
    """
    return f"no field {' or '.join(map(repr, names))}; the sample has {', '.join(map(str, sample))}"


def check_sample(stage: str, sample: Any) -> None:
    """Refuses what is no dict sample.

    Raises:
        TypeError: ``sample`` is no dict.

    Example:
        >>> check_sample("rename", (1, 2))
        Traceback (most recent call last):
        TypeError: rename needs dict samples, got a tuple
    """
    if not isinstance(sample, dict):
        raise TypeError(f"{stage} needs dict samples, got a {type(sample).__name__}")
