"""Opening URLs: which opener gets which, for reading, writing, and from an offset on."""

import io
import os
import pathlib
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpwds.errors import StreamError
from mpwds.storage.streams.gopen import gopen, gopen_schemes, open_at, reader

CONTENT = bytes(range(256)) * 10


@pytest.fixture
def path(tmp_path):
    (tmp_path / "x.tar").write_bytes(CONTENT)
    return tmp_path / "x.tar"


@pytest.mark.parametrize(
    "form", ["{}/y.tar", "file:{}/y.tar", "file://{}/y%20z.tar", "file://localhost{}/y.tar"]
)
def test_a_local_file_is_written_and_read(tmp_path, form):
    url = form.format(tmp_path)
    with gopen(url, "wb") as stream:
        stream.write(CONTENT)
    assert os.listdir(tmp_path) == ["y z.tar" if "%20" in form else "y.tar"]
    with gopen(url, "rb") as stream:
        assert stream.read() == CONTENT


def test_a_local_file_is_a_plain_file_object_whose_buffer_the_environment_sets(path, monkeypatch):
    with open_at(path, 5) as stream:
        assert isinstance(stream, io.BufferedReader)
        assert isinstance(stream.raw, io.FileIO)
        assert stream.tell() == 5
    monkeypatch.setenv("GOPEN_BUFFER", "0")
    with gopen(path) as stream:
        assert isinstance(stream, io.FileIO)


def test_a_file_that_is_not_there_is_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        gopen(tmp_path / "no.tar")


@given(offset=st.integers(0, len(CONTENT)), form=st.sampled_from(["{}", "file:{}", "pipe:cat {}", "mine:{}"]))
def test_any_stream_starts_at_an_offset(tmp_path_factory, offset, form):
    path = tmp_path_factory.getbasetemp() / "at.tar"
    path.write_bytes(CONTENT)

    def opener(url, mode, bufsize):
        return pathlib.Path(url.removeprefix("mine:")).open(mode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(gopen_schemes, "mine", opener)
        with open_at(form.format(path), offset) as stream:
            assert stream.read() == CONTENT[offset:]


def test_a_named_pipe_starts_at_an_offset(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    writer = threading.Thread(target=(tmp_path / "fifo").write_bytes, args=(CONTENT,))
    writer.start()
    with open_at(tmp_path / "fifo", 100) as stream:
        assert stream.read() == CONTENT[100:]
    writer.join()


def test_a_stream_that_ends_before_the_offset_is_an_error(nothing_left):
    with pytest.raises(StreamError, match="ends at byte 6, before byte 7"):
        open_at("pipe:echo hello", 7)


def test_standard_input_and_output_are_streams():
    code = "from mpwds.storage.streams.gopen import *; gopen('-', 'wb').write(open_at('-', 2).read())"
    copied = subprocess.run([sys.executable, "-c", code], input=CONTENT, check=True, capture_output=True)
    assert copied.stdout == CONTENT[2:]


def test_reader_is_gopen_for_reading(path):
    with reader(pathlib.Path(path)) as stream:
        assert stream.read() == CONTENT


def test_an_opener_is_registered_for_a_scheme(monkeypatch):
    calls = []
    monkeypatch.setitem(gopen_schemes, "mine", lambda *args, **kw: calls.append((args, kw)))
    gopen("mine://x", "wb", 100, colour="red")
    gopen("MINE://x")
    assert calls == [(("mine://x", "wb", 100), {"colour": "red"}), (("MINE://x", "rb", 8192), {})]


def test_an_opener_that_takes_an_offset_gets_it(monkeypatch):
    def opener(url, mode, bufsize, offset=0):
        return io.BytesIO(CONTENT[offset:])

    monkeypatch.setitem(gopen_schemes, "mine", opener)
    assert open_at("mine:x", 7).read() == CONTENT[7:]
    assert gopen("mine:x").read() == CONTENT


def test_the_default_opener_gets_all_other_schemes(monkeypatch):
    monkeypatch.setitem(gopen_schemes, "__default__", lambda url, mode, bufsize: url)
    assert gopen("odd:x") == "odd:x"


def test_a_file_whose_name_looks_like_a_url_is_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ab:c.tar").write_bytes(CONTENT)
    with gopen("ab:c.tar") as stream:
        assert stream.read() == CONTENT


def test_what_is_opened_is_said_on_request(path, monkeypatch, capsys):
    monkeypatch.setenv("GOPEN_VERBOSE", "1")
    gopen(path).close()
    with pytest.raises(ValueError, match="no opener"):
        gopen("odd://me:secret@x/")
    assert capsys.readouterr().err == f"GOPEN {path}\nGOPEN odd://***@x/\n"
