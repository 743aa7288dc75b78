"""Messages that are no batches: recv raises, iteration drops and counts them, and goes on."""

import os
import sys
import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import zmq
from hypothesis import given, settings

from mpwds import tenbin
from mpwds.errors import TenbinError
from mpwds.tenbin.array import ml_bfloat16
from tests.compat.conftest import a_batch, ours
from tests.feed.serving import free_port

GOOD = [np.arange(3, dtype="uint8"), np.ones((2, 2), "float32")]
FRAMINGS = {
    "multipart": [bytes(frame) for frame in tenbin.encode_list(GOOD, ["a", "b"])],
    "single": [bytes(tenbin.encode_buffer(GOOD, ["a", "b"]))],
}
MALFORMED = {
    "empty": [b""],
    "not tenbin": [b"GET / HTTP/1.1"],
    "half a batch": FRAMINGS["multipart"][:1],
    "a frame too few": FRAMINGS["multipart"][:3],
    "truncated data": [*FRAMINGS["multipart"][:3], b"\0"],
    "truncated": [FRAMINGS["single"][0][:-1]],
    "a pickle": [b"\x80\x04N.", b""],
    "a shape larger than memory": [
        b"f4".ljust(16, b"\0") + np.array([2, 1 << 62, 4], "i8").tobytes(),
        b"",
    ],
}


@pytest.fixture
def plain(folder):
    """A ZeroMQ socket that sends anything, connected to where the test's receiver binds."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.linger = 0
        socket.connect(f"ipc://{folder}/s")
        yield socket


@pytest.mark.parametrize("frames", MALFORMED.values(), ids=MALFORMED)
def test_recv_raises_and_goes_on(folder, plain, frames):
    with ours(f"zpull+ipc://{folder}/s") as receiver:
        plain.send_multipart(frames)
        plain.send_multipart(FRAMINGS["multipart"])
        with pytest.raises(TenbinError):
            receiver.recv()
        assert receiver.recv()[0].tolist() == [0, 1, 2]


def test_a_batch_of_a_type_whose_package_is_missing_is_dropped_too(folder, plain, monkeypatch):
    frames = [bytes(frame) for frame in tenbin.encode_list([torch.ones(3, dtype=torch.bfloat16)])]
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    ml_bfloat16.cache_clear()
    with ours(f"zpull+ipc://{folder}/s", total=1, batch_count=False) as receiver:
        plain.send_multipart(frames)
        plain.send_multipart(FRAMINGS["single"])
        with pytest.warns(RuntimeWarning, match="bfloat16"):
            assert len(list(receiver)) == 1
        assert receiver.dropped == 1


def test_iteration_drops_counts_and_warns_once(folder, plain):
    with ours(f"zpull+ipc://{folder}/s", total=1, batch_count=False) as receiver:
        for frames in MALFORMED.values():
            plain.send_multipart(frames)
        plain.send_multipart(FRAMINGS["single"])
        with pytest.warns(RuntimeWarning, match="dropped a message from .* is not a valid batch") as warned:
            assert len(list(receiver)) == 1
    assert receiver.dropped == len(MALFORMED)
    assert len(warned) == 1
    assert warned[0].filename == __file__


def test_the_warning_names_the_sender():
    port = free_port()
    with (
        ours(f"zpull://127.0.0.1:{port}", total=1, batch_count=False) as receiver,
        zmq.Context() as context,
        context.socket(zmq.PUSH) as plain,
    ):
        plain.connect(f"tcp://127.0.0.1:{port}")
        plain.send(b"?")
        plain.send_multipart(FRAMINGS["single"])
        with pytest.warns(RuntimeWarning, match=f"zpull://127.0.0.1:{port}: dropped .* from 127.0.0.1"):
            list(receiver)


def test_other_names_than_required_are_dropped(folder):
    with (
        ours(f"zpull+ipc://{folder}/s", total=4, infos=["x", "y"]) as receiver,
        ours(f"zpush+ipc://{folder}/s", infos=["x", "z"]) as one,
        ours(f"zpush+ipc://{folder}/s", infos=["x", "y"]) as other,
    ):
        one.send(a_batch())
        with pytest.warns(RuntimeWarning, match="required are"):
            assert receiver.socket.poll(600_000)
            other.send(a_batch())
            assert len(list(receiver)) == 1


def test_a_message_above_the_limit_is_an_error(folder, plain):
    with ours(f"zpull+ipc://{folder}/s", max_message_bytes=100) as receiver:
        plain.send_multipart([b"x" * 60, b"x" * 60])
        with pytest.raises(TenbinError, match="a message has 120 bytes, max_message_bytes is 100"):
            receiver.recv()


def test_a_frame_somewhat_above_the_limit_is_counted(folder, plain):
    with ours(f"zpull+ipc://{folder}/s", total=1, batch_count=False, max_message_bytes=1000) as receiver:
        plain.send(bytes(1001))
        plain.send_multipart(FRAMINGS["single"])
        with pytest.warns(RuntimeWarning, match="a message has 1001 bytes, max_message_bytes is 1000"):
            assert len(list(receiver)) == 1
    assert receiver.dropped == 1


def test_a_frame_far_above_the_limit_is_refused_before_it_is_received(folder, plain):
    with (
        ours(f"zpull+ipc://{folder}/s", max_message_bytes=1000) as receiver,
        ours(f"zpush+ipc://{folder}/s") as good,
    ):
        plain.send(bytes(1_000_000))
        good.send(a_batch())
        assert len(receiver.recv()) == 2
        assert not receiver.socket.poll(100)


@st.composite
def mutated(draw):
    """The frames of a good message, with bytes changed, cut, added or frames repeated."""
    frames = list(draw(st.sampled_from([*FRAMINGS.values()])))
    for _ in range(draw(st.integers(1, 3))):
        index = draw(st.integers(0, len(frames) - 1))
        frame = bytearray(frames[index])
        change = draw(st.sampled_from(["byte", "cut", "extend", "repeat"]))
        if change == "byte" and frame:
            frame[draw(st.integers(0, len(frame) - 1))] = draw(st.integers(0, 255))
        elif change == "cut":
            del frame[draw(st.integers(0, len(frame))) :]
        elif change == "extend":
            frame += draw(st.binary(max_size=80))
        else:
            frames.insert(index, frames[index])
        frames[index] = bytes(frame)
    return frames


@settings(max_examples=30)
@given(messages=st.lists(mutated() | st.lists(st.binary(max_size=200), min_size=1, max_size=5), max_size=30))
def test_whatever_arrives_a_good_sender_is_received(messages):
    path = f"/tmp/malformed-{os.getpid()}"
    with (
        zmq.Context() as context,
        context.socket(zmq.PUSH) as plain,
        ours(f"zpull+ipc://{path}") as receiver,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", RuntimeWarning)
        plain.linger = 0
        plain.connect(f"ipc://{path}")
        for frames in messages:
            plain.send_multipart(frames)
        plain.send_multipart(tenbin.encode_list([np.full(5, 77, "int16")]))
        for arrays in receiver:
            assert all(type(array) is np.ndarray for array in arrays)
            if arrays[0].dtype == np.int16:
                break
        assert receiver.dropped <= len(messages)
