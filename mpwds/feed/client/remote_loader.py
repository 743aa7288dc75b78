"""RemoteLoader: the batches of workers on other machines, and the source of such workers for any loader."""

from __future__ import annotations

import copy
import functools
import os
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mpwds.errors import MpwdsError
from mpwds.feed import wire
from mpwds.feed.client.addresses import ServerDirectory, Urls, directory_of
from mpwds.feed.client.connection import OnServerLoss, RemoteOptions, ServerConnection
from mpwds.feed.client.connections import ServerConnections
from mpwds.feed.client.remote_worker import RemoteWorker
from mpwds.feed.definition import RemoteSource
from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.engine.local_worker import Output
from mpwds.loader.engine.options import Even, FinalOutput, LoaderOptions, options_of
from mpwds.loader.engine.worker_handle import WorkerHandle
from mpwds.loader.launching.launchers import Launcher
from mpwds.loader.multi_loader import MultiLoader, make_copy, make_setup
from mpwds.loader.resume.description import fingerprint
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.sharedmem.lease import CopiedBatches
from mpwds.suggestions import suggest_arguments
from mpwds.warn import warn


class RemoteLoader(MultiLoader):
    """Iterates batches that servers make (``mpwds serve``): a ``MultiLoader`` whose workers are elsewhere.

    The trainer gives each worker its part of the epoch and counts what was delivered, so order, exactly-once
    delivery, ``state_dict()``, ``rebatched``, ``even`` and ``stats()`` are those of a ``MultiLoader`` with as
    many workers. Its states can be loaded into the other. Making a loader waits until servers answer, which
    may be started later.

    Of the workers, ``loader.workers`` is the number when the loader was made, and ``loader.stats().workers``
    lists those of the present epoch, each with its ``server``; ``worker_pids`` are of this machine alone.

    If a worker dies, its server starts it again. If the trainer and a server are on one machine, batches stay
    in the workers' shared memory.

    Args:
        urls: ``"tcp://HOST:PORT"`` or ``"ipc://PATH"`` of the servers; braces name several
            (``"tcp://cpu{1..4}:7880"``). Or a list of URLs. The addresses of servers that come and go are
            looked up every few seconds: ``"dns+tcp://HOST:PORT"`` is all records of a name, ``"file:PATH"``
            a file with a URL in each line, or a folder of such files, and a function returns URLs.
            ``mpwds.cluster.ServerFleet`` is one, ``"ray://NAMESPACE/NAME"`` that of another program.
        workers: Workers of all servers together. ``None`` takes what the servers grant: all that are free, or
            for the ranks of a job equal shares.
        timeout: As for ``MultiLoader``. If it is less than ``server_timeout``, it also limits the wait for
            servers when a loader is made or its workers start.
        in_order, output, seed, even, pin_memory, device, progress: As for ``MultiLoader``.
        streams: As for ``MultiLoader``. A group has none.
        prefetch: Batches that each worker may have on the way to this trainer; a megabyte at least, and
            no more than its server makes ahead.
        keys: Folder with ``client.key_secret`` and ``server.key``, made by ``mpwds keygen``. Required unless
            all servers are on this machine.
        insecure: Connect to other machines without keys: others in the network can read and forge batches.
        group: Trainers of one group share their workers: each gets every batch, which is made once. The
            slowest sets the pace. All members begin an epoch together.
        members: Trainers that must have joined the group before an epoch begins; those that have by default.
        max_lag: Seconds that a member may keep the others of its group waiting before it falls out, with an
            error. ``None`` is for ever.
        on_server_loss: If a server dies or cannot be reached, ``"wait"`` until it is back, ``"move"`` its
            part to the other servers, or ``"raise"`` ServerLost. No batch is lost or delivered twice.
            ``None`` is ``"move"`` if addresses are looked up, and otherwise ``"wait"``.
        min_servers: Servers that must have answered before the loader begins. ``None`` is one if addresses
            are looked up, and otherwise all. The others that are listed then have two seconds to answer. With
            ``streams``, those that come later get work, too.
        max_servers: Servers that this rank connects to. ``None`` is 8, or all URLs of a list for a trainer
            alone. The ranks of a job share the servers equally.
        server_timeout: Seconds to wait for a server, at the start and after a loss. ``None`` is for ever.
        heartbeat_timeout: Seconds of silence after which a server is lost.
        max_batch_bytes: Largest batch that is accepted; more memory is never allocated for one.
        shared_memory: Map the workers' shared memory if a server is on this machine and agrees.

    Raises:
        ValueError: A URL or an argument is invalid.
        SecurityError: A server is on another machine, and neither ``keys`` nor ``insecure`` is given.
        ServerLost: A server did not answer within ``server_timeout`` seconds.
        MpwdsError: A server refuses this trainer, or servers have different datasets.

    Example:
        >>> import threading
        >>> import mpwds
        >>> dataset = mpwds.DataPipeline(range(6)).batched(2)
        >>> with mpwds.Server(dataset, "tcp://127.0.0.1:0", workers=2) as server:
        ...     thread = threading.Thread(target=server.serve)
        ...     thread.start()
        ...     with RemoteLoader(server.url, output="numpy") as loader:
        ...         batches = [batch.tolist() for batch in loader]
        ...     server.stop()
        ...     thread.join()
        >>> batches
        [[0, 2], [1, 3], [4], [5]]
    """

    _remote: Remote

    @suggest_arguments
    def __init__(
        self,
        urls: Urls,
        workers: int | None = None,
        *,
        in_order: bool = True,
        prefetch: int = 2,
        timeout: float | None = None,
        output: FinalOutput = "torch",
        seed: int | None = None,
        even: Even | None = None,
        pin_memory: bool = False,
        device: Any = None,
        progress: bool = False,
        streams: int | None = None,
        keys: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        group: str | None = None,
        members: int | None = None,
        max_lag: float | None = None,
        on_server_loss: OnServerLoss | None = None,
        min_servers: int | None = None,
        max_servers: int | None = None,
        server_timeout: float | None = 600.0,
        heartbeat_timeout: float = wire.LOST_S,
        max_batch_bytes: int = 4 << 30,
        shared_memory: bool = True,
    ) -> None:
        if streams is not None and group is not None:
            raise ValueError("RemoteLoader: streams= does not work with group=: use one of them")
        urls = directory_of(urls)
        self._remote = self._remote or Remote(options_of(RemoteOptions, locals()))  # a copy has it
        try:
            granted = max(1, len(self._remote.slots))  # all may be lost again
            if streams is not None and workers is None:
                granted = min(granted, max(1, streams // Context.current().world_size))
            super().__init__(
                self._remote.dataset(),
                granted,
                in_order=in_order,
                prefetch=prefetch,
                timeout=timeout,
                output=output,
                seed=seed,
                even=even,
                pin_memory=pin_memory,
                device=device,
                progress=progress,
                streams=streams,
            )
        except BaseException:
            self._remote.close()
            raise

    def _make_group(self, output: Output, copies: CopiedBatches) -> WorkerGroup:
        setup = functools.partial(make_setup, None, self._options)
        warns = self.even is None
        return self._remote.group(setup, lambda _: Launcher(), output, copies, warn_of_copies=warns)

    def __reduce__(self) -> tuple[Any, ...]:
        own = {**vars(self._options), **vars(self._remote.options)}
        unused = "start_method", "persistent", "on_worker_death", "remote", "fingerprint", "local", "given"
        for name in unused:
            del own[name]
        return make_copy, (type(self), copy.copy(self._remote), (), own)

    def _as_called(self) -> str:
        return f"RemoteLoader({self._remote.options.urls!r}, workers={self.workers})"


class Remote:
    """The servers of a loader, which are connected to while its workers run, and once before to ask them.

    Copies and pickles know what the servers answered, and connect with their first epoch.
    """

    def __init__(
        self,
        options: RemoteOptions,
        definition: dict[str, Any] | None = None,
        slots: Sequence[tuple[str, int]] = (),
    ) -> None:
        self.options = options
        self.room = CopiedBatches(kept=16)  # for batches that arrive
        self.servers: ServerConnections | None = None
        self.definition, self.slots = definition or {}, list(slots)
        self._counts: tuple[dict[str, Any], list[int]] = {}, []  # the last answer, and what it is about
        if definition is None:
            servers = self.connected()
            self.definition = servers.first().definition
            self.slots = [(connection.url, slot) for connection, slot in servers.slots()]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options, self.definition, self.slots)

    def connected(self) -> ServerConnections:
        if self.servers is None:
            known = self.definition["fingerprint"] if self.definition else self.options.fingerprint
            given: Counter[str] = Counter()
            if self._are_fixed:  # as many as the first time
                given.update(url for url, _ in self.slots)
            chosen = replace(self.options, fingerprint=known, given=given)
            servers = ServerConnections(chosen, lambda nbytes: self.room.allocate(nbytes))
            servers.connect()
            self.servers = servers
        return self.servers

    @property
    def is_alike_on_ranks(self) -> bool:
        """True if each rank of a job surely has as many workers."""
        return self.options.workers is not None and self._are_fixed

    @functools.cached_property
    def _are_fixed(self) -> bool:
        """True unless servers come and go."""
        return not self.options.addresses().is_followed

    def watch(self, loader: MultiLoader) -> None:
        """Tells a directory of servers which loader uses them."""
        if isinstance(self.options.urls, ServerDirectory):
            self.options.urls.watch(loader)

    def slot(self, number: int) -> tuple[ServerConnection, int]:
        """The server of the loader's remote worker ``number``, and its slot there.

        A fixed server keeps its workers while it is lost. If servers that come and go have fewer now, one of
        them has it beside its own.
        """
        servers = self.connected()
        found = servers.slots()
        if self._are_fixed:
            there = {connection.url: connection for connection in servers.connections}
            found = [(there[url], slot) for url, slot in self.slots if url in there]
        if number < len(found):
            return found[number]
        connection = found[number % len(found)][0] if found else servers.first()
        return connection, (connection.workers or 0) + self.options.local + number

    def group(self, *arguments: Any, **keywords: Any) -> RemoteGroup:
        """The workers of a loader that has workers of its own, too."""
        return RemoteGroup(self, *arguments, **keywords)

    def dataset(self) -> DataPipeline:
        """The servers' dataset, which tells its length and description but cannot be iterated here."""
        dataset = DataPipeline(RemoteSource(self.definition, self._count))
        dataset.given_seed, dataset.given_length = self.definition["seed"], self.definition["length"]
        return dataset

    def close(self) -> None:
        servers, self.servers = self.servers, None
        if servers is not None:
            servers.close()

    def _count(self, context: Context) -> int | str:
        """Counts a worker's elements. One question to a server brings the counts of the whole job."""
        job = {name: getattr(context, name) for name in ("epoch", "seed", "world_size", "workers")}
        if job != self._counts[0]:
            server, answer = self.connected().ask(wire.COUNT, exact=True, **job)
            counts = answer["counts"]
            if isinstance(counts, str):
                return counts
            if len(counts) != (places := context.world_size * context.workers):
                raise MpwdsError(f"the server {server.url} counted for {len(counts)} workers, not {places}")
            self._counts = job, counts
        return self._counts[1][context.rank * context.workers + context.worker]


def workers_of_servers(dataset: Any, options: LoaderOptions) -> Remote:
    """The servers whose workers make parts of a dataset's epochs beside a loader's own workers."""
    assert options.remote is not None
    chosen = RemoteOptions(
        directory_of(options.remote),
        keys=options.keys,
        fingerprint=fingerprint(dataset),
        timeout=options.timeout,
        prefetch=options.prefetch,
        local=options.workers,
    )
    return Remote(chosen)


class RemoteGroup(WorkerGroup):
    """The workers of a loader: its own on this machine first, then those on servers."""

    def __init__(self, remote: Remote, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._remote = remote
        self._changes = 0
        remote.room = CopiedBatches(self._copies.pinning, kept=16)

    @property
    def pids(self) -> list[int]:
        return super().pids[: self._remote.options.local]

    def begin_epoch(self) -> None:
        super().begin_epoch()
        self._free_gone()

    def _free_gone(self) -> None:
        used = {worker.place[0] for worker in self._workers if isinstance(worker, RemoteWorker)}
        self._remote.connected().free_gone(used)

    def close(self) -> None:
        super().close()
        if os.getpid() == self._owner:
            self._remote.close()
            self._changes = 0

    @property
    def has_changed(self) -> bool:
        return self._remote.connected().changes != self._changes

    def follow(self) -> list[WorkerHandle]:
        """The workers, also of servers that have come; some of these take the places of lost ones."""
        servers, setup = self._remote.connected(), self._make_setup()
        self._changes = servers.changes
        remote = [worker for worker in self._workers if isinstance(worker, RemoteWorker)]
        taken = {(id(connection), slot) for connection, slot in (worker.place for worker in remote)}
        lost = dict.fromkeys(worker.place[0] for worker in remote if not worker.is_available)
        for connection in lost if any(worker.is_available for worker in self._workers) else ():
            if not connection.warned:
                connection.warned = True
                warn(
                    f"{connection.loss}: other workers take over its streams, so no batch is lost or "
                    "delivered twice"
                )
        free = deque(place for place in servers.slots() if (id(place[0]), place[1]) not in taken)
        for worker in remote:
            if free and not worker.is_available:
                worker.move_to(*free.popleft())
        assert setup.streams is not None
        while free and len(self._workers) < setup.streams // setup.world_size:
            self._workers.append(self._make_remote(len(self._workers), *free.popleft()))
        self._free_gone()
        return self.workers

    def _make_worker(self, index: int, launcher: Launcher) -> WorkerHandle:
        local = self._remote.options.local
        if index < local:
            return super()._make_worker(index, launcher)
        return self._make_remote(index, *self._remote.slot(index - local))

    def _make_remote(self, index: int, connection: ServerConnection, slot: int) -> WorkerHandle:
        setup = self._make_setup()
        workers = max(setup.workers, index + 1)  # more have come, which only carry streams
        place = wire.WorkerAssignment(setup.rank, setup.world_size, index, workers, setup.seed)
        servers, output, receivers = self._remote.connected(), self._output, self._make_receiver
        return RemoteWorker(index, place, setup.streams, servers, connection, slot, output, receivers)
