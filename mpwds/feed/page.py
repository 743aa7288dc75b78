"""A page in the browser that shows a feed: figures over time, the latest batch, its tensors, clients."""

from __future__ import annotations

import contextlib
import io
import json
import secrets
import sys
import threading
import time
from collections import deque
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mpwds.closing import Closes
from mpwds.errors import MpwdsError
from mpwds.feed import keys
from mpwds.feed import report as wording
from mpwds.feed.report import FeedReport
from mpwds.feed.status_client import StatusSource
from mpwds.stats.diagnosis import no_answer
from mpwds.viewing.pictures import Pictures, pictures, tile
from mpwds.viewing.tensors import TensorStatistics

_READ_EVERY_S = 1.0
_PEEK_EVERY_S = 4.0
_PEEK_S = 5.0  # to wait for a batch
_HISTORY = 600  # readings
_SAMPLES, _COLUMNS, _SIDE = 32, 8, 128  # of the picture of a batch, in tiles and pixels
_ICON = b"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">
<rect width="32" height="32" rx="7" fill="#0969da"/>
<path d="M7 23V9l9 8 9-8v14" fill="none" stroke="#fff" stroke-width="3.5"/></svg>"""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Page(Closes):
    """Serves the page to browsers of this machine until it is closed.

    The first to open ``url``, which holds a token, gets a cookie, and the link is spent: another user of the
    machine who finds it in a list of processes comes too late. The page changes nothing. It is on a ``port``
    of 127.0.0.1; 0 takes a free one. The caller closes ``source``.
    """

    def __init__(self, source: StatusSource, port: int = 0) -> None:
        self.content = _Content(source)
        self.auth = TokenAuth()
        self._server = _PageServer(("127.0.0.1", port), self)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/?token={self.auth.token}"
        self._threads = [
            threading.Thread(target=self._server.serve_forever, args=(0.1,), name="mpwds page", daemon=True),
            threading.Thread(target=self.content.keep_reading, name="mpwds page figures", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stops serving. Waits for a batch that is being received."""
        self._server.shutdown()
        self._server.server_close()
        self.content.end()
        for thread in self._threads:
            thread.join()


class TokenAuth:
    """Accepts the token once and sets a cookie; later requests need the cookie."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)
        self._session = secrets.token_urlsafe(24)
        self._spent = False
        self._lock = threading.Lock()

    def take(self, token: str) -> str | None:
        """The session's secret in return for the token, the first time."""
        with self._lock:
            if self._spent or not _same(token, self.token):
                return None
            self._spent = True
            return self._session

    def knows(self, session: str) -> bool:
        return _same(session, self._session)


def _same(given: str, expected: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), expected.encode())


class _Content:
    """The page's content: a report, read every second, and the latest batch, received when a browser asks."""

    def __init__(self, source: StatusSource) -> None:
        self._source = source
        self._history: deque[list[float | None]] = deque(maxlen=_HISTORY)
        self._figures: FeedReport | None = None
        self._error = ""
        self._closing = threading.Event()
        self._peeking = threading.Lock()
        self._batch: dict[str, Any] = {"number": 0, "samples": [], "tensors": []}
        self.picture = b""  # the latest batch's tiles in one PNG, eight in a row
        self._peeked_s = -_PEEK_EVERY_S

    def keep_reading(self) -> None:
        began_s = time.monotonic()
        is_first = True  # it is about all the time before
        while not self._closing.wait(0 if is_first else _READ_EVERY_S):
            point: list[float | None] = [round(time.monotonic() - began_s, 2), None, None]
            try:
                figures = self._source.read()
            except (MpwdsError, OSError) as error:
                self._error, self._figures = str(error), None
            else:
                self._error = no_answer(figures.lost) if figures.lost else ""
                if not is_first:
                    self._figures = figures
                    point[1:] = [figures.batches_per_s, figures.bytes_per_s / 1e6]
            self._history.append(point)
            is_first = False

    def figures(self) -> dict[str, Any]:
        """The figures, worded as the terminal's; none while no server answers."""
        history, figures = list(self._history), self._figures
        shown: dict[str, Any] = {"name": self._source.name, "error": self._error, "history": history}
        if figures is None:
            return shown
        stages = wording.shown_stages(figures)
        return {
            **shown,
            "about": wording.about(figures),
            "headline": wording.headline(figures),
            "verdict": figures.verdict,
            "stages": [[stage.name, stage.share, wording.stage_cost(stage)] for stage in stages],
            "tables": [vars(table) for table in wording.tables(figures)],
            "notes": wording.notes(figures),
        }

    def batch(self) -> dict[str, Any]:
        """The latest batch: labels, texts, statistics of tensors. Receives a new one every few seconds."""
        with self._peeking:
            if time.monotonic() - self._peeked_s >= _PEEK_EVERY_S and not self._closing.is_set():
                try:
                    self._show(self._source.peek(_PEEK_S))
                except (MpwdsError, OSError) as error:
                    self._batch = {**self._batch, "error": str(error)}
                self._peeked_s = time.monotonic()
            return self._batch

    def _show(self, batch: Any) -> None:
        shown = pictures(batch, _SAMPLES, self._source.classes)
        statistics = TensorStatistics()
        statistics.add(batch)
        tensors = statistics.read()
        self.picture = _sprite(shown)
        self._batch = {
            "number": self._batch["number"] + 1,
            "kind": shown.kind,
            "note": " ".join(filter(None, (shown.path, shown.note))),
            "total": shown.total,
            "columns": _COLUMNS,
            "samples": [[sample.label, sample.text] for sample in shown.samples],
            "tensors": vars(wording.tensor_table(tensors)),
            "histograms": [tensor.filled_bins for tensor in tensors],
            "error": "",
        }

    def end(self) -> None:
        """Lets :meth:`keep_reading` return, and receives no more batches."""
        with self._peeking:
            self._closing.set()


def _sprite(shown: Pictures) -> bytes:
    from PIL import Image

    lines = -(-max(len(shown.samples), 1) // _COLUMNS)
    sprite = Image.new("RGBA", (_COLUMNS * _SIDE, lines * _SIDE), (0, 0, 0, 0))
    for position, sample in enumerate(shown.samples):
        line, column = divmod(position, _COLUMNS)
        sprite.paste(tile(sample, _SIDE), (column * _SIDE, line * _SIDE))
    with io.BytesIO() as file:
        sprite.save(file, "PNG", compress_level=1)
        return file.getvalue()


class _PageServer(ThreadingHTTPServer):
    def __init__(self, address: tuple[str, int], page: Page) -> None:
        self.page = page
        self.html = files("mpwds.feed").joinpath("page.html").read_text("utf-8")
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints an error, unless a browser has left in the middle of its request."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "mpwds", ""
    timeout = 60
    server: _PageServer

    def do_GET(self) -> None:
        page = self.server.page
        if not keys.is_asked_for(self.headers.get("Host")):
            return self._refuse(f"this page is at http://127.0.0.1:{page.port} only")
        address = urlsplit(self.path)
        cookie = None
        if not page.auth.knows(self._session()):
            (token, *_) = parse_qs(address.query).get("token", [""])
            session = page.auth.take(token) if address.path == "/" else None
            if session is None:
                why = "the link has been used already, or is wrong: start the command again for a new one"
                return self._refuse(why)
            cookie = f"{self._cookie_name}={session}; Path=/; HttpOnly; SameSite=Strict"
        return self._answer(address.path, cookie)

    def _answer(self, path: str, cookie: str | None) -> None:
        content = self.server.page.content
        if path == "/":
            nonce = secrets.token_urlsafe(16)
            html = self.server.html.replace("{{nonce}}", nonce).encode()
            headers = {"Content-Security-Policy": _POLICY.format(nonce=nonce)}
            if cookie is not None:
                headers["Set-Cookie"] = cookie
            self._send(200, "text/html; charset=utf-8", html, headers)
        elif path == "/figures.json":
            self._send(200, "application/json", json.dumps(content.figures()).encode())
        elif path == "/batch.json":
            self._send(200, "application/json", json.dumps(content.batch()).encode())
        elif path == "/batch.png":
            self._send(200, "image/png", content.picture)
        elif path == "/icon.svg":
            self._send(200, "image/svg+xml", _ICON)
        else:
            self._send(404, "text/plain; charset=utf-8", b"there is no such page\n")

    def _refuse(self, why: str) -> None:
        self._send(403, "text/plain; charset=utf-8", f"{why}\n".encode())

    def _send(self, status: int, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        own = {"Content-Type": kind, "Content-Length": str(len(body))}
        for name, value in {**_HEADERS, **own, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    @property
    def _cookie_name(self) -> str:
        return f"mpwds-{self.server.page.port}"  # browsers share cookies between ports

    def _session(self) -> str:
        with contextlib.suppress(CookieError):
            morsel = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie_name)
            return "" if morsel is None else morsel.value
        return ""

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: the terminal shows the link only."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._not_allowed
        raise AttributeError(name)

    def _not_allowed(self) -> None:
        self._send(405, "text/plain; charset=utf-8", b"this page only shows\n", {"Allow": "GET"})
