"""FTP by the program curl."""

import contextlib
import os
import shutil
import socketserver
import threading

import pytest

from mpwds.errors import StreamError, StreamNotFound
from mpwds.storage.streams.gopen import exists, gopen, open_at

CONTENT = bytes(range(256)) * 1000

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs the curl program")


class FTPHandler(socketserver.StreamRequestHandler):
    """As much of FTP as one file needs."""

    def handle(self):
        with contextlib.ExitStack() as ports, contextlib.suppress(ConnectionError):  # the program was stopped
            self.converse(ports)

    def converse(self, ports):
        offset, data = 0, None
        say = lambda line: self.wfile.write(line.encode() + b"\r\n")  # noqa: E731 - one line
        say("220 ready")
        while line := self.rfile.readline().decode().strip():
            verb, _, argument = line.partition(" ")
            self.server.said.append(line)
            if verb == "EPSV":
                data = ports.enter_context(socketserver.TCPServer(("127.0.0.1", 0), None))
                say(f"229 passive (|||{data.server_address[1]}|)")
            elif verb == "SIZE":
                say(f"213 {len(CONTENT)}" if argument == "x.tar" else "550 no such file")
            elif verb == "REST":
                offset = int(argument)
                say("350 from there")
            elif verb in ("RETR", "STOR"):
                with contextlib.closing(data.socket.accept()[0]) as connection:
                    say("150 here it comes")
                    if verb == "RETR":
                        connection.sendall(CONTENT[offset:])
                    else:
                        with connection.makefile("rb") as incoming:
                            self.server.files[argument] = incoming.read()
                say("226 done")
            elif verb == "QUIT":
                say("221 bye")
                return
            else:
                say({"USER": "331 who", "PASS": "230 in", "PWD": '257 "/"'}.get(verb, "200 fine"))


@pytest.fixture
def server():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), FTPHandler) as server:
        server.said, server.files = [], {}
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def url(server, name):
    return f"ftp://me:secret@127.0.0.1:{server.server_address[1]}/{name}"


@pytest.mark.parametrize("offset", [0, 1000])
def test_reads_from_an_offset(server, offset):
    with open_at(url(server, "x.tar"), offset) as stream:
        assert stream.read() == CONTENT[offset:]
    assert (f"REST {offset}" in server.said) == (offset > 0)


def test_a_silent_server_ends_the_program(tmp_path, monkeypatch):
    (tmp_path / "curl").write_text('#!/bin/sh\necho "$@"')
    (tmp_path / "curl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with gopen("sftp://host/x.tar") as stream:
        said = stream.read().decode()
    assert "--connect-timeout 30 --speed-time 60 --speed-limit 1 " in said
    assert said.endswith(" sftp://host/x.tar\n")


def test_writes(server):
    with gopen(url(server, "y.tar"), "wb") as stream:
        stream.write(CONTENT)
    assert server.files == {"y.tar": CONTENT}


def test_a_missing_file_is_an_error_without_the_password(server):
    with (
        gopen(url(server, "no.tar")) as stream,
        pytest.raises(StreamNotFound, match=r"exit status 78.*it said: curl") as caught,
    ):
        stream.read()
    assert "secret" not in str(caught.value)


def test_which_files_exist(server):
    assert [exists(url(server, name)) for name in ("x.tar", "no.tar")] == [True, False]


@pytest.mark.parametrize("scheme", ["ftp", "ftps", "sftp", "scp"])
def test_without_curl_the_error_says_so(monkeypatch, scheme):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(StreamError, match=f"{scheme}: URLs are opened by .* curl, which is not installed"):
        gopen(f"{scheme}://host/x.tar")
