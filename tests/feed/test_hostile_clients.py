"""What clients may send to a server: others keep getting their data, memory and processes stay bounded."""

import contextlib
import os
import pickle
import random
import socket
import struct
import threading
import time
from types import SimpleNamespace

import msgpack
import psutil
import pytest
import zmq

import mpwds
from mpwds.feed import wire
from mpwds.feed.server.router import Router
from mpwds.feed.status_client import StatusClient
from tests.feed.clients import Client
from tests.feed.messages import COMMANDS
from tests.feed.serving import LONG, ServerProcess, bits, delivered, large, locally, numbers
from tests.loader.faults.processes import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")


def workers_of(server):
    """Its worker processes; the fork server is their parent."""
    return psutil.Process(server.pid).children(recursive=True)[1:]


def resident(server):
    return psutil.Process(server.pid).memory_info().rss


# A single client.


def test_a_client_gets_no_more_processes_than_the_server_allows():
    with ServerProcess(numbers(), workers=1) as server, Client(server.url) as client:
        client.welcomed()
        for slot in [*range(20), 2**40, 2**63 - 1]:
            client.say(wire.START, slot=slot, attempt=slot + 1)
        assert "has taken over 4 workers" in client.hear(wire.REFUSED)["why"]
        assert len(workers_of(server)) <= 5


def test_a_client_that_comes_and_goes_piles_up_no_processes():
    most = 0
    with ServerProcess(numbers(), workers=2) as server, Client(server.url) as client:
        for attempt in range(1, 100):
            client.say(wire.HELLO)
            client.say(wire.START, attempt=attempt)
            client.say(wire.BYE)
            if attempt % 10 == 0:
                client.status()
                most = max(most, len(workers_of(server)))
    assert most <= 3 * 2


@pytest.mark.slow
def test_a_huge_window_does_not_make_the_server_hold_more_than_an_arena():
    dataset = mpwds.DataPipeline(large()).repeat()
    with ServerProcess(dataset, workers=1) as server, Client(server.url) as client:
        client.socket.rcvhwm = 1
        client.welcomed()
        client.say(wire.START, window=2**63 - 1)
        with Client(server.url) as other:
            figures, before = other.status(), -1
            while not figures["workers"] or (now := figures["workers"][0]["unacknowledged_bytes"]) > before:
                before = now if figures["workers"] else -1
                client.say(wire.PING, acknowledged=[])
                time.sleep(1)
                figures = other.status()
        assert 0 < before <= 17 << 20


def test_an_acknowledgement_of_more_than_was_sent_makes_no_room():
    dataset = mpwds.DataPipeline(large()).repeat()
    with ServerProcess(dataset, workers=1) as server, Client(server.url) as client:
        client.welcomed()
        client.say(wire.START, window=1 << 20)
        client.hear("data")
        for nbytes in (2**40, 2**63 - 1):
            client.say(wire.ACK, nbytes=nbytes)
            client.say(wire.PING, acknowledged=[[0, 1, nbytes]])
            assert client.status()["workers"][0]["unacknowledged_bytes"] > 0


ABSURD = [
    {"epoch": 2**63 - 1},
    {"place": [0, 1, 2**62, 2**63 - 1, None]},
    {"place": [2**62, 2**63 - 1, 0, 1, -(2**63)]},
    {"place": [0, 1, 0, 1, 2**64 - 1]},
    {"first": 2**63 - 1},
    {"first": 2**62, "at": 2**62},
    {"state": b"m"},
    {"state": b"m\xc1"},
    {"state": b"m" + msgpack.packb({"source": None})},
    {"state": b"m" + b"\xdd\xff\xff\xff\xff" * 100},
]


def test_absurd_parts_end_or_fail_and_harm_nobody():
    with ServerProcess(numbers(), workers=2) as server, Client(server.url) as client:
        client.welcomed(workers=1)
        for attempt, start in enumerate(ABSURD, 1):
            client.say(wire.START, attempt=attempt, **start)
            frames = b""
            while b"\xa3end" not in frames and b"\xa5error" not in frames:
                frames = client.hear("data")
        with mpwds.RemoteLoader(server.url, workers=1, output="numpy") as loader:
            assert delivered(loader) == locally(numbers(), 1)[0]


IMPOSSIBLE = [
    {"place": [1, 1, 0, 1, None]},
    {"window": -1},
    {"state": b"p" + pickle.dumps(1)},
    {"shared_memory": True},
]


def test_parts_that_cannot_be_are_dropped_and_counted():
    with ServerProcess(numbers(), workers=1) as server, Client(server.url) as client:
        client.welcomed()
        for count, start in enumerate(IMPOSSIBLE, 1):
            client.say(wire.START, **start)
            assert client.status()["dropped"] == {"malformed": count}, start
        assert "dropped message 1 (malformed): start: " in server.log
        assert "from 127.0.0.1" in server.log
        assert workers_of(server) == []


def test_of_many_questions_for_a_batch_the_last_one_of_a_client_is_answered():
    with ServerProcess(large(), workers=2) as server, Client(server.url) as client:
        client.welcomed(workers=1)
        for request in range(50):
            client.say(wire.PEEK, request=request)
        assert client.status()["dropped"] == {}
        with mpwds.RemoteLoader(server.url, workers=1, output="numpy") as loader:
            assert delivered(loader) == locally(large(), 1)[0]
        client.say(wire.STATUS)
        answers = [client.hear(wire.PEEKED, wire.STATUS_IS) for _ in range(2)]
    assert [answer["request"] for answer in answers if answer["kind"] == wire.PEEKED] == [49]


def test_an_oversized_command_and_messages_of_many_frames_are_dropped_and_counted():
    with ServerProcess(numbers(), workers=1) as server, Client(server.url) as client:
        client.welcomed()
        client.say(wire.START, state=b"m" + bytes(wire.COMMAND_NBYTES))
        assert client.status()["dropped"] == {"malformed": 1}
        assert "a command of 33,554," in server.log
        assert "33,554,432 are the limit (from 127.0.0.1)" in server.log
        client.socket.send_multipart([wire.pack(wire.STATUS, request=1)] * 10_000)
        client.socket.send_multipart([b""] * 2)
        assert client.status()["dropped"] == {"malformed": 3}


def test_clients_without_an_identity_are_counted_apart_as_old_connections_look_like_them():
    with ServerProcess(numbers(), workers=1) as server, Client(server.url, b"") as nameless:
        nameless.say(wire.STATUS)
        with Client(server.url) as client:
            wait_until(lambda: client.status()["dropped"], "the message to arrive")
            assert client.status()["dropped"] == {"no identity": 1}
        assert "(no identity): a client that sets no identity, or a connection that" in server.log


def test_identities_are_told_to_nobody():
    identity = b"\1" + b"thisIsMySecret!"
    with ServerProcess(numbers(), workers=2) as server, Client(server.url, identity) as client:
        client.welcomed(workers=1)
        client.say(wire.START, window=-1)
        with Client(server.url) as other:
            other.welcomed(workers=1)
            for kind in COMMANDS:
                other.say(kind)
            heard = b""
            while other.socket.poll(500):
                heard += b"".join(other.socket.recv_multipart())
        assert heard
        assert b"Secret" not in heard
        assert "Secret" not in server.log


def test_a_client_cannot_touch_the_parts_of_another():
    with ServerProcess(numbers(), workers=2) as server:
        with mpwds.RemoteLoader(server.url, workers=1, output="numpy") as loader, Client(server.url) as other:
            batches = iter(loader)
            first = next(batches)
            attempt = loader._remote.servers.connections[0].queues[0].attempt.number
            other.welcomed(workers=1)
            for kind in (wire.STOP, wire.ACK, wire.START):
                other.say(kind, slot=0, attempt=attempt)
            other.say(wire.BYE)
            other.status()
            rest = list(batches)
        assert [bits(batch) for batch in (first, *rest)] == locally(numbers(), 1)[0]


class SlowToCount:
    """Keeps its server busy for 1.5 seconds whenever a client asks for a count."""

    def __iter__(self):
        return iter(range(8))

    def __len__(self):
        time.sleep(1.5)
        return 8


def raw_frames(*bodies, flags=0):
    return b"".join(bytes([flags | 2]) + len(body).to_bytes(8, "big") + body for body in bodies)


class RawClient:
    """Speaks ZeroMQ's protocol by itself, so it may also send commands that belong to ZeroMQ."""

    def __init__(self, url):
        self.connection = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48)
        properties = {b"Socket-Type": b"DEALER", b"Identity": b"\1" + os.urandom(15)}
        told = [
            bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
            for name, value in properties.items()
        ]
        self.connection.sendall(greeting + raw_frames(b"\5READY" + b"".join(told), flags=4))
        heard = b""
        while b"READY" not in heard:
            heard += self.connection.recv(1000)

    def say(self, kind, times=1, heartbeats=False, **changed):
        message = raw_frames(wire.pack(kind, **{**COMMANDS[kind], **changed}))
        heartbeat = raw_frames(b"\4PING" + bytes(2), flags=4) if heartbeats else b""
        self.connection.settimeout(0.5)
        with contextlib.suppress(TimeoutError, ConnectionError):  # the server reads no more, or has died
            for _ in range(times):
                self.connection.sendall(message + heartbeat)

    def close(self):
        """Vanishes: what it has sent may not have been read yet."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


@pytest.mark.parametrize("heartbeats", [False, True])
def test_clients_that_send_many_pings_and_go_away_leave_a_server_alive(heartbeats):
    """Heartbeats of ZeroMQ need no busy server: they follow the pings on the same connection."""
    with ServerProcess(SlowToCount(), workers=2) as server:
        for epoch in range(2):
            with contextlib.closing(RawClient(server.url)) as client:
                client.say(wire.HELLO, workers=1)
                if not heartbeats:
                    client.say(wire.COUNT, epoch=epoch, exact=False)
                time.sleep(0.2)  # the server is counting now, and ZeroMQ goes on receiving
                client.say(wire.PING, times=20_000, heartbeats=heartbeats)
        with Client(server.url) as other:
            assert other.status()["dropped"] == {}
        assert server.process.poll() is None


# Many messages of every kind.


class Attack:
    """Sends random and mutated messages from several connections, in a thread of its own."""

    def __init__(self, url, messages, seed):
        self._url = url
        self._messages = messages
        self._random = random.Random(seed)
        self.sent = 0
        self._clients = contextlib.ExitStack()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._messages = 0
        self._thread.join()

    @property
    def runs(self):
        return self._thread.is_alive()

    def _run(self):
        rng, clients = self._random, []
        while self.sent < self._messages:
            if self.sent % 1000 == 0:
                self._clients.close()
                clients = [self._clients.enter_context(self._client()) for _ in range(6)]
                self._shout()
            with contextlib.suppress(zmq.Again):
                rng.choice(clients).socket.send_multipart(self._frames(), rng.choice((0, zmq.NOBLOCK)))
            self.sent += 1
        self._clients.close()

    def _client(self):
        rng = self._random
        return Client(self._url, rng.randbytes(rng.choice([16, 16, 16, 5, 100])).replace(b"\0", b"\1"))

    def _shout(self):
        """Says something at the port that is not ZeroMQ, or begins like it."""
        rng = self._random
        port = int(self._url.rpartition(":")[2])
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(rng.choice([b"", greeting]) + rng.randbytes(rng.randrange(3000)))

    def _frames(self):
        rng = self._random
        chance = rng.random()
        if chance < 0.1:
            return [rng.randbytes(rng.randrange(200))]
        if chance < 0.12:
            return [self._message() for _ in range(rng.randrange(2, 9))]
        if chance < 0.121:
            return [bytes(rng.randrange(1 << 20))]
        return [self._message()]

    def _message(self):
        rng = self._random
        kind = rng.choice(list(COMMANDS))
        fields = {"mpwds": 1, "kind": kind, **COMMANDS[kind]}
        if kind == wire.HELLO:
            fields["workers"] = 1
        for _ in range(rng.randrange(4)):
            fields[rng.choice(list(fields))] = self._value()
        data = bytearray(msgpack.packb(fields))
        for _ in range(rng.choice([0, 0, 0, 1, 3])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.05 else data)

    def _value(self):
        rng = self._random
        number = rng.choice([0, 1, 2, -1, rng.randrange(2**62), 2**63 - 1, 2**63, 2**64 - 1, -(2**63)])
        few = [number] * rng.randrange(6)
        other = [None, True, 1.5, float("nan"), "x", "a\nb", b"m", b"mx", b"p", few, [few], {}, {"a": few}]
        return rng.choice([number, number, rng.choice(other)])


def test_messages_of_one_kind_are_logged_once_in_five_seconds(monkeypatch, caplog):
    now = 100.0
    monkeypatch.setattr("mpwds.feed.server.router.time", SimpleNamespace(monotonic=lambda: now))
    router = Router("tcp://127.0.0.1:*", None, insecure=False, client_timeout=10)
    for moment in (100, 104.9, 105, 109.9, 110):
        now = moment
        for _ in range(50):
            router.drop("malformed", "x")
            router.drop("failed", "x")
    router.close()
    told = [
        f"dropped message {count} ({kind}): x" for count in (1, 101, 201) for kind in ("malformed", "failed")
    ]
    assert caplog.messages == told


def withstand(server, dataset, messages):
    """A good client reads epochs, bit for bit, while others send; the growth of the server's memory."""
    expected = locally(dataset, 2)[0]
    sizes = []
    with mpwds.RemoteLoader(server.url, workers=2, output="numpy", shared_memory=False) as loader:
        with Attack(server.url, messages, seed=messages) as attack:
            while attack.runs:
                loader.set_epoch(0)
                assert delivered(loader) == expected
                sizes.append(resident(server))
        loader.set_epoch(0)
        assert delivered(loader) == expected
        assert attack.sent >= messages
    with StatusClient([server.url], timeout=60) as inspector:
        dropped = inspector.status()[0]["dropped"]
    assert dropped["malformed"] > messages / 10
    assert dropped["handshake"] > 0
    assert "failed" not in dropped, server.log
    lines = [line for line in server.log.splitlines() if line.startswith("dropped message")]
    assert len(lines) <= messages / 10
    assert any("from 127.0.0.1" in line for line in lines)
    return max(sizes[len(sizes) // 4 :]) - sizes[len(sizes) // 4]


def test_a_good_client_gets_its_data_while_others_send_garbage():
    with ServerProcess(large(), workers=4) as server:
        assert withstand(server, large(), 4000) < 100 << 20


@pytest.mark.slow
@pytest.mark.timeout(3000 if LONG else 900)
def test_a_million_messages_do_no_harm():
    with ServerProcess(large(), workers=4) as server:
        assert withstand(server, large(), 1_000_000 if LONG else 50_000) < 100 << 20
