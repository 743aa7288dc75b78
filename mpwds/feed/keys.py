"""CURVE keys of servers and trainers: files, and what they do to sockets."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import zmq
from zmq.auth.thread import ThreadAuthenticator

from mpwds.errors import MpwdsError, SecurityError

SERVER, CLIENT = "server", "client"
_PUBLIC, _SECRET = ".key", ".key_secret"


def generate(folder: str | os.PathLike[str], client: str = CLIENT) -> list[Path]:
    """Makes key pairs for servers and for a client, each in files of mode 0600; keeps those that exist.

    A server needs ``server.key_secret`` and the public keys of its clients (``client*.key``), a trainer
    ``server.key`` and ``client.key_secret``.

    Args:
        folder: Where the files go; it is made if it does not exist.
        client: Name of the client's files: ``"client"``, or one that starts with it.

    Returns:
        The files that were written.

    Raises:
        ValueError: ``client`` does not start with ``"client"``, or is no file name.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print(*sorted(path.name for path in generate(folder)))
        client.key client.key_secret server.key server.key_secret
    """
    if not client.startswith(CLIENT) or client != os.path.basename(client):
        raise ValueError(f"keygen: a client's name must start with {CLIENT!r}, got {client!r}")
    Path(folder).mkdir(parents=True, exist_ok=True)
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
    """Whether other machines can reach a URL: only ``ipc`` and the loopback addresses stay on this one."""
    parts = urlsplit(url)
    if parts.scheme != "tcp":
        return False
    host = parts.hostname or ""
    if host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def check_url(url: str, keys: object, insecure: bool) -> None:
    """Raises unless a URL is one of ZeroMQ's that may be used with these keys."""
    parts = urlsplit(url)
    try:
        is_tcp = parts.scheme == "tcp" and bool(parts.hostname) and parts.port is not None
    except ValueError:
        is_tcp = False
    if not is_tcp and not (parts.scheme == "ipc" and url[len("ipc://") :]):
        raise ValueError(f"a server's URL is tcp://HOST:PORT or ipc://PATH, got {url!r}")
    if keys is None and not insecure and needs_keys(url):
        raise SecurityError(
            f"{url} can be reached from other machines: pass keys= (made by `mpwds keygen FOLDER`), or "
            "insecure=True (--insecure) if everybody in that network may read your data"
        )


def secure_client(socket: zmq.Socket[bytes], folder: str | os.PathLike[str]) -> None:
    """Makes a trainer's socket talk only to the server whose public key is in the folder."""
    secret = _read(folder, CLIENT + _SECRET)
    socket.curve_secretkey = secret
    socket.curve_publickey = zmq.curve_public(secret)
    socket.curve_serverkey = _read(folder, SERVER + _PUBLIC)


@contextlib.contextmanager
def secured_server(
    context: zmq.Context[Any], socket: zmq.Socket[bytes], folder: str | os.PathLike[str] | None
) -> Iterator[None]:
    """Makes a server's socket accept only clients whose public keys are in the folder (by ZAP)."""
    if folder is None:
        yield
        return
    secret = _read(folder, SERVER + _SECRET)
    clients = {_read(folder, path.name) for path in Path(folder).glob(f"{CLIENT}*{_PUBLIC}")}
    if not clients:
        raise MpwdsError(f"{folder} has no public key of a client ({CLIENT}*{_PUBLIC}): nobody could connect")
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    try:
        authenticator.configure_curve_callback(credentials_provider=_Known(clients))
        socket.curve_secretkey = secret
        socket.curve_publickey = zmq.curve_public(secret)
        socket.curve_server = True
        yield
    finally:
        authenticator.stop()


class _Known:
    """Answers whether a client's key is known."""

    def __init__(self, keys: set[bytes]) -> None:
        self._keys = keys

    def callback(self, domain: str, key: bytes) -> bool:
        from zmq.utils import z85

        return z85.encode(key) in self._keys


def _read(folder: str | os.PathLike[str], name: str) -> bytes:
    path = Path(folder, name)
    try:
        key = path.read_bytes().strip()
    except FileNotFoundError:
        raise MpwdsError(f"there is no key {path}: make keys with `mpwds keygen {folder}`") from None
    if name.endswith(_SECRET) and path.stat().st_mode & 0o077:
        raise SecurityError(f"{path} can be read by others: `chmod 600 {path}`")
    if len(key) != 40:
        raise MpwdsError(f"{path} does not hold a key: it must be one line of 40 characters")
    return key
