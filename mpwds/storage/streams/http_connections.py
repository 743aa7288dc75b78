"""Connections to HTTP servers, kept for the next request."""

from __future__ import annotations

import functools
import os
import select
import ssl
import threading
import time
import urllib.request
from base64 import b64encode
from http.client import HTTPConnection, HTTPSConnection
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from mpwds.errors import StreamError
from mpwds.storage.streams.urls import without_credentials

_IDLE_PER_ROUTE = 4
_IDLE_S = 60.0
_PORTS = {"http": 80, "https": 443}


class Route(NamedTuple):
    """Where a connection leads: the server, and the proxy on the way (an empty string for none)."""

    scheme: str
    host: str
    port: int
    proxy: str = ""


class ConnectionPool:
    """Connections that nobody uses at present, for any thread to take.

    A connection is in use by one taker or idle here, never both. A fork of the process starts with none: its
    copies are closed, without a word to the server, by :func:`_start_anew`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Route, list[tuple[float, HTTPConnection]]] = {}

    def take(self, route: Route) -> HTTPConnection | None:
        """An idle connection that the server has not closed; ``None`` if there is none."""
        while True:
            with self._lock:
                waiting = self._idle.get(route)
                if not waiting:
                    return None
                since, connection = waiting.pop()
            if time.monotonic() - since < _IDLE_S and _is_quiet(connection):
                return connection
            connection.close()

    def give(self, route: Route, connection: HTTPConnection) -> None:
        """Takes back a connection whose last response has been read to its end."""
        with self._lock:
            waiting = self._idle.setdefault(route, [])
            if connection.sock is not None and len(waiting) < _IDLE_PER_ROUTE:
                waiting.append((time.monotonic(), connection))
                return
        connection.close()

    def close(self) -> None:
        """Closes all idle connections; the pool can be used on."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for waiting in idle.values():
            for _, connection in waiting:
                connection.close()


pool = ConnectionPool()


def close_idle_connections() -> None:
    """Closes the connections to HTTP servers that are kept for further requests.

    They close by themselves when the process ends; call it to be left with no open socket before that.

    Example:
        >>> close_idle_connections()
    """
    pool.close()


def find_route(url: str) -> Route:
    """The way to a URL's server: direct, or by the proxy that the environment names for it.

    The variables are ``http_proxy``, ``https_proxy``, ``all_proxy`` and ``no_proxy``, as everywhere.

    Raises:
        StreamError: The URL has no host or no valid port, or the proxy is of a kind that is not supported.
    """
    shown = without_credentials(url)
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    try:
        host, port = parts.hostname or "", parts.port or _PORTS[scheme]
    except ValueError as error:
        raise StreamError(f"{shown}: {error}", shown) from None
    if not host:
        raise StreamError(f"{shown}: the URL names no host: write {scheme}://host/path", shown)
    proxies = urllib.request.getproxies_environment()
    proxy = proxies.get(scheme) or proxies.get("all") or ""
    if not proxy or _goes_past_proxies(host, port, proxies):
        return Route(scheme, host, port)
    if "://" not in proxy:
        proxy = "http://" + proxy
    if urlsplit(proxy).scheme != "http" or not urlsplit(proxy).hostname:
        raise StreamError(
            f"{shown}: the proxy {without_credentials(proxy)!r} of the environment cannot be used: only "
            "http:// "
            "proxies can; name the host in no_proxy to do without",
            shown,
        )
    return Route(scheme, host, port, proxy)


def _goes_past_proxies(host: str, port: int, proxies: dict[str, str]) -> bool:
    """Whether ``no_proxy`` lists a host: by name (with its port or without), by domain, or as ``*``."""
    for entry in proxies.get("no", "").lower().replace(" ", "").split(","):
        name = entry.lstrip(".")
        if name == "*" or name in (host, f"{host}:{port}") or (name and host.endswith("." + name)):
            return True
    return False


def new_connection(route: Route, connect_timeout_s: float) -> HTTPConnection:
    """Connects to a server; what can go wrong with sockets and certificates is raised as it is."""
    proxy = urlsplit(route.proxy)
    host, port = (proxy.hostname or "", proxy.port or 80) if route.proxy else (route.host, route.port)
    if route.scheme == "https":
        connection: HTTPConnection = HTTPSConnection(
            host, port, timeout=connect_timeout_s, context=_tls_context()
        )
        if route.proxy:
            connection.set_tunnel(route.host, route.port, headers=proxy_headers(route))
    else:
        connection = HTTPConnection(host, port, timeout=connect_timeout_s)
    try:
        connection.connect()
    except BaseException:
        connection.close()
        raise
    return connection


def proxy_headers(route: Route) -> dict[str, str]:
    """What to say to the proxy for it to let one in."""
    authorization = basic_authorization(route.proxy)
    return {"Proxy-Authorization": authorization} if authorization else {}


def basic_authorization(url: str) -> str:
    """The ``Authorization`` that a URL's ``user:password@`` stands for; an empty string without.

    Example:
        >>> basic_authorization("https://me:p%40ss@host/")
        'Basic bWU6cEBzcw=='
    """
    parts = urlsplit(url)
    if parts.username is None:
        return ""
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return "Basic " + b64encode(pair.encode()).decode("ascii")


@functools.lru_cache(maxsize=4)
def _context_for(cafile: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=cafile)


def _tls_context() -> ssl.SSLContext:
    """The certificates of the system, of ``SSL_CERT_FILE``, or, as for curl, of ``CURL_CA_BUNDLE``."""
    return _context_for(os.environ.get("SSL_CERT_FILE") or os.environ.get("CURL_CA_BUNDLE") or None)


def _is_quiet(connection: HTTPConnection) -> bool:
    """Whether nothing has come in: between requests that could only be the end, or rubbish."""
    if connection.sock is None:
        return False
    poller = select.poll()
    poller.register(connection.sock, select.POLLIN)
    return not poller.poll(0)


def _start_anew() -> None:
    global pool
    inherited, pool = pool, ConnectionPool()
    # The lock may have been held by a thread that does not exist here.
    for waiting in inherited._idle.values():
        for _, connection in waiting:
            connection.close()


os.register_at_fork(after_in_child=_start_anew)
