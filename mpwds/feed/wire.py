"""The feed's messages, and checks of those that arrive. docs/how-it-works/feed-protocol.md is the protocol.

A trainer's DEALER socket sends *commands*, one frame each: an envelope (``nest.pack``) with a field ``kind``.
A server's ROUTER socket answers with *replies*, which look the same, and with *data*: a head, a frame of
messages of ``loader.messages.protocol``, each as the worker sent it to its server (``messages.channel``), and
the arrays of the last message, if they did not fit into it, in parts.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgpack

from mpwds import nest
from mpwds.errors import EnvelopeError, MpwdsError
from mpwds.loader.messages import protocol
from mpwds.loader.resume.progress import AfterEnd, Position
from mpwds.sharedmem.arena import MOST_BLOCKS
from mpwds.stats.snapshot import CounterSnapshot, StageSnapshot, plain_values
from mpwds.viewing.wording import printable

VERSION = 2

PART_NBYTES = 1 << 20
"""Arrays travel in parts: one message of many megabytes makes ZeroMQ take fresh memory for each."""

COMMAND_NBYTES = 32 << 20
"""The longest command, which a ``start`` with the state of a large shuffle buffer is."""

_FIELDS_NBYTES = 64 << 10
_REPLY_NBYTES = 1 << 20
"""Most bytes of a command or a reply that are not in a field of bytes: as Python's objects, they take up to
sixty times as much memory."""

_MOST_FIELDS = 32
_MOST_DEPTH = 32
_HEAD_NBYTES = 64
MOST_WORKERS = 4096
_ROW_FIELDS = 1 + len(vars(Position()))

MOST_STREAMS = 1 << 16
"""The most streams, or workers of all ranks, of a job. Counts of so many fit into a reply. They take a server
seconds, in which it answers nobody: after ``LOST_S`` it would be lost."""

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
WELCOME, WAIT, REFUSED, PONG, NOTICE = "welcome", "wait", "refused", "pong", "notice"
NEEDED, GOODBYE = "needed", "goodbye"
COUNTED, STATUS_IS, PEEKED = "counted", "status_is", "peeked"


class Malformed(MpwdsError):
    """A message is not one of the protocol's, or a field has a wrong type or value."""


class WorkerAssignment(NamedTuple):
    """The place of a worker in an epoch, which the trainer gives it."""

    rank: int
    world_size: int
    worker: int
    workers: int
    seed: int | None


class DataHeader(NamedTuple):
    """The head of a data message.

    ``slot`` is the trainer's number of a worker, ``attempt`` that of the ``start`` which this answers,
    ``number`` counts the attempt's data messages, from 0, and ``nbytes`` are the bytes in parts.
    """

    slot: int
    attempt: int
    number: int
    nbytes: int


_Check = tuple[str, Callable[[Any], bool]]


def _is_natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def is_line(value: Any) -> bool:
    """True for a short text that may go into a log."""
    return type(value) is str and len(value) <= 256 and value.isprintable()


def _list_of(holds: Callable[[Any], bool], most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and len(value) <= most and all(map(holds, value))


def _is_row(value: Any, length: int = 3) -> bool:
    return type(value) is list and len(value) == length and all(map(_is_natural, value))


def _is_place(value: Any) -> bool:
    if not (type(value) is list and _is_row(value[:-1], 4)):
        return False
    rank, world_size, worker, workers, seed = value
    return bool(rank < world_size and worker < workers and (seed is None or type(seed) is int))


_TYPES: Mapping[str, _Check] = {
    "number": ("a whole number, not negative", _is_natural),
    "positive": ("a whole number above 0", lambda value: _is_natural(value) and value > 0),
    "line": ("a short line of text", is_line),
    "text": ("a str", lambda value: type(value) is str),
    "flag": ("true or false", lambda value: type(value) is bool),
    "int": ("an int", lambda value: type(value) is int),
    "bytes": ("bytes", lambda value: type(value) is bytes),
    "map": ("a map", lambda value: type(value) is dict),
    "seconds": ("seconds", lambda value: type(value) in (int, float) and value > 0),
    "versions": ("a list of versions", _list_of(_is_natural, 16)),
    "texts": ("a list of str", _list_of(lambda value: type(value) is str, 10_000)),
    "workers": (f"1 to {MOST_WORKERS}", lambda value: _is_natural(value) and 1 <= value <= MOST_WORKERS),
    "share": ("[number, ranks]", lambda value: _is_row(value, 2) and value[0] < value[1]),
    "place": ("[rank, world_size, worker, workers, seed]", _is_place),
    "table": ("a list of [slot, attempt, number]", _list_of(_is_row, 10_000)),
    "list": ("a list", lambda value: type(value) is list),
    "blocks": (f"1 to {MOST_BLOCKS}", lambda value: _is_natural(value) and 1 <= value <= MOST_BLOCKS),
    "memory": ("a number of bytes", lambda value: _is_natural(value) and 0 < value < 1 << 48),
    "counts": (
        "a list of numbers, or why there is none",
        lambda value: type(value) is str or _list_of(_is_natural, MOST_STREAMS)(value),
    ),
}


def _fields(*declared: str) -> dict[str, _Check]:
    """The checks of fields that are declared as ``"slot attempt: number"``; ``?`` is for "or None"."""
    checks = {}
    for names, _, kind in (each.partition(": ") for each in declared):
        expected, holds = _TYPES[kind.rstrip("?")]
        check = (f"{expected}, or None", _or_none(holds)) if kind.endswith("?") else (expected, holds)
        checks.update(dict.fromkeys(names.split(), check))
    return checks


def _or_none(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


COMMANDS: Mapping[str, Mapping[str, _Check]] = {
    HELLO: _fields(
        "versions: versions",
        "name host: line",
        "fingerprint group: line?",
        "rank world_size: number",
        "workers: workers?",
        "share: share?",
        "members: number?",
        "max_lag: seconds?",
        "patient: flag?",
    ),
    START: _fields(
        "slot attempt epoch first at window: number",
        "place: place",
        "streams: number?",
        "state positions: bytes?",
        "shared_memory: flag",
    ),
    STOP: _fields("slot attempt: number"),
    ACK: _fields("slot attempt nbytes window: number"),
    PING: _fields("number: number", "acknowledged: table", "epoch: number?"),
    BYE: {},
    COUNT: _fields("request epoch: number", "world_size workers: positive", "seed: int?", "exact: flag"),
    STATUS: _fields("request: number"),
    PEEK: _fields("request: number"),
}

REPLIES: Mapping[str, Mapping[str, _Check]] = {
    WELCOME: _fields(
        "version blocks: number",
        "server host fingerprint: line",
        "handover: line?",
        "workers: workers",
        "description: texts",
        "seed: int?",
        "length: number?",
        "in_any_order: flag",
        "unaddressed self_dividing: text?",
    ),
    WAIT: _fields("why: text"),
    REFUSED: _fields("why: text"),
    NOTICE: _fields("text: text"),
    NEEDED: _fields("ranks: number"),
    GOODBYE: _fields("server: line"),
    PONG: _fields("known: flag", "server: line", "number: number", "slots: table", "counters: map"),
    COUNTED: _fields("request: number", "counts: counts"),
    STATUS_IS: _fields("request: number", "status: map"),
    PEEKED: _fields("request: number", "message arrays: bytes"),
}

WORKER_MESSAGES: Mapping[str, Mapping[str, _Check]] = {
    protocol.SEGMENT: _fields("launch: number", "blocks: blocks", "block_nbytes: memory"),
    protocol.END: _fields("sent: number"),
    protocol.ERROR: _fields("summary traceback type: text", "arguments: list", "notes: texts"),
}
"""What a worker says in data messages, besides batches."""


def pack(kind: str, **fields: Any) -> bytes:
    return nest.pack({"kind": kind, **fields})


def unpack_command(data: Any) -> dict[str, Any]:
    """The fields of a command, or ``Malformed``."""
    if len(data) > COMMAND_NBYTES:
        raise Malformed(f"a command of {len(data):,} bytes: {COMMAND_NBYTES:,} are the limit")
    fields = _unpack(data, COMMANDS, _FIELDS_NBYTES)
    if fields["kind"] == START:
        fields["positions"] = unpack_positions(fields)
    return fields


def pack_positions(positions: Mapping[int, Position]) -> bytes:
    """The positions of streams, in the order of their turns, as bytes: their states count as bytes do."""
    rows = [[stream, *vars(position).values()] for stream, position in positions.items()]
    return bytes(msgpack.packb(rows))


def unpack_positions(start: dict[str, Any]) -> dict[int, Position]:
    """The positions of the streams that a command ``start`` names; ``Malformed`` if they are damaged.

    By default there is one stream, of the worker's own number, and its position is in the command.
    """
    rows = [[start["place"][2], start["first"], start["state"], start["at"]]]
    if start.get("positions") is not None:
        try:
            rows = _unpack_rows(start["positions"])
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise Malformed(f"start: positions are damaged: {error}") from error
    try:
        positions = {stream: Position(*position) for stream, *position in rows}
    except (TypeError, ValueError):
        raise Malformed("start: positions must be rows of a stream and its position") from None
    for stream, position in positions.items():
        numbers = (stream, position.first, position.at, position.delivered)
        known = all(map(_is_natural, numbers)) and position.after_end in get_args(AfterEnd)
        if not known or not _is_of_rank(stream, start):
            raise Malformed(f"start: a position of stream {_shown(stream)} is damaged")
        if position.state is not None and not (type(position.state) is bytes and position.state[:1] == b"m"):
            raise Malformed("start: state must be msgpack after an m: pickles are not accepted")
    if not positions:
        raise Malformed("start: positions of no stream")
    return positions


def _unpack_rows(data: bytes) -> list[Any]:
    unpacker = msgpack.Unpacker(max_array_len=_ROW_FIELDS, max_map_len=0, max_buffer_size=len(data))
    unpacker.feed(data)
    number = unpacker.read_array_header()
    if number > MOST_STREAMS:
        raise ValueError(f"{number} streams: {MOST_STREAMS} are the limit")
    return [unpacker.unpack() for _ in range(number)]


def _is_of_rank(stream: int, start: dict[str, Any]) -> bool:
    """True if a rank has a stream of this number; by default, one for each worker."""
    rank, world_size, worker, *_ = start["place"]
    streams = start["streams"]
    return bool(stream == worker if streams is None else rank + stream * world_size < streams)


def unpack_reply(data: Any) -> dict[str, Any] | DataHeader:
    """The fields of a reply, or the head of a data message; ``Malformed`` otherwise."""
    if bytes(data[:1]) != b"\x94":  # a list of four
        reply: dict[str, Any] = printed(_unpack(data, REPLIES, _REPLY_NBYTES))
        return reply
    try:
        head = DataHeader(*msgpack.unpackb(data[:_HEAD_NBYTES]))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Malformed(f"the head of a data message is damaged: {error}") from error
    if not all(map(_is_natural, head)):
        raise Malformed(f"the head of a data message has a bad number: {list(head)!r:.100}")
    return head


def _unpack(data: Any, kinds: Mapping[str, Mapping[str, _Check]], most_nbytes: int) -> dict[str, Any]:
    if len(data) > most_nbytes:
        _check_sizes(data, most_nbytes)
    try:
        fields = nest.unpack(data)
    except EnvelopeError as error:
        raise Malformed(str(error)) from error
    return checked(fields, kinds)


def checked(fields: dict[str, Any], kinds: Mapping[str, Mapping[str, _Check]]) -> dict[str, Any]:
    """The fields of a message that is one of these kinds; ``Malformed`` otherwise."""
    kind = fields.get("kind")
    checks = kinds.get(kind) if type(kind) is str else None
    if checks is None:
        raise Malformed(f"there is no message {_shown(kind)}")
    for name, (expected, holds) in checks.items():
        if not holds(fields.setdefault(name, None)):  # what is optional may be missing
            raise Malformed(f"{kind}: {name} must be {expected}, got {_shown(fields.get(name))}")
    return fields


def _check_sizes(data: Any, most_nbytes: int) -> None:
    """Raises ``Malformed`` if a long message is long by something else than fields of bytes."""
    scout = msgpack.Unpacker(max_buffer_size=len(data))
    scout.feed(data)
    rest = len(data)
    try:
        fields = scout.read_map_header()
        for _ in range(2 * min(fields, _MOST_FIELDS)):
            start = scout.tell()
            scout.skip()
            if bytes(data[start : start + 1]) in (b"\xc4", b"\xc5", b"\xc6"):  # msgpack's bytes
                rest -= scout.tell() - start
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Malformed(f"the bytes are not an envelope: {error or type(error).__name__}") from error
    if rest > most_nbytes:
        raise Malformed(f"{rest} bytes in fields that are not bytes: {most_nbytes} are the limit")


def _shown(value: Any) -> str:
    return repr(value[:50] if isinstance(value, (str, bytes, list)) else value)[:100]


def printed(value: Any, depth: int = _MOST_DEPTH) -> Any:
    """The same with texts, which errors, warnings and logs quote, that do nothing to a terminal."""
    if isinstance(value, str):
        return printable(value, keep="\n\t")
    if isinstance(value, (dict, list)) and not depth:
        raise Malformed(f"fields that are nested more than {_MOST_DEPTH} times")
    if isinstance(value, dict):
        return {printed(key, depth - 1): printed(item, depth - 1) for key, item in value.items()}
    return [printed(item, depth - 1) for item in value] if isinstance(value, list) else value


def pack_head(head: DataHeader) -> bytes:
    return bytes(msgpack.packb(head))


def check_silence(owner: str, name: str, seconds: Any) -> None:
    """Raises ValueError unless peers that are silent for so long can have missed two pings."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not (is_number and seconds >= 2 * PING_S):
        raise ValueError(f"{owner}: {name} must be at least {2 * PING_S:g} seconds, got {seconds!r}")


def notice_lost_machines(socket: Any, silence_s: float) -> None:
    """Makes the system end connections of a ZeroMQ socket whose other machine is silent for so long.

    Pings of the protocol cannot end a connection. ZeroMQ's own heartbeats can, and abort the process: libzmq
    4.3.5 sends one on a connection that ended while its input was stopped. For the same reason, which a
    peer's heartbeats could use, input is never stopped: windows bound what a good peer sends.
    """
    silence_s = min(silence_s, 32_767)  # the system's limit
    socket.rcvhwm = 0
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = socket.tcp_keepalive_intvl = max(1, int(silence_s / 3))
    socket.tcp_keepalive_cnt = 3
    socket.tcp_maxrt = int(silence_s * 1000)  # of data that is not acknowledged


def pack_counters(counters: CounterSnapshot) -> dict[str, Any]:
    """A worker's counters as a map; a stage is the list of its values."""
    stages = {name: list(vars(stage).values()) for name, stage in counters.stages.items()}
    own = {"other": list(vars(counters.other).values()), "writing": list(vars(counters.writing).values())}
    return {**vars(counters), **own, "stages": stages, "skipped": dict(counters.skipped)}


def unpack_counters(fields: Any) -> CounterSnapshot:
    """The counters that :func:`pack_counters` packed; ``Malformed`` if they are damaged."""
    try:
        return CounterSnapshot(
            **plain_values(CounterSnapshot, fields),
            other=_stage(fields["other"]),
            writing=_stage(fields["writing"]),
            stages={str(name): _stage(stage) for name, stage in fields["stages"].items()},
            skipped={str(kind): int(number) for kind, number in fields["skipped"].items()},
        )
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise Malformed(f"a worker's counters are damaged: {error}") from error


def _stage(values: Any) -> StageSnapshot:
    time_ns, elements, storage, nbytes = values
    return StageSnapshot(int(time_ns), int(elements), bool(storage), int(nbytes))


def machine() -> str:
    """Identifies this machine and user: the number of its boot, which no two machines share."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = socket.gethostname()
    return f"{boot}/{os.geteuid()}"
