"""A web server of the tests' own, which does what they tell it: also drop, stall, cut short, refuse."""

import contextlib
import hashlib
import http.server
import re
import socket
import struct
import threading

import pytest

from mpwds.storage.streams.http import pools
from mpwds.storage.streams.resuming import Retries


class Web:
    """A server on the loopback interface.

    ``files`` maps paths to contents. ``plan`` holds, for one GET or HEAD after the other, what to do
    differently: ``status=``, ``headers=``, ``cut=n`` (the body ends after n bytes), ``reset=n`` (so does the
    connection), ``stall=n`` (n bytes, then nothing), ``part=n`` (a range of at most n bytes), ``silent=True``
    (no answer), ``meets=barrier`` (waits there first), ``hangs_up=True`` (closes the connection after it),
    ``unread=True`` (does so without a look at the body), and any of the attributes below. ``requests`` lists
    (method, path, headers) of what was asked. While ``gate`` is closed, bodies stop half way.
    """

    def __init__(self):
        self.files = {}
        self.plan = []
        self.requests = []
        self.connections = set()
        self.ranges = True
        self.to_end = False  # ranges go on to the end of the file
        self.etags = True
        self.modified = "Mon, 01 Jan 2024 00:00:00 GMT"
        self.sends_length = True
        self.chunked = False
        self.stalled = threading.Event()
        self.closing = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._hung_up = threading.Semaphore(0)
        self._server.shutdown_request = self._hang_up
        self._server.handle_error = lambda *_: None  # broken connections are what it is for
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def port(self):
        return self._server.server_port

    def url(self, path="/x.tar"):
        return f"http://127.0.0.1:{self.port}{path}"

    def asked(self, header):
        return [headers.get(header) for _, _, headers in self.requests]

    def wait_until_a_connection_is_closed(self):
        assert self._hung_up.acquire(timeout=600)

    def _hang_up(self, request):
        type(self._server).shutdown_request(self._server, request)
        self._hung_up.release()

    def close(self):
        self.closing.set()
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(web):  # the handler's own `self` is another
        class Handler(http.server.BaseHTTPRequestHandler):
            disable_nagle_algorithm = True  # or each answer waits 40 ms for an acknowledgement
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def setup(self):
                super().setup()
                web.connections.add(self.client_address)

            def do_GET(self):
                web.requests.append((self.command, self.path, dict(self.headers)))
                step = web.plan.pop(0) if web.plan else {}
                if "meets" in step:
                    step["meets"].wait()
                with contextlib.suppress(ConnectionError):
                    answer(self, web, step)

            def do_HEAD(self):
                self.do_GET()

            def do_PUT(self):
                web.requests.append(("PUT", self.path, dict(self.headers)))
                step = web.plan.pop(0) if web.plan else {}
                if "unread" in step:
                    self.close_connection = True
                else:
                    content = self.rfile.read(int(self.headers["Content-Length"]))
                if "status" not in step:
                    web.files[self.path.partition("?")[0]] = content
                self.send_response(step.get("status", 201))
                self.send_header("ETag", '"new"')
                if self.close_connection:  # or a client may use the connection again before it is closed
                    self.send_header("Connection", "close")
                for name, value in step.get("headers", {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

        return Handler


def answer(handler, web, step):
    def option(name):
        return step.get(name, getattr(web, name))

    if "silent" in step:
        handler.close_connection = True
        return
    path = re.sub(r"^http://[^/]*", "", handler.path).partition("?")[0]
    content = step.get("content", web.files.get(path))
    status = step.get("status", 404 if content is None else 200)
    if status != 200:
        text = step.get("text", b"no")
        handler.send_response(status, step.get("reason"))
        for name, value in step.get("headers", {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)
        return
    etag = f'"{hashlib.sha1(content).hexdigest()}"' if option("etags") else None
    if handler.headers.get("If-Match") not in (None, etag):
        answer(handler, web, {"status": 412})
        return
    start, stop = 0, len(content)
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
    condition = handler.headers.get("If-Range")
    if asked and option("ranges") and condition in (None, etag, option("modified")):
        start = int(asked[1])
        stop = min(
            stop,
            start + step.get("part", stop),
            int(asked[2]) + 1 if asked[2] and not option("to_end") else stop,
        )
        if start >= len(content):
            answer(handler, web, {"status": 416, "headers": {"Content-Range": f"bytes */{len(content)}"}})
            return
        handler.send_response(206)
        handler.send_header("Content-Range", step.get("says", f"bytes {start}-{stop - 1}/{len(content)}"))
    else:
        handler.send_response(200)
    if etag:
        handler.send_header("ETag", etag)
    if option("modified"):
        handler.send_header("Last-Modified", option("modified"))
    for name, value in step.get("headers", {}).items():
        handler.send_header(name, value)
    body = content[start:stop]
    if option("chunked"):
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for at in range(0, len(body), 1000):
            piece = body[at : at + 1000]
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            if at >= step.get("cut", len(body)):
                handler.close_connection = True
                return
        handler.wfile.write(b"0\r\n\r\n")
        return
    if option("sends_length"):
        handler.send_header("Content-Length", str(len(body)))
    else:
        handler.send_header("Connection", "close")
    handler.end_headers()
    if handler.command == "HEAD":
        return
    until = min(step.get(fault, len(body)) for fault in ("cut", "reset", "stall"))
    half = until if web.gate.is_set() else until // 2
    handler.wfile.write(body[:half])
    web.gate.wait()
    handler.wfile.write(body[half:until])
    handler.wfile.flush()
    if "stall" in step:
        web.stalled.set()
        web.closing.wait()
    if "reset" in step:
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if until < len(body) or not option("sends_length") or "hangs_up" in step:
        handler.close_connection = True


@pytest.fixture
def web():
    server = Web()
    yield server
    server.close()
    pools.cache_clear()


@pytest.fixture
def s3(web, monkeypatch):
    """The server as a public store of S3."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", web.url(""))
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    return web


@pytest.fixture
def make_web():
    """Makes further servers."""
    with contextlib.ExitStack() as stack:

        def make():
            server = Web()
            stack.callback(server.close)
            return server

        yield make
    pools.cache_clear()


@pytest.fixture
def quick():
    """Few tries without pauses."""
    return Retries(tries=4, first_s=0.0)


@pytest.fixture
def pauses(monkeypatch):
    """The seconds that the test's pauses would have taken."""
    pauses = []
    monkeypatch.setattr("time.sleep", pauses.append)
    return pauses


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    """No settings of the machine's decide how a URL is opened."""
    for variable in (
        "WDS_SECURE",
        "WDS_REWRITE",
        "GOPEN_REWRITE",
        "GOPEN_VERBOSE",
        "GOPEN_BUFFER",
        "USE_AIS_FOR",
        "AIS_ENDPOINT",
        "AIS_AUTHN_TOKEN",
        "HF_TOKEN",
        "HF_ENDPOINT",
        *(name + suffix for name in ("http", "https", "all", "no") for suffix in ("_proxy", "_PROXY")),
        *(name.upper() + "_PROXY" for name in ("http", "https", "all", "no")),
    ):
        monkeypatch.delenv(variable, raising=False)
