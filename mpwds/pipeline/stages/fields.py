"""Pick, rename, change and add fields of dict samples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import arguments, changed, check_function
from mpwds.pipeline.filter import OneToOneStage
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.randomness import seeded
from mpwds.pipeline.stream import Stream
from mpwds.suggestions import shown, suggest_arguments

Associator = Mapping[str, Mapping[str, Any]] | Callable[[str], "Mapping[str, Any] | None"]

_CACHED_NAMES = 1000  # a limit, because each sample may have new field names


@suggest_arguments
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


@suggest_arguments
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


def map_dict(handler: Handler = reraise_exception, **functions: Callable[[Any], Any]) -> MapDict:
    """Stage that applies functions to fields of dict samples. The original dict stays unchanged.

    Args:
        handler: Called when a function raises an exception; the default raises it.
        functions: A function of the value, for each field.

    Raises:
        ValueError: There are no functions.
        TypeError: While iterating, a sample is not a dict.
        KeyError: While iterating, a sample lacks the field.

    Source:
        ``webdataset.filters.map_dict``.

    Example:
        >>> list(map_dict(cls=int)([{"cls": "7", "id": "a"}]))
        [{'cls': 7, 'id': 'a'}]
    """
    return MapDict(functions, handler)


@suggest_arguments
def associate(associator: Associator, handler: Handler = reraise_exception) -> Associate:
    """Stage that looks up fields by the ``__key__`` of dict samples and adds them.

    An added field replaces a field of the same name. The original dict stays unchanged.

    Args:
        associator: A mapping from a key to the fields to add, or a function of the key that returns them or
            ``None``. Unknown keys add nothing.
        handler: Called when the lookup raises an exception; the default raises it.

    Raises:
        TypeError: While iterating, a sample is not a dict.
        ValueError: While iterating, a sample has no ``__key__``.

    Source:
        ``webdataset.filters.associate``.

    Example:
        >>> captions = {"a": {"caption": "a cat"}}
        >>> list(associate(captions)([{"__key__": "a", "cls": 7}, {"__key__": "b", "cls": 8}]))
        [{'__key__': 'a', 'cls': 7, 'caption': 'a cat'}, {'__key__': 'b', 'cls': 8}]
    """
    return Associate(associator, handler)


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


class OfFields(OneToOneStage):
    """Base of stages that pick or rename fields."""

    draws = False
    takes = dict
    passes_values = True

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
        unmatched = dict.fromkeys(pattern for _, pattern in self.renamings)
        renamed: dict[str, Any] = {}
        for field, value in sample.items():
            base = field.rpartition("/")[2].lower()
            match = next((pair for pair in reversed(self.renamings) if fnmatchcase(base, pair[1])), None)
            if match is None:
                if self.keep_unselected:
                    renamed[field] = value
                continue
            name, pattern = match
            unmatched.pop(pattern, None)
            if name not in renamed:
                renamed[name] = value
            elif self.duplicate_is_error:
                has = ", ".join(sample)
                raise ValueError(f"rename_keys: two fields get the name {name!r}; the sample has {has}")
        if unmatched and self.must_match:
            raise ValueError(f"rename_keys: {_no_match(unmatched, sample)}")
        return renamed


def _pair(renaming: Sequence[str]) -> tuple[str, str]:
    if isinstance(renaming, (tuple, list)) and len(renaming) == 2:
        name, pattern = renaming
        if isinstance(name, str) and isinstance(pattern, str):
            return name, pattern
    raise TypeError(f"rename_keys: expected a pair of a new name and a pattern, got {shown(renaming)}")


@dataclass(frozen=True)
class MapDict(OneToOneStage, called="map_dict"):
    takes = dict
    functions: dict[str, Callable[[Any], Any]]
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.functions:
            raise ValueError("map_dict: no functions given; write map_dict(cls=int), for example")
        for function in self.functions.values():
            check_function("map_dict", function)

    def apply(self, sample: Any) -> dict[Any, Any]:
        result = dict(sample)
        for field, function in self.functions.items():
            if field not in sample:
                raise KeyError(f"map_dict: {missing(sample, [field])}")
            result[field] = function(sample[field])
        return result


@dataclass(frozen=True)
class Associate(OneToOneStage, called="associate"):
    takes = dict
    associator: Associator
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.associator, Mapping):
            check_function("associate", self.associator, "a dict or a function of the key")

    def __str__(self) -> str:
        associator = self.associator if callable(self.associator) else type(self.associator)
        return f"associate({arguments(associator, **changed(self, 'handler'))})"

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return self.mapped(source, self.apply, seeded(context) if callable(self.associator) else None)

    def apply(self, sample: Any) -> dict[str, Any]:
        key = getfirst(sample, "__key__")
        found = self.associator(key) if callable(self.associator) else self.associator.get(key)
        return {**sample, **(found or {})}
