"""Good messages of the feed, and hypothesis' ways to damage them."""

import msgpack
from hypothesis import strategies as st

from mpwds.feed import wire

PLACE = [0, 1, 0, 2, None]
HELLO = {
    "versions": [wire.VERSION],
    "name": "host:1",
    "workers": None,
    "rank": 0,
    "world_size": 1,
    "fingerprint": None,
    "host": "",
    "group": None,
    "members": None,
    "max_lag": None,
}
START = {
    "slot": 0,
    "attempt": 1,
    "epoch": 0,
    "place": PLACE,
    "first": 0,
    "state": None,
    "at": 0,
    "window": 1 << 20,
    "shared_memory": False,
}
COMMANDS = {
    wire.HELLO: HELLO,
    wire.START: START,
    wire.STOP: {"slot": 0, "attempt": 1},
    wire.ACK: {"slot": 0, "attempt": 1, "nbytes": 0, "window": 1 << 20},
    wire.PING: {"number": 1, "acknowledged": [[0, 1, 0]]},
    wire.BYE: {},
    wire.COUNT: {"request": 1, "epoch": 0, "world_size": 1, "workers": 2, "seed": None, "exact": True},
    wire.STATUS: {"request": 1},
    wire.PEEK: {"request": 1},
}
WELCOME = {
    "version": wire.VERSION,
    "server": "0123",
    "host": "host",
    "workers": 2,
    "blocks": 4,
    "handover": None,
    "description": ["range(8)"],
    "seed": None,
    "length": None,
    "in_any_order": False,
    "unaddressed": None,
    "fingerprint": "0123",
}
REPLIES = {
    wire.WELCOME: WELCOME,
    wire.WAIT: {"why": "it is busy"},
    wire.REFUSED: {"why": "no"},
    wire.NOTICE: {"text": "a worker died"},
    wire.NEEDED: {"ranks": 2},
    wire.GOODBYE: {"server": "0123"},
    wire.PONG: {"known": True, "server": "0123", "number": 1, "slots": [[0, 1, 0]], "counters": {}},
    wire.COUNTED: {"request": 1, "counts": [7, 7]},
    wire.STATUS_IS: {"request": 1, "status": {}},
    wire.PEEKED: {"request": 1, "message": b"", "arrays": b""},
}

numbers = st.sampled_from([0, 1, -1, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]) | st.integers(0, 9)
plain = st.none() | st.booleans() | numbers | st.floats() | st.text(max_size=9) | st.binary(max_size=9)
values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(plain, inner), max_leaves=9)


@st.composite
def damaged(draw, messages):
    """The bytes of one of the messages, of which a field has another value or is missing, or bytes differ."""
    kind = draw(st.sampled_from(sorted(messages)))
    fields = {"mpwds": 1, "kind": kind, **messages[kind]}
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=2)):
        if draw(st.integers(0, 3)):
            fields[name] = draw(values)
        else:
            fields.pop(name, None)
    data = bytearray(msgpack.packb(fields))
    for at in draw(st.lists(st.integers(0, len(data) - 1), max_size=2)):
        data[at] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))]) if not draw(st.integers(0, 5)) else bytes(data)
