"""CURVE keys of servers and trainers: files, and what they do to sockets."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from mpwds.errors import MpwdsError, SecurityError
from mpwds.feed.wire import IDENTITY_NBYTES
from mpwds.interrupts import uninterrupted

logger = logging.getLogger("mpwds.feed")

StrPath: TypeAlias = str | os.PathLike[str]
SERVER, CLIENT = "server", "client"
_PUBLIC, _SECRET = ".key", ".key_secret"
_MOST_REFUSED = 100
LONGEST_PATH = 107
"""Bytes of a Unix socket's path, at the most."""

HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""Events of a socket's monitor: the other side has no key, or another one, or left at once."""


def generate(folder: StrPath, client: str = CLIENT) -> list[Path]:
    """Makes key pairs for servers and a client, in files that only their owner can read. Keeps existing ones.

    A server needs ``server.key_secret`` and the public keys of its clients (``client*.key``), a trainer
    ``server.key`` and ``client.key_secret``.

    The folder is made if it does not exist, for its owner alone. ``client`` is the name of the client's
    files: ``"client"``, or one that starts with it. Returns the files that were written.

    Raises ``ValueError`` if the client has another name, ``SecurityError`` if others can write to the folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print(*sorted(path.name for path in generate(folder)))
        client.key client.key_secret server.key server.key_secret
    """
    if not client.startswith(CLIENT) or client != os.path.basename(client):
        raise ValueError(f"keygen: a client's name must start with {CLIENT!r}, without '/', got {client!r}")
    Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_folder(folder)
    written = []
    for name in (SERVER, client):
        public, secret = Path(folder, name + _PUBLIC), Path(folder, name + _SECRET)
        if secret.exists() or public.exists():
            continue
        for path, key in zip((public, secret), zmq.curve_keypair(), strict=True):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file:
                file.write(key + b"\n")
            written.append(path)
    return written


def needs_keys(url: str) -> bool:
    """True if other machines can reach a URL: only ``ipc`` and the loopback addresses stay on this one."""
    parts = urlsplit(url)
    return parts.scheme == "tcp" and not is_loopback(parts.hostname or "")


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_asked_for(host: str | None) -> bool:
    """True if the ``Host`` of an HTTP request is a loopback address, at any port: a tunnel may have another.

    A site can point its own name at such an address, and its pages could then read what is served there.
    """
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def check_url(url: str, keys: object, insecure: bool) -> None:
    """Raises unless a URL is one of ZeroMQ's that may be used with these keys."""
    parts = urlsplit(url)
    try:
        is_tcp = url == f"tcp://{parts.netloc}" and bool(parts.hostname) and parts.port is not None
    except ValueError:
        is_tcp = False
    path = os.fsencode(url[len("ipc://") :]) if url.startswith("ipc://") else b""
    if not (is_tcp and url.isascii() and "@" not in url) and not 0 < len(path) <= LONGEST_PATH:
        raise ValueError(
            f"a server's URL is tcp://HOST:PORT or ipc://PATH, whose path has up to {LONGEST_PATH} bytes, "
            f"got {url!r:.100}"
        )
    if keys is None and not insecure and needs_keys(url):
        raise SecurityError(
            f"{url} can be reached from other machines: pass keys=FOLDER (--keys FOLDER), which `mpwds "
            "keygen FOLDER` makes, or, if all in that network may read your data, insecure=True of "
            "RemoteLoader and Server (--insecure)"
        )


def client_socket(
    context: zmq.Context[zmq.Socket[bytes]], url: str, folder: StrPath | None, most_nbytes: int
) -> zmq.Socket[bytes]:
    """A trainer's socket for a server. With a folder, it talks only to those whose public key is there."""
    dealer = context.socket(zmq.DEALER)
    dealer.identity = b"\1" + secrets.token_bytes(IDENTITY_NBYTES - 1)
    dealer.maxmsgsize = most_nbytes
    dealer.linger = 0
    dealer.ipv6 = _is_ipv6(url)
    if folder is not None:
        try:
            _check_folder(folder)
            secret = _read(folder, CLIENT + _SECRET)
            dealer.curve_secretkey = secret
            dealer.curve_publickey = zmq.curve_public(secret)
            dealer.curve_serverkey = _read(folder, SERVER + _PUBLIC)
        except BaseException:
            dealer.close(0)
            raise
    return dealer


def _is_ipv6(url: str) -> bool:
    """True if a server has IPv6 addresses alone: of a name with both, ZeroMQ would try the first of these."""
    families = set()
    if url.startswith("tcp:") and "[" not in url:
        with contextlib.suppress(OSError, UnicodeError):  # the name may be known later
            families = {found[0] for found in socket.getaddrinfo(urlsplit(url).hostname, None)}
    return "[" in url or families == {socket.AF_INET6}


@contextlib.contextmanager
def secured_server(
    context: zmq.Context[Any], router: zmq.Socket[bytes], folder: StrPath | None
) -> Iterator[deque[str]]:
    """Makes a server's socket accept only clients whose public keys are in the folder.

    Yields a queue of the addresses of others. The folder is read at each handshake: a key that is added or
    removed counts from the next connection on.
    """
    refused: deque[str] = deque(maxlen=_MOST_REFUSED)
    if folder is None:
        yield refused
        return
    _check_folder(folder)
    secret = _read(folder, SERVER + _SECRET)
    if not [_read(folder, path.name) for path in _clients(folder)]:
        raise MpwdsError(f"{folder} has no public key of a client ({CLIENT}*{_PUBLIC}): nobody could connect")
    asked = context.socket(zmq.REP)
    asked.bind("inproc://zeromq.zap.01")  # where ZeroMQ asks whether a client may connect
    arguments = asked, folder, refused
    thread = threading.Thread(target=_authorize, args=arguments, name="mpwds-keys", daemon=True)
    thread.start()
    end = context.socket(zmq.REQ)
    end.connect("inproc://zeromq.zap.01")
    try:
        router.curve_secretkey = secret
        router.curve_publickey = zmq.curve_public(secret)
        router.curve_server = True
        router.zap_domain = b"mpwds"
        router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # or all could connect if that thread failed
        yield refused
    finally:
        with contextlib.suppress(zmq.Again):  # the thread has ended already
            end.send(b"", zmq.NOBLOCK)
        thread.join()
        end.close(0)


def _authorize(asked: zmq.Socket[bytes], folder: StrPath, refused: deque[str]) -> None:
    """Answers ZeroMQ's questions (ZAP, RFC 27) until an empty one comes."""
    with asked:
        while len(question := asked.recv_multipart()) > 1:
            version, request, _, address, _, mechanism, *credentials = question
            try:
                known = mechanism == b"CURVE" and _knows(folder, z85.encode(credentials[0]))
            except Exception as error:  # without an answer, clients would wait for ever
                known = False
                logger.warning("keys of clients cannot be looked up: %s: %s", type(error).__name__, error)
            if not known:
                refused.append(address.decode(errors="replace"))
            verdict = [b"200", b"OK"] if known else [b"400", b"this key is not known here"]
            asked.send_multipart([version, request, *verdict, b"", b""])


def _clients(folder: StrPath) -> list[Path]:
    return sorted(Path(folder).glob(f"{CLIENT}*{_PUBLIC}"))


def _knows(folder: StrPath, key: bytes) -> bool:
    for path in _clients(folder):
        with contextlib.suppress(OSError, MpwdsError):  # a damaged file shuts out its own client only
            if _read(folder, path.name) == key:
                return True
    return False


class Handshakes:
    """Watches the connections of a server's socket for those that fail to introduce themselves."""

    def __init__(self, router: zmq.Socket[bytes], refused: deque[str]) -> None:
        address = f"inproc://handshakes-{id(self)}"
        uninterrupted(router.monitor, address, zmq.EVENT_ACCEPTED | HANDSHAKE_FAILED)
        self._monitor = router.context.socket(zmq.PAIR)
        self._monitor.rcvhwm = 0  # or ZeroMQ's own thread would wait for this end
        self._monitor.connect(address)
        self._watched = router
        self._refused = refused
        self._last = "an unknown address"

    def fileno(self) -> int:
        """A descriptor that becomes readable when something new happens."""
        return int(self._monitor.fd)

    def failures(self) -> Iterator[str]:
        """Yields a text for each failure since the last call."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._last = _peer(event["value"])
            elif event["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH and self._refused:
                yield f"a client's key is not known (from {self._refused.popleft()})"
            else:
                yield (
                    "no key, a wrong one, not ZeroMQ, or gone at once (the newest connection is from "
                    f"{self._last})"
                )

    def close(self) -> None:
        uninterrupted(self._watched.monitor, None, 0)
        self._monitor.close(0)


def _peer(descriptor: int) -> str:
    """The address at the other end of a connection, which may be closed by now."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            return str(connection.getpeername()[0])
    except (OSError, IndexError):
        return "an unknown address"


def _check_folder(folder: StrPath) -> None:
    """Raises SecurityError if others can add or replace keys in the folder, or read a private one."""
    if os.path.isdir(folder) and os.stat(folder).st_mode & 0o022 and not _is_read_only(folder):
        raise SecurityError(f"others can put keys into {folder}: `chmod go-w {folder}`")
    for path in sorted(Path(folder).glob(f"*{_SECRET}")):
        if path.stat().st_mode & 0o077 and not _is_read_only(path):
            raise SecurityError(f"{path} can be read by others: `chmod 600 {path}`")


def _is_read_only(path: StrPath) -> bool:
    """True if a file system is mounted read-only, as secrets are in Kubernetes, whose modes let all write."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _read(folder: StrPath, name: str) -> bytes:
    path = Path(folder, name)
    try:
        key = path.read_bytes().strip()
    except FileNotFoundError:
        advice = f"make keys with `mpwds keygen {folder}`"
        if name in (CLIENT + _SECRET, SERVER + _PUBLIC):  # new keys would not be those of the server
            advice = "copy the folder of keys from the server's machine to this one"
        raise MpwdsError(f"there is no key {path}: {advice}") from None
    if path.stat().st_mode & 0o022 and not _is_read_only(path):
        raise SecurityError(f"others can write to {path}: `chmod 600 {path}`")
    if len(key) != 40 or not set(key) <= set(z85.Z85CHARS):
        raise MpwdsError(f"{path} does not hold a key: it must be one line of 40 characters")
    return key
