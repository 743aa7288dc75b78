"""The feed's messages, and checks of those that arrive. ``docs/feed-protocol.md`` describes the protocol.

A trainer's DEALER socket sends *commands*, one frame each: an envelope (``nest.pack``) with a field ``kind``.
A server's ROUTER socket answers with *replies*, which look the same, and with *data*: a head, a frame of
messages of ``loader.engine.protocol``, each as the worker sent it to its server (``engine.channel``), and the
arrays of the last message, if they did not fit into it, in parts.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from mpwds import nest
from mpwds.errors import EnvelopeError, MpwdsError
from mpwds.loader.worker.counters import Reading, StageReading

VERSION = 1

PART_NBYTES = 2 << 20
"""Arrays travel in parts: one message of many megabytes makes ZeroMQ take fresh memory for each."""

COMMAND_NBYTES = 32 << 20
"""The longest command, which a ``start`` with the state of a large shuffle buffer is."""

PING_S = 1.0
"""Time between two pings of a trainer; the server answers each."""

LOST_S = 10.0
"""A peer that has sent nothing for so long is lost. Machines stand still for seconds, and recover."""

IDENTITY_NBYTES = 16
"""Of a trainer's socket: random, so that nobody can guess another one's."""

# Commands.
HELLO, START, STOP, ACK, PING, BYE = "hello", "start", "stop", "ack", "ping", "bye"
COUNT, STATUS, PEEK = "count", "status", "peek"

# Replies.
WELCOME, WAIT, REFUSED, PONG, NOTICE, GOODBYE = "welcome", "wait", "refused", "pong", "notice", "goodbye"
COUNTED, STATUS_IS, PEEKED = "counted", "status_is", "peeked"


class Malformed(MpwdsError):
    """A message is not one of the protocol's, or a field has a wrong type or value."""


class Place(NamedTuple):
    """The place of a worker in an epoch, which the trainer gives it."""

    rank: int
    world_size: int
    worker: int
    workers: int
    seed: int | None


class Head(NamedTuple):
    """The head of a data message.

    ``slot`` is the trainer's number of a worker, ``attempt`` that of the ``start`` which this answers,
    ``number`` counts the attempt's data messages, from 0, and ``nbytes`` are the bytes in parts.
    """

    slot: int
    attempt: int
    number: int
    nbytes: int


_natural = ("a whole number, not negative", lambda value: type(value) is int and 0 <= value < 1 << 63)
_text = ("a short str", lambda value: type(value) is str and len(value) <= 4096)
_maybe_text = ("a short str or None", lambda value: value is None or _text[1](value))
_maybe_natural = ("a whole number or None", lambda value: value is None or _natural[1](value))
_flag = ("true or false", lambda value: type(value) is bool)
_maybe_seed = ("an int or None", lambda value: value is None or type(value) is int)
_maybe_bytes = ("bytes or None", lambda value: value is None or type(value) is bytes)
_seconds = ("seconds or None", lambda value: value is None or (type(value) in (int, float) and value > 0))

_Check = tuple[str, Callable[[Any], bool]]


def _is_place(value: Any) -> bool:
    if type(value) is not list or len(value) != len(Place._fields):
        return False
    rank, world_size, worker, workers, seed = value
    numbers = all(type(number) is int for number in value[:4])
    return numbers and 0 <= rank < world_size and 0 <= worker < workers and _maybe_seed[1](seed)


def _is_table(value: Any) -> bool:
    """Whether it is a list of [slot, attempt, number]."""
    return type(value) is list and all(
        type(row) is list and len(row) == 3 and all(_natural[1](number) for number in row) for row in value
    )


_place = ("[rank, world_size, worker, workers, seed]", _is_place)
_table = ("a list of [slot, attempt, number]", _is_table)

COMMANDS: Mapping[str, Mapping[str, _Check]] = {
    HELLO: {
        "versions": ("a list of versions", lambda value: type(value) is list),
        "name": _text,
        "workers": _maybe_natural,
        "rank": _natural,
        "world_size": _natural,
        "fingerprint": _maybe_text,
        "host": _text,
        "group": _maybe_text,
        "members": _maybe_natural,
        "max_lag": _seconds,
    },
    START: {
        "slot": _natural,
        "attempt": _natural,
        "epoch": _natural,
        "place": _place,
        "first": _natural,
        "state": _maybe_bytes,
        "at": _natural,
        "window": _natural,
        "shared_memory": _flag,
    },
    STOP: {"slot": _natural, "attempt": _natural},
    ACK: {"slot": _natural, "attempt": _natural, "nbytes": _natural, "window": _natural},
    PING: {"number": _natural, "acknowledged": _table},
    BYE: {},
    COUNT: {"request": _natural, "epoch": _natural, "place": _place, "exact": _flag},
    STATUS: {"request": _natural},
    PEEK: {"request": _natural},
}


def pack(kind: str, **fields: Any) -> bytes:
    return nest.pack({"kind": kind, **fields})


def unpack_command(data: Any) -> dict[str, Any]:
    """The fields of a command, or ``Malformed``."""
    try:
        fields = nest.unpack(data)
    except EnvelopeError as error:
        raise Malformed(str(error)) from error
    kind = fields.get("kind")
    checks = COMMANDS.get(kind) if type(kind) is str else None
    if checks is None:
        raise Malformed(f"there is no command {kind!r}"[:200])
    for name, (expected, holds) in checks.items():
        if name not in fields or not holds(fields[name]):
            raise Malformed(f"{kind}: {name} must be {expected}, got {fields.get(name)!r:.100}")
    if kind == START and fields["state"] is not None and fields["state"][:1] != b"m":
        raise Malformed("start: state must be msgpack behind an m: pickles are not accepted")
    return fields


def unpack_reply(data: Any) -> dict[str, Any] | Head:
    """The fields of a reply, or the head of a data message; ``Malformed`` otherwise."""
    if bytes(data[:1]) != b"\x94":  # a list of four
        try:
            return nest.unpack(data)
        except EnvelopeError as error:
            raise Malformed(str(error)) from error
    try:
        head = Head(*msgpack.unpackb(data))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Malformed(f"the head of a data message is damaged: {error}") from error
    if not all(_natural[1](number) for number in head):
        raise Malformed(f"the head of a data message has a bad number: {list(head)!r:.100}")
    return head


def pack_head(head: Head) -> bytes:
    packed: bytes = msgpack.packb(head)
    return packed


def plain_reading(reading: Reading) -> dict[str, Any]:
    """A worker's counters as a map; a stage is [nanoseconds, elements, whether it reads storage]."""
    stages = {name: list(vars(stage).values()) for name, stage in reading.stages.items()}
    own = {"other": list(vars(reading.other).values()), "writing": list(vars(reading.writing).values())}
    return {**vars(reading), **own, "stages": stages, "skipped": dict(reading.skipped)}


def reading_of(fields: Any) -> Reading:
    """The counters that :func:`plain_reading` packed."""
    try:
        stages = {str(name): _stage(stage) for name, stage in fields["stages"].items()}
        skipped = {str(kind): int(number) for kind, number in fields["skipped"].items()}
        counters = {name: int(fields[name]) for name in _COUNTERS}
        return Reading(
            **counters,
            other=_stage(fields["other"]),
            writing=_stage(fields["writing"]),
            stages=stages,
            skipped=skipped,
        )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise Malformed(f"a worker's counters are damaged: {error}") from error


_COUNTERS = ("active_ns", "waiting_ns", "batches", "samples", "nbytes", "cpu_ns", "queued_ns")


def _stage(values: Any) -> StageReading:
    time_ns, elements, storage = values
    return StageReading(int(time_ns), int(elements), bool(storage))


def machine() -> str:
    """What two processes of one machine have in common, and no two machines: its boot's number."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = socket.gethostname()
    return f"{boot}/{os.getuid()}"
