"""Streams out of and into shell commands."""

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.errors import StreamError
from mpwds.storage.streams import pipes
from mpwds.storage.streams.base import detects_truncation
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.pipes import open_command, open_pipe
from tests.forks import raised_in_fork

CONTENT = random.Random(0).randbytes(1_000_000)


def pid_said_by(stream):
    return int(stream.readline())


def ends(pid):
    """Whether a process ends, or has ended and waits to be reaped by its parent."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)
                continue
        return True
    return False


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(1, 40_000), max_size=20))
def test_reads_in_pieces_of_any_size(sizes):
    with open_pipe("pipe:seq 20000") as stream:
        pieces = [stream.read(size) for size in sizes]
        whole = b"".join(pieces) + stream.read()
    assert whole == b"".join(b"%d\n" % number for number in range(1, 20_001))


def test_writes_what_a_command_reads(tmp_path, nothing_left):
    with gopen(f"pipe:cat > {tmp_path}/y", "wb") as stream:
        for at in range(0, len(CONTENT), 300_000):
            stream.write(CONTENT[at : at + 300_000])
    assert (tmp_path / "y").read_bytes() == CONTENT


def test_a_failure_is_an_error_with_what_the_command_said(capfd):
    message = "exit status 3 after 5 bytes; it said: no such bucket$"
    command = "pipe:echo data; echo 'no such bucket' >&2; exit 3"
    with open_pipe(command) as stream, pytest.raises(StreamError, match=message) as caught:
        stream.read()
    assert caught.value.position == 5
    assert capfd.readouterr().err == "no such bucket\n"


def test_a_failure_behind_the_last_byte_that_was_read_comes_from_close():
    stream = open_pipe("pipe:echo $PPID; exit 4")
    assert ends(pid_said_by(stream))
    with pytest.raises(StreamError, match="exit status 4"):
        stream.close()
    assert stream.closed


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("exit 1", "exit status 1"),
        ("no-such-program-at-all", "exit status 127.*not found"),
        ("echo data; kill -KILL $$", "SIGKILL, perhaps for want of memory"),
    ],
)
def test_after_a_failure_a_stream_never_looks_as_if_it_had_ended(command, message):
    with open_pipe(f"pipe:{command}") as stream:
        for _ in range(2):
            with pytest.raises(StreamError, match=message):
                stream.read()


def test_death_by_sigpipe_is_no_failure_of_a_reader():
    with open_pipe("pipe:exit 141") as stream:
        assert stream.read() == b""


def test_only_the_end_of_a_long_complaint_is_kept(capfd):
    command = "pipe:seq 100000 >&2; echo 'the reason' >&2; exit 1"
    with open_pipe(command) as stream, pytest.raises(StreamError, match="the reason$") as caught:
        stream.read()
    assert len(str(caught.value)) < 2300
    assert len(capfd.readouterr().err) == 588_895 + len("the reason\n")


def test_errors_keep_credentials_to_themselves():
    url = "pipe:false -H 'Authorization: Bearer s3cret' -H X-Api-Key:s3cret https://me:s3cret@host/x?token=s3cret"
    with open_pipe(url) as stream, pytest.raises(StreamError) as caught:
        stream.read()
    assert "s3cret" not in str(caught.value)


def test_closing_early_ends_the_command_and_all_it_started(nothing_left, capfd):
    with open_pipe("pipe:sleep 300 & echo $!; sleep 300 | sleep 300; echo rubbish >&2") as stream:
        in_background = pid_said_by(stream)
    assert ends(in_background)
    assert capfd.readouterr().err == ""


def test_closing_early_ends_a_command_that_ignores_requests(monkeypatch, nothing_left):
    monkeypatch.setattr(pipes, "_GRACE_S", 0.05)
    with open_pipe("pipe:trap '' TERM PIPE; echo $$; while :; do sleep 1; done") as stream:
        pid = pid_said_by(stream)
    assert ends(pid)


def test_a_command_may_tidy_up_when_it_is_ended(monkeypatch, tmp_path):
    monkeypatch.setattr(pipes, "_GRACE_S", 120)
    with open_pipe(f"pipe:trap 'echo tidied > {tmp_path}/log; exit' TERM; echo; sleep 300 & wait") as stream:
        stream.readline()
    assert (tmp_path / "log").read_text() == "tidied\n"


def test_a_stream_that_is_dropped_ends_its_command(nothing_left):
    stream = open_pipe("pipe:echo $$; sleep 300")
    pid = pid_said_by(stream)
    del stream
    assert ends(pid)


def test_what_a_finished_command_left_in_the_background_goes_on(tmp_path):
    os.mkfifo(tmp_path / "go")
    with (
        open(tmp_path / "go", "r+b", buffering=0) as go,
        open_pipe(
            f"pipe:(read x < {tmp_path}/go; echo > {tmp_path}/done) > /dev/null 2>&1 & echo $!"
        ) as stream,
    ):
        in_background = pid_said_by(stream)
        assert stream.read() == b""
        go.write(b"x\n")
        assert ends(in_background)
    assert (tmp_path / "done").exists()


def test_a_command_that_stops_reading_is_an_error(nothing_left):
    stream = open_pipe("pipe:head -c 10 > /dev/null; echo full >&2; exit 5", "wb", bufsize=1)
    with pytest.raises(StreamError, match="stopped reading after .* exit status 5; it said: full"):
        for _ in range(100):
            stream.write(CONTENT)
    stream.close()


def test_a_writers_failure_comes_from_close(nothing_left):
    stream = open_pipe("pipe:cat > /dev/null; echo no room >&2; exit 6", "wb")
    stream.write(b"data")
    with pytest.raises(StreamError, match="given 4 bytes and failed with exit status 6; it said: no room"):
        stream.close()
    assert stream.closed


def test_a_command_that_talks_while_it_is_written_to_does_not_get_stuck(capfd):
    with open_pipe("pipe:tee /dev/stderr > /dev/null", "wb") as stream:
        stream.write(CONTENT)
    assert len(os.fsencode(capfd.readouterr().err)) >= len(CONTENT) // 2


def test_a_failed_block_ends_the_writer_before_it_sees_the_end(tmp_path, nothing_left):
    with (
        pytest.raises(KeyError),
        open_pipe(f"pipe:cat > /dev/null && echo whole > {tmp_path}/done", "wb") as stream,
    ):
        stream.write(b"half")
        raise KeyError
    assert not (tmp_path / "done").exists()


def test_a_writer_that_was_never_closed_is_ended(tmp_path, nothing_left):
    stream = open_pipe(f"pipe:cat > /dev/null && echo whole > {tmp_path}/done", "wb")
    stream.write(b"half")
    with pytest.warns(ResourceWarning, match="never closed"):
        del stream
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize("mode", ["rb", "wb"])
def test_no_command_outlives_a_killed_process(tmp_path, mode):
    # The command ends neither by a broken pipe nor by the end of its input, and closes what it does not know.
    closes = "exec " + " ".join(f"{number}>&-" for number in range(3, 10))
    shell = f"{closes}; echo $$ > {tmp_path}/pid; trap '' PIPE TERM HUP; exec sleep 300"
    program = f"""
import os, time
from mpwds.storage.streams.pipes import open_pipe
os.mkfifo({str(tmp_path / "pid")!r})
stream = open_pipe({"pipe:" + shell!r}, {mode!r})
print(open({str(tmp_path / "pid")!r}).read(), flush=True)
os.kill(os.getpid(), 9)
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert process.returncode == -signal.SIGKILL
    assert ends(int(process.stdout))


def test_no_command_runs_for_a_process_that_is_killed_while_it_starts_one(tmp_path):
    program = f"""
import os, subprocess
from mpwds.storage.streams.pipes import open_pipe
class KillsUs(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        print(self.pid, flush=True)
        os.kill(os.getpid(), 9)
subprocess.Popen = KillsUs
open_pipe("pipe:echo > {tmp_path}/ran; exec sleep 300")
"""
    process = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.returncode == -signal.SIGKILL
    assert ends(int(process.stdout))
    assert not (tmp_path / "ran").exists()


def test_ctrl_c_at_the_terminal_does_not_reach_the_command():
    with open_pipe("pipe:echo $$; sleep 300") as stream:
        pid = pid_said_by(stream)
        assert os.getsid(pid) != os.getsid(0)
        assert os.getpgid(pid) != os.getpgid(0)


def test_a_fork_cannot_use_the_stream_and_does_not_end_the_command(tmp_path):
    def use_and_close(use, stream):
        with contextlib.closing(stream):
            use()

    reader = open_pipe("pipe:echo first; read x; echo second", bufsize=1)
    writer = open_pipe(f"pipe:cat > {tmp_path}/y", "wb", bufsize=1)
    with reader, writer:
        for use, stream in ((lambda: reader.read(1), reader), (lambda: writer.raw.write(b"x"), writer)):
            assert "forked from" in raised_in_fork(partial(use_and_close, use, stream))
        assert reader.read(6) == b"first\n"
        writer.write(b"data")
    assert (tmp_path / "y").read_bytes() == b"data"


def wait_in_child(stop):
    stop.wait()


@pytest.mark.parametrize("tells", [False, True])
def test_a_program_may_be_said_to_fail_if_it_does_not_write_everything(tells):
    with open_command(["true"], "true", "rb", detects_truncation=tells) as stream:
        assert detects_truncation(stream) is tells


def test_a_fork_does_not_keep_a_writer_from_ending(tmp_path):
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    stream = open_pipe(f"pipe:cat > {tmp_path}/y", "wb")
    child = context.Process(target=wait_in_child, args=(stop,))
    child.start()
    stream.write(b"data")
    stream.close()  # would wait for ever if the fork held the pipe
    stop.set()
    child.join()
    assert (tmp_path / "y").read_bytes() == b"data"


def test_a_process_that_ignores_sigint_runs_commands_that_end():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with open_pipe("pipe:echo $$; sleep 300") as stream:
            pid = pid_said_by(stream)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ends(pid)


def test_many_commands_leave_nothing(nothing_left):
    for _ in range(30):
        with open_pipe("pipe:echo data") as stream:
            stream.read()
        with open_pipe("pipe:yes") as stream:
            stream.read(1)
