"""Channels: whole messages in order, whatever the pieces they arrive in; descriptors; the end."""

import contextlib
import os
import signal
import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.errors import MpwdsError
from mpwds.loader.messages.channel import Channel, ChannelClosed, give_descriptor, take_descriptor
from mpwds.loader.processes.processes import send_fds


def pair():
    left, right = socket.socketpair()
    return Channel(left), Channel(right)


@pytest.fixture
def channels():
    left, right = pair()
    yield left, right
    left.close(), right.close()


def receive(channel):
    """The next message, waited for."""
    while (message := channel.receive()) is None:
        pass
    return message


messages = st.lists(st.tuples(st.integers(0, 1 << 40), st.binary(max_size=2000)), max_size=20)


@settings(deadline=None, max_examples=50)
@given(messages)
def test_messages_arrive_whole_and_in_order(sent):
    left, right = pair()
    for number, payload in sent:
        left.send({"number": number}, payload)
    received = [receive(right) for _ in sent]
    # Payloads are valid until the next receive: what can be compared here is all but them.
    assert [message.fields["number"] for message in received] == [number for number, _ in sent]
    assert right.receive() is None
    left.close(), right.close()


@settings(deadline=None, max_examples=30)
@given(messages.filter(bool), st.integers(1, 700))
def test_a_message_in_pieces_is_put_together(sent, piece):
    raw, end = socket.socketpair()
    recorder, recorded = socket.socketpair()
    source = Channel(recorder)
    for number, payload in sent:
        source.send({"number": number}, payload)
    data = recorded.recv(1 << 20)
    channel = Channel(end)
    received = []
    for start in range(0, len(data), piece):
        raw.send(data[start : start + piece])
        while (message := channel.receive()) is not None:
            received.append((message.fields["number"], bytes(message.payload)))
    assert received == sent
    for each in (raw, recorded, source, channel):
        each.close()


def test_a_message_larger_than_all_buffers_arrives(channels):
    left, right = channels
    payload = os.urandom(5_000_000)
    sender = threading.Thread(target=left.send, args=({"kind": "large"}, payload))
    sender.start()
    assert bytes(receive(right).payload) == payload
    sender.join()
    left.send({"kind": "small"})
    assert receive(right).fields["kind"] == "small"


def test_the_sender_waits_while_the_receiver_does_not_read(channels):
    left, right = channels
    sent = []

    def send():
        for number in range(3000):
            left.send({"number": number}, b"x" * 1000)
            sent.append(number)

    sender = threading.Thread(target=send)
    sender.start()
    sender.join(0.2)
    assert sender.is_alive()
    assert len(sent) < 1000
    assert [receive(right).fields["number"] for _ in range(3000)] == list(range(3000))
    sender.join()


def test_a_message_waits_until_the_one_before_is_sent_whole():
    received = []

    class ReadAtOnce(socket.socket):
        """A socket whose other end reads whatever comes, at once."""

        def send(self, *arguments):
            try:
                return super().send(*arguments)
            finally:
                while (message := right.receive()) is not None:
                    received.append(message.fields["n"])

    end, other = socket.socketpair()
    left, right = Channel(ReadAtOnce(fileno=end.detach())), Channel(other)
    for number, size in enumerate([5_000_000, 1, 5_000_000, 1, 1]):
        while not left.try_send({"n": number, "text": "x" * size}):
            pass
    assert received == [0, 1, 2, 3, 4]
    left.close(), right.close()


@pytest.mark.parametrize(
    "send",
    [
        lambda left: left.send({}),
        lambda left: left.try_send({}),
        lambda left: send_fds(left._socket, b"x", [0]),
    ],
)
def test_an_end_that_is_gone_is_an_error_and_no_signal(channels, send):
    left, right = channels
    right.close()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        with contextlib.suppress(ChannelClosed, BrokenPipeError):
            send(left)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_what_was_sent_before_the_end_arrives_and_then_the_end(channels):
    left, right = channels
    left.send({"kind": "last"}, b"words")
    left.close()
    assert bytes(receive(right).payload) == b"words"
    with pytest.raises(ChannelClosed):
        right.receive()
    with pytest.raises(ChannelClosed):
        right.send({"kind": "late"})


def test_a_message_cut_short_by_the_end_is_no_message():
    raw, end = socket.socketpair()
    channel = Channel(end)
    raw.send(b"\x10\x00\x00\x00\x00\x00")
    raw.close()
    with pytest.raises(ChannelClosed):
        channel.receive()
    channel.close()


def test_frames_are_taken_together_up_to_a_number_of_bytes_and_with_one_beginning(channels):
    left, right = channels
    for number in range(4):
        left.send({"number": number}, b"x" * 100)
    first = receive(right)
    prefix, nbytes = bytes(first.frame[8:10]), len(first.frame)
    frames, count = right.receive_frames(prefix, 2 * nbytes)
    assert (len(frames), count) == (2 * nbytes, 2)
    assert right.receive_frames(b"other", 1 << 20) == (b"", 0)
    assert right.receive_frames(prefix, 1 << 20)[1] == 1


@pytest.fixture
def handover():
    trainer, worker = socket.socketpair()
    with trainer, worker:
        yield trainer, worker


def test_descriptors_arrive_in_order_and_close_on_exec(handover):
    trainer, worker = handover
    for content in (b"first", b"second"):
        reading, writing = os.pipe()
        os.write(writing, content)
        give_descriptor(worker, reading)
        os.close(reading), os.close(writing)
    for content in (b"first", b"second"):
        descriptor = take_descriptor(trainer)
        assert not os.get_inheritable(descriptor)
        assert os.read(descriptor, 10) == content
        os.close(descriptor)


def test_a_worker_that_is_gone_is_a_clear_error(handover):
    trainer, worker = handover
    worker.close()
    with pytest.raises(MpwdsError, match="did not hand it over"):
        take_descriptor(trainer)


def test_a_trainer_that_is_gone_does_not_matter_to_the_giver(handover):
    trainer, worker = handover
    trainer.close()
    give_descriptor(worker, 0)
