"""Messages of the feed: whatever arrives is a message of the protocol, or Malformed."""

import contextlib
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpwds.feed import wire
from mpwds.feed.wire import DataHeader, Malformed
from mpwds.loader.resume.progress import Position
from mpwds.stats.snapshot import CounterSnapshot, StageSnapshot
from tests.feed.messages import COMMANDS, REPLIES, START, damaged

UNPACK = {wire.unpack_command: COMMANDS, wire.unpack_reply: REPLIES}


@pytest.mark.parametrize(
    ("unpack", "kind", "fields"),
    [(unpack, kind, fields) for unpack, kinds in UNPACK.items() for kind, fields in kinds.items()],
)
def test_good_messages_arrive_as_they_are(unpack, kind, fields):
    unpacked = unpack(wire.pack(kind, **fields))
    assert {name: unpacked[name] for name in fields} == fields


POSITIONS = {1: Position(3, b"m\x80", 2, 3, "wrap"), 0: Position(2)}


def start_of(positions, **fields):
    return wire.unpack_command(wire.pack(wire.START, **{**START, "positions": positions, **fields}))


class TestAStart:
    def test_says_where_its_streams_go_on_in_the_order_of_their_turns(self):
        positions = start_of(wire.pack_positions(POSITIONS), streams=4)["positions"]
        assert list(positions.items()) == list(POSITIONS.items())

    def test_has_one_stream_by_default(self):
        positions = start_of(None, place=[0, 1, 2, 3, None], first=5, state=b"m\x80", at=4)["positions"]
        assert positions == {2: Position(5, b"m\x80", 4)}

    @pytest.mark.parametrize(
        ("rows", "streams", "message"),
        [
            ([], 4, "positions of no stream"),
            ([[0]] * 2 + [[4, 0, None, 0]], 4, "a position of stream 4 is damaged"),
            ([[0, 0, None, 0]], 0, "a position of stream 0 is damaged"),
            ([[1, 0, None, 0]], None, "a position of stream 1 is damaged"),
            ([[0, -1, None, 0]], 4, "a position of stream 0 is damaged"),
            ([[0, 0, None, 0, 0, "again"]], 4, "a position of stream 0 is damaged"),
            ([[0, 0, b"pickle", 1]], 4, "pickles are not accepted"),
            ([[0, 0, None, 0, 0, "", 7]], 4, "positions are damaged"),
            ([[0] * 4] * 70_000, 4, "positions are damaged: 70000 streams"),
            ([7], 4, "rows of a stream and its position"),
            (7, 4, "positions are damaged"),
        ],
    )
    def test_with_damaged_positions_is_malformed(self, rows, streams, message):
        with pytest.raises(Malformed, match=message):
            start_of(msgpack.packb(rows), streams=streams)

    @given(positions=st.binary(max_size=60))
    def test_with_any_positions_is_a_message_or_malformed(self, positions):
        with contextlib.suppress(Malformed):
            assert start_of(positions, streams=4)["positions"]


@pytest.mark.parametrize("unpack", UNPACK)
@given(data=st.data())
def test_whatever_arrives_is_a_message_or_malformed(unpack, data):
    message = data.draw(st.binary(max_size=200) | damaged(UNPACK[unpack]))
    with contextlib.suppress(Malformed):
        fields = unpack(message)
        if isinstance(fields, DataHeader):
            assert all(type(number) is int and 0 <= number < 1 << 63 for number in fields)
            return
        assert fields["kind"] in UNPACK[unpack]
        assert fields.keys() >= UNPACK[unpack][fields["kind"]].keys()


def array_claims(count):
    return b"\xdd" + count.to_bytes(4, "big")


def with_field(value):
    return b"\x83\xa5mpwds\x01\xa4kind\xa3bye\xa1x" + value


LONG = 4 << 20
COSTLY = {
    "many small lists": with_field(array_claims(LONG) + b"\x90" * LONG),
    "lists in lists": with_field((array_claims(1000) + b"\x90" * 999) * 4),
    "a claim of many elements": with_field(array_claims(2**32 - 1)),
    "many claims": with_field(array_claims(2**32 - 1) * 500),
    "claims that a long message could meet": with_field(array_claims(LONG) * 500 + bytes(LONG)),
    "a map of many": b"\xdf\xff\xff\xff\xff" + bytes(LONG),
    "many fields": b"\xdf" + (LONG // 2).to_bytes(4, "big") + b"\xa0\xc0" * (LONG // 2),
    "a long name": b"\x82\xa5mpwds\x01" + b"\xdb" + LONG.to_bytes(4, "big") + b"x" * LONG + b"\xc0",
    "a long kind": b"\x82\xa5mpwds\x01\xa4kind\xdb" + LONG.to_bytes(4, "big") + b"x" * LONG,
    "bytes for a kind": b"\x82\xa5mpwds\x01\xa4kind\xc6" + LONG.to_bytes(4, "big") + b"x" * LONG,
    "a long head": b"\x94" + b"\xdd" + LONG.to_bytes(4, "big") + b"\x90" * LONG + b"\x00\x00\x00",
}


@pytest.mark.parametrize("unpack", UNPACK)
@pytest.mark.parametrize("name", COSTLY)
def test_a_message_costs_no_more_memory_than_a_few_of_its_size(unpack, name):
    message = COSTLY[name]
    tracemalloc.start()
    try:
        with contextlib.suppress(Malformed):
            unpack(message)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 3 * len(message) + (8 << 20)


def test_a_long_state_is_accepted():
    state = b"m" + bytes(LONG)
    assert wire.unpack_command(wire.pack(wire.START, **{**START, "state": state}))["state"] == state


@pytest.mark.parametrize("value", [True, 1.0, "1", -1, 1 << 63, None])
def test_a_number_is_whole_and_below_two_to_the_63(value):
    with pytest.raises(wire.Malformed, match="ping: number must be a whole number"):
        wire.unpack_command(wire.pack(wire.PING, number=value, acknowledged=[]))


def list_of(count, item):
    return [item] * count


SEGMENT = wire.protocol.SEGMENT
MOST_BLOCKS, MOST_STREAMS = wire.MOST_BLOCKS, wire.MOST_STREAMS
PLACES, TABLE = "[rank, world_size, worker, workers, seed]", "a list of [slot, attempt, number]"
COUNTS = "a list of numbers, or why there is none"
LIMITS = {
    "names of 256 characters": (wire.HELLO, "name", "x" * 256, "x" * 257, "a short line of text"),
    "names that forge no line of a log": (wire.HELLO, "name", "a b", "a\nb", "a short line of text"),
    "names without colours": (wire.HELLO, "name", "red", "\x1b[31mred", "a short line of text"),
    "hosts": (wire.HELLO, "host", "cpu1", "cpu1\n", "a short line of text"),
    "groups, or none": (wire.HELLO, "group", None, 3, "a short line of text, or None"),
    "16 versions": (wire.HELLO, "versions", list_of(16, 1), list_of(17, 1), "a list of versions"),
    "workers from 1": (wire.HELLO, "workers", 1, 0, "1 to 4096, or None"),
    "workers to 4096": (wire.HELLO, "workers", 4096, 4097, "1 to 4096, or None"),
    "members": (wire.HELLO, "members", 0, -1, "a whole number, not negative, or None"),
    "seconds": (wire.HELLO, "max_lag", 0.5, 0, "seconds, or None"),
    "numbers to 2 ** 63": (wire.START, "epoch", (1 << 63) - 1, 1 << 63, "a whole number, not negative"),
    "flags": (wire.START, "shared_memory", False, 0, "true or false"),
    "ranks": (wire.START, "place", [1, 2, 0, 1, None], [2, 2, 0, 1, None], PLACES),
    "places of workers": (wire.START, "place", [0, 1, 1, 2, None], [0, 1, 2, 2, None], PLACES),
    "seeds": (wire.START, "place", [0, 1, 0, 1, -5], [0, 1, 0, 1, 0.5], PLACES),
    "workers of ranks": (wire.COUNT, "workers", 1, 0, "a whole number above 0"),
    "places of five": (wire.START, "place", [0, 1, 0, 1, 0], [0, 1, 0, 1], PLACES),
    "acknowledged rows of three": (wire.PING, "acknowledged", [[1, 2, 3]], [[1, 2]], TABLE),
    "10,000 rows": (wire.PING, "acknowledged", list_of(10_000, [0, 0, 0]), list_of(10_001, [0, 0, 0]), TABLE),
    "workers of a server": (wire.WELCOME, "workers", 4096, 2**40, "1 to 4096"),
    "descriptions": (wire.WELCOME, "description", ["text"], "text", "a list of str"),
    "lengths, or none": (wire.WELCOME, "length", None, -1, "a whole number, not negative, or None"),
    "fingerprints": (wire.WELCOME, "fingerprint", "f", None, "a short line of text"),
    "names of servers": (wire.WELCOME, "server", "one line", "two\nlines", "a short line of text"),
    "addresses, or none": (wire.WELCOME, "handover", None, 7, "a short line of text, or None"),
    "counts": (wire.COUNTED, "counts", list_of(MOST_STREAMS, 1 << 62), list_of(MOST_STREAMS + 1, 0), COUNTS),
    "natural counts": (wire.COUNTED, "counts", [0, 7], [-1], COUNTS),
    "why there are none": (wire.COUNTED, "counts", "there is none", None, COUNTS),
    "1 block": (SEGMENT, "blocks", 1, 0, f"1 to {MOST_BLOCKS}"),
    "the blocks of an arena": (SEGMENT, "blocks", MOST_BLOCKS, MOST_BLOCKS + 1, f"1 to {MOST_BLOCKS}"),
    "bytes of a block": (SEGMENT, "block_nbytes", 1, 0, "a number of bytes"),
    "fewer than 2 ** 48": (SEGMENT, "block_nbytes", (1 << 48) - 1, 1 << 48, "a number of bytes"),
}
GOOD = {**COMMANDS, **REPLIES, SEGMENT: {"launch": 1, "blocks": 2, "block_nbytes": 4096}}


def checked(kind, **changed):
    """A good message with other fields, after its checks."""
    if kind == SEGMENT:
        return wire.checked({"kind": kind, **GOOD[kind], **changed}, wire.WORKER_MESSAGES)
    unpack = wire.unpack_command if kind in COMMANDS else wire.unpack_reply
    return unpack(wire.pack(kind, **{**GOOD[kind], **changed}))


@pytest.mark.parametrize(("kind", "name", "good", "bad", "expected"), LIMITS.values(), ids=LIMITS)
def test_a_field_of_a_message_has_limits(kind, name, good, bad, expected):
    assert checked(kind, **{name: good})[name] == good
    with pytest.raises(Malformed) as error:
        checked(kind, **{name: bad})
    assert str(error.value).startswith(f"{kind}: {name} must be {expected}, got ")


def test_a_command_has_a_longest_length():
    empty = len(wire.pack(wire.START, **{**START, "state": b"m" + bytes(1 << 20)})) - (1 << 20)
    longest = {**START, "state": b"m" + bytes(wire.COMMAND_NBYTES - empty)}
    assert len(wire.pack(wire.START, **longest)) == wire.COMMAND_NBYTES
    wire.unpack_command(wire.pack(wire.START, **longest))
    longer = wire.pack(wire.START, **{**longest, "state": longest["state"] + b"x"})
    with pytest.raises(Malformed, match="a command of 33,554,433 bytes: 33,554,432 are the limit"):
        wire.unpack_command(longer)


def test_the_head_of_a_data_message_arrives_as_it_is():
    head = DataHeader(slot=1, attempt=2, number=3, nbytes=(1 << 63) - 1)
    assert wire.unpack_reply(wire.pack_head(head)) == head
    for bad in (head._replace(slot=-1), head._replace(nbytes=1.5), head._replace(number=1 << 63)):
        with pytest.raises(Malformed, match="the head of a data message has a bad number"):
            wire.unpack_reply(wire.pack_head(bad))
    with pytest.raises(Malformed, match="the head of a data message is damaged"):
        wire.unpack_reply(wire.pack_head(head)[:-1])


def test_texts_of_replies_do_nothing_to_a_terminal():
    status = {"a\x1b": ["b\x07", {"c": "d\n\te\r"}], "f": 1}
    found = wire.unpack_reply(wire.pack(wire.STATUS_IS, request=1, status=status))
    assert found["status"] == {"a�": ["b�", {"c": "d\n\te�"}], "f": 1}


def test_fields_that_are_nested_too_deeply_are_refused():
    def nested(depth):
        return [] if depth == 1 else [nested(depth - 1)]

    assert wire.printed(nested(32)) == nested(32)
    with pytest.raises(Malformed, match="fields that are nested more than 32 times"):
        wire.printed(nested(33))


COUNTERS = CounterSnapshot(
    active_ns=1,
    waiting_ns=2,
    batches=3,
    samples=4,
    nbytes=5,
    cpu_ns=6,
    queued_ns=7,
    restarts=8,
    assigned_ns=9,
    other=StageSnapshot(10, 11),
    writing=StageSnapshot(12, 13),
    stages={"tar": StageSnapshot(14, 15, True, 16), "decode": StageSnapshot(17, 18)},
    skipped={"decode: E": 19},
    shard="a.tar",
    pid=20,
    server="tcp://cpu1:7880",
    lost_s=21.5,
)


def test_a_workers_counters_arrive_as_they_are():
    assert wire.unpack_counters(wire.nest.unpack(wire.nest.pack(wire.pack_counters(COUNTERS)))) == COUNTERS


DAMAGES = [
    {"batches": "many"},
    {"other": [1, 2]},
    {"stages": []},
    {"skipped": {"a": None}},
    {"writing": None},
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: next(iter(damage)))
def test_counters_that_are_damaged_are_malformed(damage):
    packed = wire.pack_counters(COUNTERS)
    without = {name: value for name, value in packed.items() if name not in damage}
    for fields in ({**packed, **damage}, without, None):
        with pytest.raises(Malformed, match="a worker's counters are damaged"):
            wire.unpack_counters(fields)


@pytest.mark.parametrize("seconds", [1.99, 0, -3, True, "5", None, float("nan")])
def test_a_silence_is_two_pings_or_longer(seconds):
    for good in (2, 2.0, float("inf")):
        wire.check_silence("Server", "heartbeat_timeout", good)
    expected = f"^Server: heartbeat_timeout must be at least 2 seconds, got {seconds!r}$"
    with pytest.raises(ValueError, match=expected):
        wire.check_silence("Server", "heartbeat_timeout", seconds)


class Options:
    """Stands for a socket, whose options are set."""


@pytest.mark.parametrize(
    ("silence_s", "pause_s", "most_ms"), [(10, 3, 10_000), (2, 1, 2000), (1e9, 10_922, 32_767_000)]
)
def test_connections_to_machines_that_are_silent_for_so_long_are_ended(silence_s, pause_s, most_ms):
    socket = Options()
    wire.notice_lost_machines(socket, silence_s)
    assert vars(socket) == {
        "rcvhwm": 0,
        "tcp_keepalive": 1,
        "tcp_keepalive_idle": pause_s,
        "tcp_keepalive_intvl": pause_s,
        "tcp_keepalive_cnt": 3,
        "tcp_maxrt": most_ms,
    }
