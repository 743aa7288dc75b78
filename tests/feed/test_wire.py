"""Messages of the feed: whatever arrives is a message of the protocol, or Malformed."""

import contextlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpwds.feed import wire
from mpwds.feed.wire import DataHeader, Malformed
from tests.feed.messages import COMMANDS, REPLIES, START, damaged

UNPACK = {wire.unpack_command: COMMANDS, wire.unpack_reply: REPLIES}


@pytest.mark.parametrize(
    ("unpack", "kind", "fields"),
    [(unpack, kind, fields) for unpack, kinds in UNPACK.items() for kind, fields in kinds.items()],
)
def test_good_messages_arrive_as_they_are(unpack, kind, fields):
    assert unpack(wire.pack(kind, **fields)) == {"kind": kind, **fields}


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


def test_a_pickled_state_is_refused():
    with pytest.raises(Malformed, match="pickles are not accepted"):
        wire.unpack_command(wire.pack(wire.START, **{**START, "state": b"p" + b"cos\nsystem\n."}))


def test_the_error_names_kind_field_and_what_is_expected():
    with pytest.raises(Malformed, match="start: window must be a whole number, not negative, got -5"):
        wire.unpack_command(wire.pack(wire.START, **{**START, "window": -5}))


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31mred", "x" * 300])
def test_names_cannot_forge_lines_of_a_log(name):
    with pytest.raises(Malformed, match="hello: name must be a short line of text"):
        wire.unpack_command(wire.pack(wire.HELLO, **{**COMMANDS[wire.HELLO], "name": name}))


def test_a_welcome_to_more_workers_than_any_server_has_is_refused():
    with pytest.raises(Malformed, match="welcome: workers must be 1 to 4096"):
        wire.unpack_reply(wire.pack(wire.WELCOME, **{**REPLIES[wire.WELCOME], "workers": 2**40}))


@pytest.mark.parametrize("value", [True, 1.0, "1", -1, 1 << 63, None])
def test_a_number_is_whole_and_below_two_to_the_63(value):
    with pytest.raises(wire.Malformed, match="ping: number must be a whole number"):
        wire.unpack_command(wire.pack(wire.PING, number=value, acknowledged=[]))
