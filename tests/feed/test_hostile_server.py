"""What a server may send to a trainer: no code runs, no memory goes beyond limits, nothing hangs."""

import contextlib
import itertools
import pickle
import threading
import time
import traceback

import msgpack
import pytest
import zmq

import mpwds
from mpwds import nest
from mpwds.errors import MpwdsError, ServerLost, WorkerTimeout
from mpwds.feed import wire
from mpwds.feed.wire import DataHeader
from mpwds.interrupts import uninterrupted
from mpwds.loader.messages.channel import frame_of
from mpwds.stats.snapshot import CounterSnapshot
from tests.feed.messages import WELCOME
from tests.feed.serving import turned_away
from tests.loader.faults.processes import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")


class Trap:
    """Its pickle calls a function that leaves a trace."""

    sprung = False

    def __reduce__(self):
        return setattr, (Trap, "sprung", True)


TRAP = pickle.dumps(Trap())


class HostileServer:
    """Welcomes a trainer, and answers each ``start`` with what ``answer(slot, attempt)`` yields."""

    def __init__(self, answer, welcome=None, pong=None, counts="it is hostile"):
        self._answer, self._welcome, self._pong = answer, welcome or {}, pong or {}
        self._counts = counts
        self.heard = []
        self._ends = threading.Event()
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.linger = 0
        self._router.sndhwm = 0  # a ROUTER drops what is above its mark
        self.url = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._ends.set()
        self._thread.join()
        uninterrupted(self._context.destroy, 0)

    def _serve(self):
        while not self._ends.is_set():
            if not self._router.poll(50):
                continue
            who, data = self._router.recv_multipart()
            fields = nest.unpack(data)
            self.heard.append(fields["kind"])
            for frames in self._replies(fields):
                self._router.send_multipart([who, *frames])

    def _replies(self, fields):
        if fields["kind"] == wire.HELLO:
            yield [wire.pack(wire.WELCOME, **{**WELCOME, "workers": 1, **self._welcome})]
        elif fields["kind"] == wire.PING:
            pong = {"known": True, "server": WELCOME["server"], "number": 0, "slots": [], "counters": {}}
            yield [wire.pack(wire.PONG, **{**pong, **self._pong})]
        elif fields["kind"] == wire.COUNT:
            yield [wire.pack(wire.COUNTED, request=fields["request"], counts=self._counts)]
        elif fields["kind"] == wire.START:
            yield from self._answer(fields["slot"], fields["attempt"])


@pytest.fixture(autouse=True)
def no_trap_springs():
    yield
    assert not Trap.sprung


def read(answer, **options):
    """What a trainer reads from a server that answers so."""
    with HostileServer(answer, **options) as server:
        options = {"max_batch_bytes": 100_000, "timeout": 600, "output": "numpy", "server_timeout": 600}
        with mpwds.RemoteLoader(server.url, **options) as loader:
            return list(loader)


def data(*messages, parts=(), nbytes=None, number=0):
    """An answer of one data message, which is an ``end`` if ``messages`` is empty."""

    def answer(slot, attempt):
        size = sum(map(len, parts)) if nbytes is None else nbytes
        yield [wire.pack_head(DataHeader(slot, attempt, number, size)), b"".join(messages), *parts]

    return answer


def message(kind, payload=b"", **fields):
    return bytes(frame_of({"kind": kind, "generation": 1, **fields}, payload))


def batch(structure=7, sequence=0, offsets=(), payload=b"", **fields):
    given = {
        "structure": structure,
        "sequence": sequence,
        "offsets": list(offsets),
        "samples": 1,
        "nbytes": 0,
    }
    return message("batch", payload, **{**given, **fields})


END = message("end", sent=1)


def test_an_honest_answer_is_read():
    assert read(data(batch(), END)) == [7]


DAMAGED = {
    "nothing but a byte": b"\0",
    "a length beyond the end": b"\xff\xff\xff\x7f\0\0\0\0" + bytes(20),
    "a payload beyond the end": b"\1\0\0\0\xff\xff\xff\xff" + bytes(20),
    "no envelope": b"\4\0\0\0\0\0\0\0abcd",
    "another version": b"\x08\0\0\0\0\0\0\0" + msgpack.packb({"mpwds": 9}),
    "no kind": bytes(frame_of({"x": 1})),
    "an unknown kind": message("reboot"),
    "a kind that is a list": message(["batch"]),
    "a task's failure": message("failed"),
    "an end without a number": message("end"),
    "an end after text": message("end", sent="one"),
    "an error without its fields": message("error"),
    "no sequence": message("batch", structure=1, offsets=[], samples=1, nbytes=0),
    "a negative number": batch(sequence=-1),
    "a number that is true": batch(sequence=True),
    "offsets that are text": batch(offsets=["0"]),
    "offsets that are a number": message("batch", structure=1, sequence=0, offsets=1, samples=1, nbytes=0),
    "a block that is nowhere": batch(block=3),
    "a segment": message("segment", blocks=4, block_nbytes=4096, launch=1),
    "a pickled state": batch(state=b"p" + TRAP),
    "a state that is a list": batch(state=[TRAP]),
    "pickled objects of a DataLoader": batch(kinds=b"", apart=True),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_message_is_an_error_that_names_the_server(name):
    with pytest.raises(MpwdsError, match="worker 0 on tcp://127.0.0.1:.* sent a damaged message"):
        read(data(DAMAGED[name], END))


UNDECODABLE = {
    "a pickle": batch([14, TRAP]),
    "a pickle in a list": batch([2, [[14, TRAP]]]),
    "a pickled class": batch([9, [1], "nowhere:Class", ["x"], TRAP]),
    "a pickled dataclass": batch([10, [1], "nowhere:Class", ["x"], TRAP]),
    "a pickle in a dict's key": batch([4, [[14, TRAP]], [1]]),
    "a class with a name that moves the cursor": batch([10, [1], "no\x1b[2J:Class", ["x"], None]),
    "a dict of an unknown factory": batch([6, [], [], "eval"]),
    "an array that is not there": batch([0]),
    "an array beyond the end": batch([0], offsets=[100]),
    "an array at 2**63": batch([0], offsets=[2**63]),
    "an array of garbage": batch([0], offsets=[0], payload=b"~TenBin~" + b"\xff" * 200),
    "too deep": batch(msgpack.unpackb(b"\x92\x02\x91" * 200 + b"\x01")),
    "an unknown node": batch([99, 1]),
}


@pytest.mark.parametrize("name", UNDECODABLE)
def test_a_batch_that_cannot_be_decoded_is_an_error_that_names_the_server(name):
    with pytest.raises(
        MpwdsError, match="worker 0 on tcp://127.0.0.1:.* sent a batch that cannot be decoded"
    ) as raised:
        read(data(UNDECODABLE[name], END))
    assert str(raised.value).isprintable()


def failed(**fields):
    told = {"summary": "it failed", "traceback": "", "type": "", "arguments": [], "notes": []}
    return data(message("error", **{**told, "exception": TRAP, **fields}))


def test_text_of_a_server_does_nothing_to_a_terminal(caplog):
    evil = "\x1b]0;owned\x07 \x9b31m \u202e"

    def answer(slot, attempt):
        yield [wire.pack(wire.NOTICE, text=f"notice {evil}")]
        yield [evil.encode()]
        yield from failed(type="ValueError", arguments=[evil], notes=[evil], traceback=f"one\n\ttwo {evil}")(
            slot, attempt
        )

    with (
        pytest.warns(RuntimeWarning, match="notice") as warned,
        pytest.raises(ValueError, match="owned") as raised,
    ):
        read(answer, welcome={"description": [evil]})
    shown = "".join(traceback.format_exception(raised.value)) + caplog.text
    assert "one\n\ttwo" in shown
    assert "dropped message" in caplog.text
    for text in (shown, *(str(each.message) for each in warned)):
        assert all(each.isprintable() or each in "\n\t" for each in text)


ENDS = ["SystemExit", "KeyboardInterrupt", "StopIteration", "GeneratorExit", "eval"]


@pytest.mark.parametrize(
    ("kind", "arguments"), [("", []), ("UnicodeDecodeError", [{"a": [1]}]), *((kind, ["0"]) for kind in ENDS)]
)
def test_an_error_is_an_error_and_runs_or_ends_nothing(kind, arguments):
    with pytest.raises(MpwdsError, match="it failed"):
        read(failed(type=kind, arguments=arguments))


HEADS_AND_PARTS = {
    "a wrong number": data(batch(), END, number=7),
    "parts that are missing": data(batch(block=0), nbytes=10_000),
    "parts that are too short": data(batch(block=0), parts=[bytes(50)], nbytes=10_000),
    "parts that are too long": data(batch(block=0), parts=[bytes(50)], nbytes=10),
    "parts that are too many": data(batch(block=0), parts=[bytes(50)] * 3, nbytes=50),
    "parts that nobody announced": data(batch(), parts=[bytes(50)] * 3, nbytes=0),
}


@pytest.mark.parametrize("name", HEADS_AND_PARTS)
def test_a_data_message_of_a_wrong_form_counts_as_lost(name):
    def answer(slot, attempt):
        yield from HEADS_AND_PARTS[name](slot, attempt)
        yield from data(END, number=1)(slot, attempt)

    with pytest.raises(
        MpwdsError, match="messages of worker 0 .* were lost 10 times in a row before batch 0"
    ):
        read(answer)


@pytest.mark.parametrize(
    "frames",
    [
        [b"\x94\0\0\0"],
        [wire.pack_head(DataHeader(99, 1, 0, 0)), END],
        [wire.pack_head(DataHeader(0, 1, 0, 0))],
        [b"", b"", b""],
        [b"\xc1" * 100],
        [wire.pack(wire.NOTICE, text=7)],
    ],
)
def test_other_garbage_is_dropped(frames):
    def answer(slot, attempt):
        yield frames
        yield from data(batch(), END)(slot, attempt)

    assert read(answer) == [7]


def test_a_batch_beyond_the_limit_is_refused():
    for answer in (data(batch(), parts=[bytes(10)], nbytes=1 << 62), data(batch(structure=bytes(200_000)))):
        with pytest.raises(MpwdsError, match="sent a batch of .* [kG]B: raise max_batch_bytes="):
            read(answer)


def test_a_batch_for_which_there_is_no_memory_is_an_error():
    with HostileServer(data(batch(block=0), nbytes=1 << 60)) as server:
        with mpwds.RemoteLoader(server.url, max_batch_bytes=1 << 61, timeout=60) as loader:
            why, servers = "there is no memory for a batch of the server tcp://", loader._remote.servers
            with pytest.raises(MpwdsError, match=why):
                next(iter(loader))
            with pytest.raises(MpwdsError, match=why):  # it is not asked any more
                servers.ask(wire.COUNT)


def test_counts_of_another_job_are_refused():
    with HostileServer(data(END), counts=[7, 7]) as server, mpwds.RemoteLoader(server.url) as loader:
        with pytest.raises(MpwdsError, match=f"the server {server.url} counted for 2 workers, not 1"):
            len(loader)


def test_a_server_that_sends_more_than_it_was_asked_for_is_stopped():
    def answer(slot, attempt):
        for number in range(20_000):
            yield from data(batch(bytes(90_000), sequence=0), number=number)(slot, attempt)

    with HostileServer(answer) as server:
        with mpwds.RemoteLoader(server.url, output="numpy", server_timeout=600, timeout=60) as loader:
            iterator = iter(loader)
            queue = loader._remote.servers.connections[0].queues[0]
            while queue.failure is None:
                pass
            assert queue.attempt.received_nbytes < 5 << 20
            with pytest.raises(MpwdsError, match="sends more than it was asked for|sent batch 0, expected 1"):
                list(iterator)


@pytest.fixture
def from_the_second_on():
    """Answers every ``start`` but the first."""
    starts = []

    def answer(slot, attempt):
        starts.append(attempt)
        if len(starts) > 1:
            yield from data(batch(), END)(slot, attempt)

    return answer


def test_a_start_that_the_server_never_saw_is_sent_again(from_the_second_on):
    # The server has no part, and is behind that ping.
    assert read(from_the_second_on, pong={"number": 2**40}) == [7]


@pytest.mark.filterwarnings("ignore:the server .* is back")
@pytest.mark.parametrize(
    ("pong", "why"),
    [({"server": "4567"}, "it has restarted"), ({"known": False}, "it took this trainer for gone")],
)
def test_a_server_that_has_forgotten_the_trainer_is_asked_again(from_the_second_on, pong, why):
    with pytest.warns(RuntimeWarning, match=f"is lost .{why}.: waiting for it to come back"):
        assert read(from_the_second_on, pong=pong) == [7]


@pytest.mark.filterwarnings("ignore:the server .* is lost")
def test_a_server_that_comes_back_with_another_dataset_is_refused_and_told_goodbye():
    def answer(slot, attempt):
        server._welcome["fingerprint"] = "4567"
        return iter(())

    with HostileServer(answer, {"workers": 1}, pong={"known": False}) as server:
        with mpwds.RemoteLoader(server.url, output="numpy", server_timeout=60, timeout=60) as loader:
            with pytest.raises(
                MpwdsError, match=r"another dataset \(fingerprint 4567\) than before \(0123\)"
            ):
                next(iter(loader))
            wait_until(lambda: wire.BYE in server.heard, "the server to hear it")


def test_servers_of_different_datasets_are_refused_with_both():
    other = {"fingerprint": "4567", "description": ["range(9)"]}
    with HostileServer(data(END)) as one, HostileServer(data(END), welcome=other) as two:
        with pytest.raises(MpwdsError, match="the servers have different datasets") as caught:
            mpwds.RemoteLoader([one.url, two.url], timeout=60)
    for told in (
        f"{one.url} serves range(8) (fingerprint 0123)",
        f"{two.url} serves range(9) (fingerprint 4",
    ):
        assert told in str(caught.value)


def test_a_question_that_is_not_answered_is_an_error(monkeypatch):
    with HostileServer(data(END)) as server, mpwds.RemoteLoader(server.url, server_timeout=60) as loader:
        monkeypatch.setattr("mpwds.feed.client.connections._ASK_S", 0.2)
        servers = loader._remote.servers
        with pytest.raises(ServerLost, match=f"the server {server.url} did not answer within 0.2 s"):
            servers.ask(wire.STATUS)


def test_losses_with_a_batch_between_two_of_them_never_end_an_epoch():
    came = itertools.count()

    def answer(slot, attempt):
        number = next(came)
        if number == 20:
            yield from data(message("end", sent=20))(slot, attempt)
        else:
            yield from data(batch(structure=number, sequence=number))(slot, attempt)
            yield from data(END, number=7)(slot, attempt)  # those between are lost

    assert read(answer) == list(range(20))


def test_warnings_of_a_server_do_not_pile_up():
    def answer(slot, attempt):
        for number in range(1000):
            yield [wire.pack(wire.NOTICE, text=f"notice {number}")]
        yield from data(batch(), END)(slot, attempt)

    with pytest.warns(RuntimeWarning, match="notice") as warned:
        assert read(answer) == [7]
    assert len([each for each in warned if "notice" in str(each.message)]) <= 64


def test_what_is_no_message_is_told_as_the_reason_and_logged(caplog):
    with HostileServer(data(batch(), END), welcome={"workers": 0}) as server:
        error = turned_away(server.url, because="what it sends is no message of this protocol: welcome")
    told = "welcome: workers must be 1 to 4096, got 0"
    assert told in str(error)
    assert f"dropped message 1 of the server {server.url}: {told}" in caplog.text


def test_garbage_is_logged_now_and_then(caplog):
    def answer(slot, attempt):
        yield from [[b"?"]] * 1000
        yield from data(batch(), END)(slot, attempt)

    began = time.monotonic()
    assert read(answer) == [7]
    assert 1 <= caplog.text.count("dropped message") <= 1 + (time.monotonic() - began) / 5


@pytest.mark.parametrize("name", ["x" * 200, "/dev/null", "/" + "x" * 200, "~"])
def test_a_handover_that_leads_nowhere_is_not_used(name):
    assert read(data(batch(), END), welcome={"handover": name}) == [7]


COUNTERS = wire.pack_counters(CounterSnapshot())


@pytest.mark.parametrize(
    "pong",
    [
        {"slots": [[0, 1]]},
        {"slots": [[0, [], 0]]},
        {"counters": {0: 7}},
        {"counters": {0: {}}},
        {"counters": {0: {**COUNTERS, "active_ns": float("inf")}}},
        {"counters": {0: {**COUNTERS, "skipped": {"x": float("inf")}}}},
    ],
)
def test_damaged_counters_are_dropped_and_the_trainer_goes_on(pong):
    received = []

    def answer(slot, attempt):
        yield from data(batch())(slot, attempt)
        received.append(attempt)
        whole = {"known": True, "server": WELCOME["server"], "number": 1, "slots": [], "counters": {}}
        yield [wire.pack(wire.PONG, **{**whole, **pong})]
        yield from data(END, number=1)(slot, attempt)

    assert read(answer) == [7]
    assert len(received) == 1


def test_a_server_that_says_nothing_more_is_a_timeout():
    with HostileServer(lambda slot, attempt: iter(())) as server:
        with mpwds.RemoteLoader(server.url, timeout=60) as loader:
            batches = iter(loader)
            batches.timeout = 0.5  # from now on: the server may have been slow to answer
            with pytest.raises(WorkerTimeout, match="delivered nothing for 0.5 s"):
                next(batches)


def test_a_server_that_refuses_ends_the_wait_with_its_reason():
    with HostileServer(lambda slot, attempt: iter([[wire.pack(wire.REFUSED, why="no \x1b[31m")]])) as server:
        with mpwds.RemoteLoader(server.url, timeout=60) as loader, contextlib.suppress(StopIteration):
            with pytest.raises(MpwdsError, match="no "):
                next(iter(loader))
