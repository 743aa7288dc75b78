"""Opens what a command's URLs name: feed servers, or tensorcom's sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from mpwds.errors import MpwdsError, TenbinError
from mpwds.feed.client.addresses import ServerAddresses
from mpwds.feed.keys import check_url, needs_keys
from mpwds.feed.report import FeedReport
from mpwds.feed.status_client import FeedStatus, StatusSource
from mpwds.stats.measures import rates_of
from mpwds.storage.streams.patterns import Names
from mpwds.viewing.tensors import leaves
from mpwds.viewing.wording import shape_text

_POLL_S = 0.2


def open_source(urls: Sequence[str], keys: Path | None, insecure: bool) -> StatusSource:
    """Opens URLs, which are all of feed servers or all of tensorcom."""
    kinds = {url.partition(":")[0] for url in Names(*urls)}
    if kinds <= {"tcp", "ipc", "dns+tcp", "file"}:
        addresses = ServerAddresses(urls, partial(check_url, keys=keys, insecure=insecure))
        found = addresses.look_up()
        if not found:
            raise MpwdsError(f"{' '.join(urls)}: no address of a server ({addresses.why or 'it is empty'})")
        return FeedStatus(found, keys, insecure)
    if all(kind.startswith("z") for kind in kinds):
        check_tensorcom(urls, insecure)
        return TensorcomStatus(list(Names(*urls)))
    raise typer.BadParameter(
        f"{' '.join(urls)}: expected feed servers (tcp://HOST:PORT, ipc://PATH, file:PATH, "
        "dns+tcp://HOST:PORT) or tensorcom's sockets (zsub://HOST:PORT, zpull://HOST:PORT, ...), and one "
        "kind at a time"
    )


def check_tensorcom(urls: Sequence[str], insecure: bool) -> None:
    """Refuses tensorcom's URLs that other machines can reach, unless that is said to be meant."""
    from mpwds.compat.tensorcom.zcom import parse_url

    for url in Names(*urls):
        if not insecure and needs_keys(parse_url(url).location):
            raise typer.BadParameter(
                f"{url} can be reached from other machines, and tensorcom has no keys: say --insecure if all "
                "in that network may read and send batches"
            )


class TensorcomStatus:
    """Receives a tensorcom feed's batches and counts them.

    ``zsub`` receives a copy; batches that ``zpull`` receives are lost to others.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        from mpwds.compat.tensorcom.zcom import Connection

        self.name = ", ".join(urls)
        self.classes: Sequence[str] = ()
        self._connection = Connection(urls, infos=True, noexpand=True, timeout=_POLL_S)
        self._changed = threading.Condition()
        self._batch: Any = None
        self._counted = [0, 0, 0]  # batches, samples, bytes
        self._seen = 0  # batches, when peek was called last
        self._dropped = 0
        self._before = [0, 0, 0]
        self._read_s = time.monotonic()
        self._closing = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._receive, name="mpwds tensorcom", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        try:
            while not self._closing:
                self._receive_one()
        except Exception as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        finally:
            self._connection.close(0)

    def _receive_one(self) -> None:
        try:
            arrays, names = self._connection.recv()
        except TimeoutError:
            return
        except TenbinError:
            self._dropped += 1
            return
        named = all(names) and len(set(names)) == len(arrays)
        batch = dict(zip(names, arrays, strict=True)) if named else tuple(arrays)
        with self._changed:
            self._counted[0] += 1
            self._counted[1] += self._connection.batchsize(arrays)
            self._counted[2] += sum(array.nbytes for array in arrays)
            self._batch = batch
            self._changed.notify_all()

    def read(self) -> FeedReport:
        with self._changed:
            self._raise_failure()
            now_s, counted, batch = time.monotonic(), list(self._counted), self._batch
        seconds = now_s - self._read_s
        batches, samples, nbytes = (now - before for now, before in zip(counted, self._before, strict=True))
        self._read_s, self._before = now_s, counted
        tensors = [] if batch is None else leaves(batch)
        return FeedReport(
            **rates_of(batches, samples, nbytes, seconds),
            seconds=seconds,
            verdict="" if counted[0] else "nothing has arrived yet: does the sender run?",
            tensors=tuple(f"{leaf.path} {leaf.dtype} {shape_text(leaf.shape)}" for leaf in tensors),
            dropped={"not a valid batch": self._dropped} if self._dropped else {},
        )

    def peek(self, timeout_s: float) -> Any:
        with self._changed:
            seen = self._seen
            arrived = self._changed.wait_for(lambda: self._counted[0] > seen or self._failure, timeout_s)
            self._raise_failure()
            if not arrived:
                raise TimeoutError(
                    f"no batch arrived from {self.name} within {timeout_s:g} s: does the sender run?"
                )
            self._seen = self._counted[0]
            return self._batch

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self._closing = True
        self._thread.join()
