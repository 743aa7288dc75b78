"""Say in an exception which stage it comes from and which element caused it."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from mpwds.pipeline.stream import Description, Stream


class Incident(NamedTuple):
    """Where an exception happened: the attribute ``incident`` of what error handlers are called with.

    Attributes:
        stage: The stage, as it prints: ``map(crop)``.
        place: The element, for people: ``sample "0017" of x-000003.tar``.
        url: Its shard, where it has one.
        key: Its key, where it has one.
        offset: Byte offset of its first header in the shard, where it has one.
        member: The member or field concerned, where it is one alone.
    """

    stage: str
    place: str
    url: str | None = None
    key: str | None = None
    offset: int | None = None
    member: str | None = None


def explain(
    error: Exception, stage: object, source: Stream[Any], address: Any, element: object = None
) -> None:
    """Adds ``in map(crop), on sample "0017" of x-000003.tar`` to ``error``, and an :class:`Incident`.

    Args:
        error: What the stage's function raised. It keeps its type.
        stage: The stage; ``str(stage)`` is its name.
        source: The stream that describes the address.
        address: The address of the element that the function was called with.
        element: That element, where it is at hand.

    Raises:
        RuntimeError: ``error`` is a ``StopIteration``, which would end the stream without a word.
    """
    place = source.describe(address, element)
    note = f"in {stage}, on {place}"
    if isinstance(error, StopIteration):
        raise RuntimeError(
            f"{note}: a function raised StopIteration, which is no way to end a dataset"
        ) from error
    before = getattr(error, "incident", None)
    if isinstance(before, Incident) and before.stage == str(
        stage
    ):  # one exception object, raised for each bad element
        getattr(error, "__notes__", []).remove(f"in {stage}, on {before.place}")
    add_incident(error, str(stage), place)
    add_note(error, note)


def add_incident(error: Exception, stage: str, place: Description) -> None:
    """Gives ``error`` its attribute ``incident``.

    Args:
        error: What was raised. Its attribute ``field`` or ``member``, if a string, becomes the incident's
            ``member``.
        stage: The stage, as it prints.
        place: The element.

    Example:
        >>> error = ValueError("bad")
        >>> add_incident(error, "map(crop)", Description('sample "0017" of x.tar', url="x.tar", key="0017"))
        >>> error.incident.key
        '0017'
    """
    names = (getattr(error, "field", None), getattr(error, "member", None))  # a user's exception has anything
    member = next((name for name in names if isinstance(name, str) and name), None)
    incident = Incident(stage, str(place), place.url, place.key, place.offset, member)
    object.__setattr__(error, "incident", incident)  # a frozen dataclass lets nobody else


def add_note(error: BaseException, note: str) -> None:
    """``error.add_note(note)``, also on Python 3.10, where tracebacks do not show it yet.

    Example:
        >>> error = ValueError("bad")
        >>> add_note(error, "in map(crop)")
        >>> error.__notes__
        ['in map(crop)']
    """
    notes = getattr(error, "__notes__", None)
    if notes is None:
        notes = []
        object.__setattr__(error, "__notes__", notes)
    notes.append(note)


def arguments(*values: object, **named: object) -> str:
    """Arguments as one would write them in a call, functions by their names.

    Example:
        >>> arguments(len, None, "rgb8", partial=False)
        "len, None, 'rgb8', partial=False"
    """
    return ", ".join(
        [*map(_argument, values), *(f"{name}={_argument(value)}" for name, value in named.items())]
    )


def options(**given: tuple[object, object]) -> dict[str, object]:
    """Of options given as (value, default), those that differ from their defaults, for :func:`arguments`.

    Example:
        >>> options(size=(3, 3), seed=(7, None))
        {'seed': 7}
    """
    return {
        name: value for name, (value, default) in given.items() if not (value is default or value == default)
    }


def _argument(value: object) -> str:
    if isinstance(value, functools.partial):
        value = value.func
    if not callable(value):
        return repr(value)
    return getattr(value, "__name__", None) or f"{type(value).__name__}(...)"
