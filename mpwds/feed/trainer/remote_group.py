"""The workers of a loader that are on servers, and those beside them on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import braceexpand

from mpwds.feed import definition, keys, wire
from mpwds.feed.trainer.links import Link
from mpwds.feed.trainer.remote_worker import OnServerLoss, RemoteWorker
from mpwds.feed.trainer.servers import Servers
from mpwds.feed.wire import Place
from mpwds.loader import options
from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.engine.local_worker import Output
from mpwds.loader.engine.worker_handle import WorkerHandle
from mpwds.loader.options import LoaderOptions
from mpwds.loader.processes.launchers import Launcher
from mpwds.loader.processes.setup import WorkerSetup
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.sharedmem.pinning import Pinning
from mpwds.sharedmem.private import PrivateCopies


@dataclass(frozen=True)
class RemoteOptions:
    """How a loader reaches its servers; see ``RemoteLoader``."""

    urls: str | list[str]
    workers: int | None = None
    keys: str | os.PathLike[str] | None = None
    insecure: bool = False
    group: str | None = None
    members: int | None = None
    max_lag: float | None = None
    on_server_loss: OnServerLoss = "wait"
    server_timeout: float | None = 600.0
    timeout: float | None = None
    heartbeat_timeout: float = wire.LOST_S
    max_batch_bytes: int = 4 << 30
    shared_memory: bool = True
    fingerprint: str | None = None
    prefetch: int = 2
    local: int = 0  # workers on this machine

    def __post_init__(self) -> None:
        name = "RemoteLoader"
        if self.workers is not None:
            options.integer(name, "workers", self.workers, at_least=1)
        if self.members is not None:
            options.integer(name, "members", self.members, at_least=1)
        if self.group is None and (self.members is not None or self.max_lag is not None):
            raise ValueError(f"{name}: members= and max_lag= belong to a group=")
        options.choice(name, "on_server_loss", self.on_server_loss, OnServerLoss)
        options.integer(name, "max_batch_bytes", self.max_batch_bytes, at_least=1)
        for each in (self.server_timeout, self.max_lag):
            options.timeout(name, each)
        wire.check_silence(name, "heartbeat_timeout", self.heartbeat_timeout)
        if not self.expanded():
            raise ValueError(f"{name}: there is no URL of a server")
        for url in self.expanded():
            keys.check_url(url, self.keys, self.insecure)

    def expanded(self) -> list[str]:
        """The URLs, after braces are expanded."""
        urls = [self.urls] if isinstance(self.urls, str) else list(self.urls)
        return [name for url in urls for name in braceexpand.braceexpand(url)]

    def connect(self, room: Callable[[int], Any]) -> Servers:
        """Connects to the servers, and waits until all are ready for this trainer."""
        here = Context.current()
        hello = {
            "versions": [wire.VERSION],
            "name": f"{socket.gethostname()}:{os.getpid()}",
            "rank": here.rank,
            "world_size": here.world_size,
            "fingerprint": self.fingerprint,
            "host": wire.machine() if self.shared_memory else "",
            "group": self.group,
            "members": self.members,
            "max_lag": self.max_lag,
        }
        servers = Servers(
            self.expanded(),
            self.workers,
            hello,
            room,
            folder=self.keys,
            max_batch_bytes=self.max_batch_bytes,
            lost_after=self.heartbeat_timeout,
        )
        try:
            limits = [limit for limit in (self.server_timeout, self.timeout) if limit is not None]
            servers.connect(min(limits, default=None))
        except BaseException:
            servers.close()
            raise
        return servers


class Remote:
    """The servers of a loader, which are connected to while its workers run, and once before to ask them.

    Copies and pickles know what the servers answered, and connect with their first epoch.
    """

    def __init__(
        self,
        options: RemoteOptions,
        definition: dict[str, Any] | None = None,
        slots: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.options = options
        self._rooms = PrivateCopies(kept=16)
        self.servers: Servers | None = None
        self.definition, self.slots = definition or {}, list(slots)
        if definition is None:
            links = self.connected().links
            self.definition = links[0].definition
            for number, link in enumerate(links):
                self.slots += [(number, slot) for slot in range(link.workers or 0)]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options, self.definition, self.slots)

    def connected(self) -> Servers:
        if self.servers is None:
            known = self.definition["fingerprint"] if self.definition else self.options.fingerprint
            chosen = replace(self.options, fingerprint=known, workers=len(self.slots) or self.options.workers)
            self.servers = chosen.connect(lambda nbytes: self._rooms.room(nbytes))
        return self.servers

    def pin(self, pinning: Pinning | None) -> None:
        """Receives batches in pinned memory from now on."""
        self._rooms = PrivateCopies(pinning, kept=16)

    def slot(self, number: int) -> tuple[Link, int]:
        """The server of the loader's remote worker ``number``, and its slot there."""
        link, slot = self.slots[number]
        return self.connected().links[link], slot

    def group(self, *arguments: Any, **keywords: Any) -> RemoteGroup:
        """The workers of a loader that has workers of its own, too."""
        return RemoteGroup(self, self.options.local, self.options.prefetch, *arguments, **keywords)

    def dataset(self) -> DataPipeline:
        """The servers' dataset, which tells its length and description but cannot be iterated here."""
        return definition.remote_dataset(self.definition, self._count)

    def close(self) -> None:
        servers, self.servers = self.servers, None
        if servers is not None:
            servers.close()

    def _count(self, context: Context) -> int | str:
        servers = self.connected()
        place = Place(context.rank, context.world_size, context.worker, context.workers, context.seed)
        link = next((link for link in servers.links if link.is_up), servers.links[0])
        question = {"epoch": context.epoch, "place": list(place), "exact": True}
        answer: int | str = servers.ask(link, wire.COUNT, **question)["count"]
        return answer


def workers_of_servers(dataset: Any, options: LoaderOptions) -> Remote:
    """The servers whose workers make parts of a dataset's epochs beside a loader's own workers."""
    assert options.remote is not None
    fingerprint = definition.fingerprint(dataset)
    chosen = RemoteOptions(
        options.remote, keys=options.keys, fingerprint=fingerprint, timeout=options.timeout
    )
    return Remote(replace(chosen, prefetch=options.prefetch, local=options.workers))


class RemoteGroup(WorkerGroup):
    """The workers of a loader: ``local`` ones on this machine first, then those on servers."""

    def __init__(
        self,
        remote: Remote,
        local: int,
        prefetch: int,
        make_setup: Callable[[], WorkerSetup],
        launcher: Callable[[WorkerSetup], Launcher],
        output: Output,
        *,
        warn_of_copies: bool = True,
        pinning: Pinning | None = None,
    ) -> None:
        super().__init__(make_setup, launcher, output, warn_of_copies=warn_of_copies, pinning=pinning)
        self._remote = remote
        self._local = local
        self._prefetch = prefetch
        remote.pin(pinning)

    @property
    def pids(self) -> list[int]:
        return super().pids[: self._local]

    def close(self) -> None:
        super().close()
        if os.getpid() == self._owner:
            self._remote.close()

    def _make_worker(self, index: int, launcher: Launcher) -> WorkerHandle:
        if index < self._local:
            return super()._make_worker(index, launcher)
        setup = self._make_setup()
        place = Place(setup.rank, setup.world_size, index, setup.workers, setup.seed)
        link, slot = self._remote.slot(index - self._local)
        chosen = self._remote.options
        return RemoteWorker(
            index,
            place,
            self._remote.connected(),
            link,
            slot,
            output=self._output,
            prefetch=self._prefetch,
            on_server_loss=chosen.on_server_loss,
            server_timeout=chosen.server_timeout,
            make_receiver=self._make_receiver,
        )
