"""One HTTP request: by a kept connection or a new one, by proxies, along redirects."""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, InvalidURL
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from mpwds.errors import StreamError
from mpwds.storage.streams import http_connections
from mpwds.storage.streams.http_connections import Route, basic_authorization, find_route, proxy_headers
from mpwds.storage.streams.retries import Interrupted
from mpwds.storage.streams.uploads import Upload
from mpwds.storage.streams.urls import without_credentials

_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 10
_DRAINED_BYTES = 64 * 1024
_CONTINUE_S = 1.0  # how long a server may think about whether it wants a body
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~-._"
_USER_AGENT = "mpwds"
_UNREACHABLE = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)

_reached: set[Route] = set()  # servers that have answered this process: when they are gone they may come back


class Timeouts(NamedTuple):
    """How long the other side may be silent, in seconds: while connecting, and after that."""

    connect_s: float = 30.0
    read_s: float = 60.0


@dataclass
class Exchange:
    """A request that has been answered; the answer's body is still to be read.

    Attributes:
        response: The answer. Its ``fp`` is read directly, to take what one ``recv`` brings.
        url: Where it came from, after redirects.
    """

    response: HTTPResponse
    url: str
    _connection: HTTPConnection
    _route: Route
    _pid: int = field(default_factory=os.getpid)

    def release(self) -> None:
        """Call it when the body has been read to its end: keeps the connection, if the server does."""
        keeps = not self.response.will_close and self._pid == os.getpid()
        self.response.close()
        if keeps:
            http_connections.pool.give(self._route, self._connection)
        else:
            self._connection.close()

    def drop(self) -> None:
        """Closes the connection."""
        self.response.close()
        self._connection.close()

    def drain(self) -> bytes:
        """Reads the body of an answer that is not the one hoped for, and releases; the first bytes of it."""
        try:
            start = self.response.read(_DRAINED_BYTES)
            at_end = self.response.isclosed()
        except (OSError, HTTPException):
            start, at_end = b"", False
        if at_end:
            self.release()
        else:
            self.drop()
        return start


def request(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    name: str,
    timeouts: Timeouts,
    upload: Upload | None = None,
) -> Exchange:
    """Sends a request, follows redirects, and returns when the answer's headers are there.

    ``headers``, and ``user:password@`` in the URL, go to the server that they are meant for; a redirect to
    another one leaves them behind, except for ``Range`` and the like.

    Args:
        method: ``"GET"`` or ``"PUT"``.
        url: An ``http:`` or ``https:`` URL; characters that a URL must not hold are escaped.
        headers: To be sent along.
        name: What the URL is called in messages.
        timeouts: How long the server may be silent.
        upload: What to send.

    Raises:
        Interrupted: No answer; another try may get one.
        StreamError: No answer, and another try will get none: the URL or a certificate is bad, or redirects
            do not end.
    """
    origin = find_route(url)[:3]
    current = url
    for _ in range(_MOST_REDIRECTS + 1):
        route = find_route(current)
        own = route[:3] == origin
        sent = {key: value for key, value in headers.items() if own or key in _HARMLESS}
        authorization = basic_authorization(current) or (basic_authorization(url) if own else "")
        if authorization and "Authorization" not in sent:
            sent["Authorization"] = authorization
        exchange = _exchange(method, current, route, sent, name, timeouts, upload)
        location = exchange.response.headers.get("Location")
        if exchange.response.status not in _REDIRECTS or not location:
            return exchange
        exchange.drain()
        current = urljoin(current, location)
        if urlsplit(current).scheme.lower() not in ("http", "https"):
            raise StreamError(
                f"{name}: the server redirects to {without_credentials(current)!r}, which is not http: or "
                "https:, "
                "and so is not followed",
                name,
            )
    raise StreamError(
        f"{name}: more than {_MOST_REDIRECTS} redirects, they seem to go round in circles", name
    )


_HARMLESS = ("Range", "If-Range", "Accept-Encoding", "User-Agent", "Content-Length", "Content-Type")


def _exchange(
    method: str,
    url: str,
    route: Route,
    headers: Mapping[str, str],
    name: str,
    timeouts: Timeouts,
    upload: Upload | None,
) -> Exchange:
    while True:
        kept = http_connections.pool.take(route)
        connection = kept
        try:
            if connection is None:
                connection = http_connections.new_connection(route, timeouts.connect_s)
            if connection.sock is not None:
                connection.sock.settimeout(timeouts.read_s)
            response = _send(connection, method, url, route, headers, upload)
            _reached.add(route)
            return Exchange(response, url, connection, route)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if kept is not None and isinstance(error, (ConnectionError, HTTPException)):
                continue  # the server had closed it just then; that says nothing about a new one
            if isinstance(error, (OSError, HTTPException)):
                raise _translated(error, name, route not in _reached) from error
            raise


def _send(
    connection: HTTPConnection,
    method: str,
    url: str,
    route: Route,
    headers: Mapping[str, str],
    upload: Upload | None,
) -> HTTPResponse:
    parts = urlsplit(url)
    path = quote(parts.path or "/", safe=_PATH_CHARACTERS)
    query = quote(parts.query, safe=_PATH_CHARACTERS + "?")
    target = urlunsplit(("", "", path, query, ""))
    sent = {"User-Agent": _USER_AGENT, "Accept-Encoding": "identity", **headers}
    if route.proxy and route.scheme == "http":
        host = f"[{route.host}]" if ":" in route.host else route.host
        target = f"http://{host}:{route.port}{target}"
        sent.update(proxy_headers(route))
    connection.putrequest(method, target, skip_accept_encoding=True)
    for key, value in sent.items():
        connection.putheader(key, value)
    if upload is None:
        connection.endheaders()
        return connection.getresponse()
    asks = not isinstance(connection.sock, ssl.SSLSocket)  # a TLS socket cannot be looked into
    if asks:
        connection.putheader("Expect", "100-continue")
    connection.putheader("Content-Length", str(upload.size))
    connection.endheaders()
    # A server that answers at once (AIStore's proxy redirects every object) would close the connection on
    # a body that it does not want, and its answer would be lost.
    if asks and not _wants_body(connection.sock):
        response = connection.getresponse()
        response.will_close = True  # the body that was announced never comes
        return response
    upload.file.seek(0)
    while block := upload.file.read(1024 * 1024):
        connection.send(block)
    return connection.getresponse()


def _wants_body(sock: socket.socket) -> bool:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    if not poller.poll(_CONTINUE_S * 1000):
        return True  # it does not know the question
    return b" 100" in sock.recv(16, socket.MSG_PEEK)


def _translated(error: Exception, name: str, unreached: bool) -> Exception:
    """What a failure of the connection means; ``unreached`` if there never was one to that server."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return StreamError(
            f"{name}: the server's certificate is not valid: {error.verify_message}; if it is one of your "
            "own, name its "
            "authority in SSL_CERT_FILE",
            name,
        )
    if isinstance(error, (InvalidURL, UnicodeError)):
        return StreamError(f"{name}: not a valid URL: {error}", name)
    if isinstance(error, socket.gaierror):
        if error.errno == socket.EAI_AGAIN:
            return Interrupted("the host's address cannot be looked up at present", unreached=unreached)
        return StreamError(f"{name}: the host is not known: {error.strerror}", name)
    if isinstance(error, TimeoutError):
        return Interrupted("the server is silent")
    unreached = unreached and isinstance(error, OSError) and error.errno in _UNREACHABLE
    return Interrupted(f"the connection failed ({type(error).__name__}: {error})", unreached=unreached)
