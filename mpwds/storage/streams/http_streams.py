"""Byte streams from and to HTTP servers."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import BinaryIO, cast

from mpwds.errors import StreamError, StreamNotFound
from mpwds.storage.streams.http_requests import Exchange, Timeouts, request
from mpwds.storage.streams.resuming import Version, open_resuming
from mpwds.storage.streams.retries import Interrupted, Retries
from mpwds.storage.streams.uploads import SpooledUpload, Upload
from mpwds.storage.streams.urls import without_credentials

_CONTENT_RANGE = re.compile(r"bytes\s+(?:(\d+)-(\d+)|\*)/(\d+|\*)")
_PASSING = (408, 425, 429)
_LASTING_5XX = (501, 505)
_EXCERPT = 300


def open_http(
    url: str,
    mode: str = "rb",
    bufsize: int = 8192,
    *,
    offset: int = 0,
    timeout_s: float = 60.0,
    connect_timeout_s: float = 30.0,
    retries: Retries | None = None,
    headers: Mapping[str, str] | None = None,
    name: str | None = None,
) -> BinaryIO:
    """A stream from a web server, or to one.

    *Reading* streams one ``GET``. When the connection breaks, stalls, or ends too early, the stream goes on
    at the same byte with a ``Range`` request, after a pause. A server that knows no ranges is read from its
    beginning up to that byte. What was changed meanwhile is an error, never a mixture: see
    :func:`mpwds.storage.streams.resuming.open_resuming`. The status codes 408, 425, 429 and 5xx mean another
    try,
    after the ``Retry-After`` that the server gives. The bytes are those that are stored: no encoding is
    asked for, and one that a server uses all the same (``Content-Encoding: gzip`` for ``x.tar.gz``) is not
    undone.

    *Writing* collects in a temporary file (in memory up to 16 MiB) and sends all in one ``PUT`` at
    ``close``, with tries like these. Where a ``with`` block fails, and at ``discard``, nothing is sent.

    Connections are kept for the next request, by this process alone. Redirects are followed to http and
    https. Proxies come from the environment (``https_proxy`` and so on), certificates from the system or
    ``SSL_CERT_FILE``.

    Args:
        url: ``http:`` or ``https:``. ``user:password@`` is sent as basic authorization.
        mode: ``"rb"`` or ``"wb"``.
        bufsize: Bytes that are buffered; at least 256 KiB when reading.
        offset: The byte at which to start reading.
        timeout_s: How long the server may be silent, in seconds, before that counts as a failure.
        connect_timeout_s: The same for connecting.
        retries: How often to try; by default ten times, in about a minute.
        headers: To be sent to this server (not to others that it redirects to).
        name: What to call it in messages; the URL, without credentials, by default.

    Raises:
        StreamNotFound: The server knows no such resource (404, 410).
        StreamError: It cannot be read or written for another reason; from ``read`` and ``close`` too.

    Example:
        >>> open_http("http://127.0.0.1:1/x.tar", retries=Retries(tries=1))
        Traceback (most recent call last):
            ...
        mpwds.errors.StreamError: http://127.0.0.1:1/x.tar: the connection failed ...
    """
    shown = name or without_credentials(url)
    timeouts = Timeouts(connect_timeout_s, timeout_s)
    if mode[0] == "r":
        return open_resuming(HttpSource(url, shown, headers or {}, timeouts), offset, retries, bufsize)

    def put(upload: Upload) -> None:
        _put(url, shown, headers or {}, timeouts, upload)

    return cast(BinaryIO, SpooledUpload(shown, put, retries or Retries()))


class HttpSource:
    """A resource on a web server, for :func:`mpwds.storage.streams.resuming.open_resuming`."""

    def __init__(self, url: str, name: str, headers: Mapping[str, str], timeouts: Timeouts) -> None:
        self.name = name
        self._url = url
        self._headers = headers
        self._timeouts = timeouts

    def open(self, position: int, version: Version | None) -> HttpBody:
        sent = dict(self._headers)
        if position > 0:
            sent["Range"] = f"bytes={position}-"
            if version is not None and version.is_recognisable:
                sent["If-Range"] = version.etag or version.modified or ""
        exchange = request("GET", self._url, headers=sent, name=self.name, timeouts=self._timeouts)
        try:
            return self._body(exchange, position, version if "If-Range" in sent else None)
        except BaseException:
            exchange.drop()
            raise

    def _body(self, exchange: Exchange, position: int, asked_for: Version | None) -> HttpBody:
        response = exchange.response
        etag = response.headers.get("ETag")
        version = Version(
            etag if etag and not etag.startswith("W/") else None, response.headers.get("Last-Modified")
        )
        length = None if response.chunked else response.length
        if response.status == 200:
            return HttpBody(exchange, 0, length, version._replace(size=length))
        if response.status not in (206, 416):
            raise _refusal(exchange, self.name, "reading")
        span = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        total = int(span[3]) if span and span[3] != "*" else None
        if response.status == 416:
            if total != position:
                holds = "fewer" if total is None else f"only {total}"
                raise StreamError(
                    f"{self.name}: byte {position} is to be read, but it has {holds} bytes: it is shorter "
                    "than it "
                    "was, or this is not the file that the position is of",
                    self.name,
                    position,
                )
            exchange.drain()
            return HttpBody(exchange, position, 0, (asked_for or version)._replace(size=total))
        if span is None or span[1] is None or int(span[1]) != position or total is None:
            raise StreamError(
                f"{self.name}: bytes from {position} on were asked for, and the server sent "
                f"{response.headers.get('Content-Range', 'no Content-Range')!r}: it does not do ranges "
                "properly",
                self.name,
                position,
            )
        if asked_for is not None and not version.is_recognisable:
            version = asked_for  # by sending a part, and not the whole, it says that it is of this version
        length = int(span[2]) + 1 - position
        return HttpBody(exchange, position, length, version._replace(size=total))


class HttpBody:
    """The body of an answer to a ``GET``.

    Args:
        exchange: The request and its answer.
        start: The position of its first byte in the resource.
        length: How many bytes there are to be; ``None`` if the server did not say.
        version: What they are of.
    """

    def __init__(self, exchange: Exchange, start: int, length: int | None, version: Version) -> None:
        self.start = start
        self.version = version
        self._exchange: Exchange | None = exchange
        self._left = length
        if length == 0:
            self._release()

    def readinto(self, buffer: memoryview) -> int:
        if self._exchange is None:
            return 0
        response = self._exchange.response
        try:
            if response.chunked:
                block = response.read1(len(buffer))
                count = len(block)
                buffer[:count] = block
            elif response.fp is None:
                count = 0
            else:
                count = response.fp.readinto1(buffer[: self._left])
        except TimeoutError as error:
            raise Interrupted("the server is silent") from error
        except (OSError, HTTPException, ValueError) as error:
            raise Interrupted(f"the connection broke ({type(error).__name__}: {error})") from error
        if self._left is not None:
            self._left -= count
            if count == 0:
                raise Interrupted(f"the connection ended {self._left} bytes too early")
        if count == 0 or self._left == 0:
            self._release()
        return count

    def close(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.drop()

    def _release(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.release()


def _put(url: str, name: str, headers: Mapping[str, str], timeouts: Timeouts, upload: Upload) -> None:
    exchange = request("PUT", url, headers=headers, name=name, timeouts=timeouts, upload=upload)
    if 200 <= exchange.response.status < 300:
        exchange.drain()
    else:
        raise _refusal(exchange, name, "writing")


def _refusal(exchange: Exchange, name: str, doing: str) -> Exception:
    """What an answer without the hoped for content means."""
    response = exchange.response
    status = response.status
    reason = f"{status} {response.reason}".strip()
    wish_s = _retry_after_s(response.headers.get("Retry-After"))
    excerpt = " ".join(exchange.drain()[:_EXCERPT].decode("utf-8", "replace").split())
    said = f"; it said: {without_credentials(excerpt)}" if excerpt else ""
    if status in _PASSING or (status >= 500 and status not in _LASTING_5XX):
        return Interrupted(f"the server answers {reason}{said}", wish_s)
    if status in (404, 410):
        return StreamNotFound(f"{name}: the server knows no such resource ({reason}){said}", name)
    hint = ""
    if status in (401, 403, 407):
        hint = ": check the credentials and what they allow"
    elif doing == "writing":
        hint = ": does the server take PUT requests?"
    return StreamError(f"{name}: {doing} failed, the server answers {reason}{hint}{said}", name)


def _retry_after_s(value: str | None) -> float | None:
    """Seconds, from a number of them or a date."""
    if value is None:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
