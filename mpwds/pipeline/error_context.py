"""Notes and incidents of errors, checks of arguments, and calls as they print."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, NamedTuple

from mpwds.pipeline.stream import Description, Stream
from mpwds.suggestions import shown


class Incident(NamedTuple):
    """The place of an exception. Error handlers find it as the exception's attribute ``incident``.

    Attributes:
        stage: The stage, as it prints: ``map(crop)``.
        place: Description of the element: ``sample "0017" of x-000003.tar``.
        url: The element's shard, if it has one.
        key: The sample's key, if it has one.
        offset: Byte offset of the sample's first header in the shard, if known.
        member: The member or field that caused the error, if there is a single one.
        address: Where in its source an element without a shard is.

    Example:
        >>> from mpwds import DataPipeline
        >>> def record(error):
        ...     print(error.incident.stage, error.incident.place)
        ...     return True
        >>> list(DataPipeline(["1", "one"]).map(int, handler=record))
        map(int, handler=record) element 1
        [1]
    """

    stage: str
    place: str
    url: str | None = None
    key: str | None = None
    offset: int | None = None
    member: str | None = None
    address: str | None = None


def not_an_end(error: Exception, who: str = "a function") -> Exception:
    """The error itself; a ``RuntimeError`` for a ``StopIteration``, which would end an epoch silently."""
    if not isinstance(error, StopIteration):
        return error
    refusal = RuntimeError(f"{who} raised StopIteration, which cannot end a dataset")
    refusal.__cause__ = error
    return refusal


def explain(error: Exception, stage: object, source: Stream[Any], address: Any, element: Any = None) -> None:
    """Adds ``in map(crop), on sample "0017" of x-000003.tar`` to ``error``, and an :class:`Incident`.

    ``source`` describes ``address``. A ``StopIteration`` becomes a ``RuntimeError`` (``not_an_end``).
    """
    place = source.describe(address, element)
    note = f"in {stage}, on {place}"
    if isinstance(error, StopIteration):
        raise RuntimeError(f"{note}: {not_an_end(error)}") from error
    before = vars(error).get("incident")
    if isinstance(before, Incident) and before.stage == str(stage):
        # The function raises the same exception object for each bad element.
        vars(error)["__notes__"].remove(f"in {stage}, on {before.place}")
    add_incident(error, str(stage), place, address)
    add_note(error, note)


def add_incident(error: Exception, stage: str, place: Description, address: Any = None) -> None:
    """Gives ``error`` its attribute ``incident``; its ``field`` or ``member`` becomes the incident's."""
    names = (vars(error).get("field"), vars(error).get("member"))  # of any type, if a user's class
    member = next((name for name in names if isinstance(name, str) and name), None)
    where = None if address is None or place.url is not None else repr(address)
    incident = Incident(stage, str(place), place.url, place.key, place.offset, member, where)
    object.__setattr__(error, "incident", incident)  # a frozen dataclass lets nobody else


def add_note(error: BaseException, note: str) -> None:
    """``error.add_note(note)``, also on Python 3.10, whose tracebacks do not show notes."""
    notes = vars(error).get("__notes__")
    if notes is None:
        notes = []
        object.__setattr__(error, "__notes__", notes)
    notes.append(note)


def notes_of(error: BaseException) -> list[str]:
    """The notes that :func:`add_note` gave to an exception."""
    notes: list[str] = vars(error).get("__notes__", [])
    return notes


def arguments(*values: object, **named: object) -> str:
    """Arguments as they are written in a call, functions by their names: ``len, 'rgb8', partial=False``."""
    keywords = (f"{name}={_argument(value)}" for name, value in named.items())
    return ", ".join([*map(_argument, values), *keywords])


def _is(value: object, default: object) -> bool:
    try:
        return value is default or bool(value == default)
    except Exception:  # an array, or an object of the user's
        return False


def given_options(function: Callable[..., object], values: Mapping[str, object]) -> dict[str, object]:
    """The options among ``values`` that differ from the defaults of ``function``, for :func:`arguments`."""
    parameters = inspect.signature(function).parameters.values()
    known = [each for each in parameters if each.name in values and each.default is not each.empty]
    return {each.name: values[each.name] for each in known if not _is(values[each.name], each.default)}


def changed(stage: Any, *names: str) -> dict[str, object]:
    """The fields of a dataclass, among ``names``, that differ from their defaults, for :func:`arguments`."""
    return given_options(type(stage), {name: getattr(stage, name) for name in names})


def arguments_of(stage: Any) -> str:
    """The arguments of a stage that is a dataclass: fields without a default, then the changed others.

    A tuple without a default counts as several arguments, a dict as keyword arguments.
    """
    values: list[object] = []
    named: dict[str, object] = {}
    for field in dataclasses.fields(stage):
        value = getattr(stage, field.name)
        if field.default is not dataclasses.MISSING:
            if not _is(value, field.default):
                named[field.name] = value
        elif isinstance(value, dict):
            named.update(value)
        elif isinstance(value, tuple):
            values.extend(value)
        else:
            values.append(value)
    return arguments(*values, **named)


def check_whole(stage: str, name: str, value: Any, least: int | None = None) -> None:
    """Raises ``TypeError`` if an argument is not an integer, ``ValueError`` if it is below ``least``."""
    if not isinstance(value, Integral):
        raise TypeError(f"{stage}: {name} must be a whole number, got {shown(value)}")
    if least is not None and value < least:
        raise ValueError(f"{stage}: {name} must be at least {least}, got {value}")


def check_boolean(owner: str, name: str, value: Any) -> bool:
    """An argument as a ``bool``, also from 0, 1 and NumPy's; ValueError for others, as ``"no"`` is true."""
    numpy = sys.modules.get("numpy")
    is_whole = isinstance(value, Integral) or (numpy is not None and isinstance(value, numpy.bool_))
    if not (is_whole and value in (0, 1)):
        raise ValueError(f"{owner}: {name} must be True or False, got {value!r}")
    return bool(value)


def check_choice(stage: str, name: str, value: object, *choices: object) -> None:
    """Raises ``ValueError`` if an argument is none of ``choices``."""
    if value not in choices:
        expected = ", ".join(map(repr, choices))
        raise ValueError(f"{stage}: {name} must be one of {expected}, got {shown(value)}")


def check_function(stage: str, function: object, expected: str = "a function") -> None:
    """Raises ``TypeError`` if ``function`` is not callable, or its calls have to be awaited."""
    if not callable(function):
        raise TypeError(f"{stage}: expected {expected}, got {shown(function)}")
    if stage != "map" and is_async(function):
        raise TypeError(f"{stage}: {shown(function)} is an async function, which map(f) alone awaits")


def is_async(function: object) -> bool:
    """True for an ``async def`` function, and an object whose ``__call__`` is one."""
    called = getattr(function, "__call__", None)  # noqa: B004  # not whether it is callable
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _argument(value: object) -> str:
    if isinstance(value, functools.partial):
        value = value.func
    if not callable(value):
        return repr(value)
    return getattr(value, "__name__", None) or f"{type(value).__name__}(...)"
