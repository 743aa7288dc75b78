"""Apply functions to elements: ``map``, ``map_dict``, ``map_tuple`` and ``associate``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import arguments, changed, check_function
from mpwds.pipeline.filter import MapStage, MapStream, OneToOneStage
from mpwds.pipeline.handlers import Handler, reraise_exception
from mpwds.pipeline.randomness import seeded
from mpwds.pipeline.stages.fields import getfirst, missing
from mpwds.pipeline.stream import Stream
from mpwds.suggestions import suggest_arguments

Associator = Mapping[str, Mapping[str, Any]] | Callable[[str], "Mapping[str, Any] | None"]


@suggest_arguments
def map(f: Callable[[Any], Any], handler: Handler = reraise_exception) -> Map:
    """Stage that yields ``f(element)`` for each element.

    Args:
        f: Takes an element and returns another; ``None`` drops the element. If it makes a dict without
            ``__key__`` from a dict sample, the dict gets the sample's ``__key__``. In one epoch, ``f`` draws
            the same random numbers each time it gets the same element.
        handler: Called when ``f`` raises an exception; the default raises it.

    Source:
        ``webdataset.filters.map``.

    Example:
        >>> list(map(lambda n: n * n if n else None)(range(4)))
        [1, 4, 9]
    """
    return Map(f, handler)


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
def map_tuple(*functions: Callable[[Any], Any] | None, handler: Handler = reraise_exception) -> MapTuple:
    """Stage that applies a function to each field of tuple samples.

    Args:
        functions: One for each field. ``None``, or no function, leaves a field unchanged.
        handler: Called when a function raises an exception; the default raises it.

    Raises:
        TypeError: While iterating, a sample is not a tuple.
        ValueError: While iterating, a tuple has fewer fields than there are functions.

    Source:
        ``webdataset.filters.map_tuple``.

    Example:
        >>> list(map_tuple(None, int)([("a", "7", "x")]))
        [('a', 7, 'x')]
    """
    return MapTuple(functions, handler)


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


def transform_with(
    sample: Sequence[Any], transformers: Sequence[Callable[[Any], Any] | None] | None
) -> Sequence[Any]:
    """A list of a sample's fields, each transformed by the function at its place, as by :func:`map_tuple`.

    Without functions it is ``sample`` itself.

    Raises:
        ValueError: There are more functions than fields.

    Source:
        ``webdataset.filters.transform_with``.

    Example:
        >>> transform_with(("a", "7", "x"), [None, int])
        ['a', 7, 'x']
    """
    if not transformers:
        return sample
    if len(transformers) > len(sample):
        raise ValueError(f"{len(transformers)} functions for a sample of {len(sample)} fields")
    result = list(sample)
    for index, function in enumerate(transformers):
        if function is not None:
            result[index] = function(result[index])
    return result


@dataclass(frozen=True)
class Map(MapStage, called="map"):
    keeps_key = True
    function: Callable[[Any], Any]
    handler: Handler = reraise_exception

    def prepared(self) -> Callable[[Any], Any]:
        return self.function


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
class MapTuple(OneToOneStage, called="map_tuple"):
    functions: tuple[Callable[[Any], Any] | None, ...]
    handler: Handler = reraise_exception

    def __post_init__(self) -> None:
        super().__post_init__()
        for function in self.functions:
            if function is not None:
                check_function("map_tuple", function, "functions or None")

    def apply(self, sample: Any) -> tuple[Any, ...]:
        if not isinstance(sample, (tuple, list)):
            raise TypeError(
                f"map_tuple needs tuple samples, got a {type(sample).__name__}; put to_tuple(...) before it"
            )
        return tuple(transform_with(sample, self.functions))


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
        return MapStream(source, self, self.apply, seeded(context) if callable(self.associator) else None)

    def apply(self, sample: Any) -> dict[str, Any]:
        key = getfirst(sample, "__key__")
        found = self.associator(key) if callable(self.associator) else self.associator.get(key)
        return {**sample, **(found or {})}
