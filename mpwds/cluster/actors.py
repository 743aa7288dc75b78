"""The actors of a fleet. Each knows the others by their names, so all of them may be restarted."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mpwds.cluster.engine import connect
from mpwds.loader.messages.protocol import describe_error
from mpwds.storage.caches.locks import lock, release, remove_unlocked_folder

_REPORT_EVERY_S = 1.0
_SILENCE_S = 5.0  # after which a server is not listed
_STOPPING_S = 3.0
_ASKED_WITHIN_S = 10.0
_KEYS = "mpwds-keys-"

SERVER_KEYS = ("server.key_secret", "client.key")
CLIENT_KEYS = ("client.key_secret", "server.key")


class TrainerFigures(NamedTuple):
    """Times of a trainer since its loader was made, and the servers of its workers."""

    waited_s: float  # for batches
    seconds: float
    workers_waited_s: float  # for the trainer, of all workers
    workers_active_s: float
    servers: tuple[str, ...]


class Directory:
    """The addresses of a fleet's servers, and what its trainers tell. Servers report every second.

    A directory that was restarted has no addresses at first. It says so (``None``) until servers had the time
    to report, so that trainers keep those that they have.
    """

    def __init__(self, keys: Mapping[str, bytes], restarted: bool | None = None) -> None:
        if restarted is None:
            restarted = connect().get_runtime_context().was_current_actor_reconstructed
        self._complete_at = time.monotonic() + (_SILENCE_S if restarted else 0.0)
        self._keys = dict(keys)
        self._servers: dict[int, tuple[str, bool, float]] = {}  # the last reports, and when
        self._retired: set[int] = set()
        self._trainers: dict[str, tuple[TrainerFigures, float]] = {}

    def report(self, server: int, url: str, is_idle: bool = False) -> None:
        """A server serves at this address now, and may have no trainer. After a restart it has another."""
        self._servers[server] = url, is_idle, time.monotonic()

    def retire(self, server: int) -> None:
        """A server is not listed any more: it ends, and its trainers go to others."""
        self._retired.add(server)

    def servers(self) -> dict[int, str] | None:
        """The addresses of the servers that have reported lately, by number."""
        now = time.monotonic()
        if now < self._complete_at:
            return None
        return {
            number: url
            for number, (url, _, heard) in sorted(self._servers.items())
            if number not in self._retired and now - heard < _SILENCE_S
        }

    def idle(self) -> set[int]:
        """The servers that have no trainer."""
        return {number for number in self.servers() or () if self._servers[number][1]}

    def addresses(self, figures: Mapping[str, TrainerFigures]) -> list[str] | None:
        """The addresses for a trainer, which tells the figures of its loaders by their names."""
        now = time.monotonic()
        self._trainers.update({name: (told, now) for name, told in figures.items()})
        servers = self.servers()
        return None if servers is None else list(servers.values())

    def figures(self) -> dict[str, TrainerFigures]:
        """The figures of the trainers that have asked lately."""
        after = time.monotonic() - 2 * _SILENCE_S
        return {name: told for name, (told, heard) in self._trainers.items() if heard > after}

    def client_keys(self) -> dict[str, bytes]:
        """The files that a trainer needs."""
        return {name: self._keys[name] for name in CLIENT_KEYS}


class ServerActor:
    """Runs a server on its machine, and tells the directory where."""

    def __init__(self, packed: bytes, number: int, directory: str, namespace: str) -> None:
        self._stopping = threading.Event()
        self._failure: dict[str, Any] | None = None
        self._told = False
        try:
            self._start(**pickle.loads(packed))
        except Exception as error:
            traceback.print_exc()
            self._failure = {"host": socket.gethostname(), **describe_error(error)}
            # If nobody asks, it served before it was lost: Ray tries again, also on other machines.
            threading.Timer(_ASKED_WITHIN_S, self._exit_unless_told).start()
            return
        report = (number, self._server.url, directory, namespace)
        threading.Thread(target=self._report, args=report, daemon=True).start()

    def _start(self, dataset: Any, workers: int, keys: Mapping[str, bytes], options: dict[str, Any]) -> None:
        from mpwds.feed.server.server import Server

        self._keys = KeyFolder(keys)
        host = connect().util.get_node_ip_address()
        bind = f"tcp://[{host}]:0" if ":" in host else f"tcp://{host}:0"
        self._server = Server(dataset, bind, workers=workers, keys=self._keys.path, **options)
        self._serving = threading.Thread(target=self._serve)
        self._serving.start()

    def failure(self) -> dict[str, Any] | None:
        """The fields of the error with which the server did not start; ``None`` if it serves."""
        self._told = True
        return self._failure

    def stop(self) -> None:
        """Sends what is under way, and ends the workers."""
        self._stopping.set()
        self._server.stop()
        self._serving.join(_STOPPING_S)
        self._server.close()
        self._keys.close()

    def _exit_unless_told(self) -> None:
        if not self._told:
            os._exit(1)  # Ray does not start an actor again after an exception

    def _serve(self) -> None:
        try:
            self._server.serve()
        except BaseException:
            os._exit(1)  # Ray then starts it again

    def _report(self, number: int, url: str, directory: str, namespace: str) -> None:
        ray = connect()
        while not self._stopping.is_set():
            with contextlib.suppress(ray.exceptions.RayError, ValueError):  # it is being restarted
                is_idle = not self._server.status()["clients"]
                told = ray.get_actor(directory, namespace).report.remote(number, url, is_idle)
                ray.get(told, timeout=_SILENCE_S)
            self._stopping.wait(_REPORT_EVERY_S)


class KeyFolder:
    """A temporary folder at ``path`` with keys, as servers and trainers read them.

    It is locked while its process lives. The next process of this user that makes or removes one removes
    those of processes that were killed.
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        parent = Path(tempfile.gettempdir())
        _remove_unlocked(parent)
        descriptor = None
        while descriptor is None:  # another process may remove a folder before it is locked
            self.path = tempfile.mkdtemp(prefix=_KEYS, dir=parent)
            descriptor = lock(self.path)
        self.close = weakref.finalize(self, _end, parent, descriptor)
        for name, key in keys.items():
            path = Path(self.path, name)
            path.touch(mode=0o600)
            path.write_bytes(key)


def _end(parent: Path, descriptor: int) -> None:
    release(descriptor)
    _remove_unlocked(parent)


def _remove_unlocked(parent: Path) -> None:
    for folder in map(str, parent.glob(f"{_KEYS}*")):
        remove_unlocked_folder(folder)
