import fcntl
import io
import itertools
import os
import pty
import struct
import termios
import time

import pytest

from mpwds.cli.progress import Progress


@pytest.fixture
def terminal(read_terminal):
    """A terminal of 20 columns to write to, and a function that closes it and says what was written."""
    controller, device = pty.openpty()
    fcntl.ioctl(device, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
    with os.fdopen(device, "w") as stream:

        def written():
            stream.close()
            return read_terminal(controller)

        yield stream, written
    os.close(controller)


def test_a_terminals_line_is_redrawn_over_what_was_longer(terminal):
    stream, written = terminal
    with Progress(stream) as progress:
        progress.milestone("epoch 1  loss 0.1")
        progress.milestone("epoch 2")
    assert written() == "\repoch 1  loss 0.1\repoch 2" + " " * 10 + "\r\n"


def test_fields_that_do_not_fit_are_left_out(terminal):
    stream, written = terminal
    with Progress(stream) as progress:
        progress.milestone("epoch 1  loss 0.1  4,812 samples/s")
        progress.milestone("x" * 30)
    assert written() == "\repoch 1  loss 0.1\r" + "x" * 19 + "\r\n"


def test_a_terminal_is_redrawn_a_few_times_a_second(terminal, monkeypatch):
    milliseconds = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: next(milliseconds) / 1000)
    stream, written = terminal
    with Progress(stream) as progress:
        for _ in range(500):
            progress.show("busy")
    assert 2 <= written().count("busy") <= 3


def test_an_exception_leaves_the_cursor_on_a_line_of_its_own(terminal):
    stream, written = terminal

    def work():
        with Progress(stream) as progress:
            progress.show("epoch 1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert written() == "\repoch 1\r\n"


def test_a_file_gets_milestones_as_lines_and_nothing_else():
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress.show("epoch 1/2  loss 0.7")
        progress.milestone("epoch 1/2  loss 0.4")
    assert stream.getvalue() == "epoch 1/2  loss 0.4\n"


def test_what_was_never_shown_leaves_no_empty_line(terminal):
    stream, written = terminal
    with Progress(stream):
        pass
    print("next", file=stream, flush=True)
    assert written() == "next\r\n"
