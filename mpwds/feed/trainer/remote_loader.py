"""RemoteLoader: the batches of workers on other machines."""

from __future__ import annotations

import copy
import functools
import os
from typing import Any

from mpwds.feed.trainer.remote_group import Remote, RemoteOptions
from mpwds.feed.trainer.remote_worker import OnServerLoss
from mpwds.feed.wire import LOST_S
from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.engine.local_worker import Output
from mpwds.loader.multi_loader import MultiLoader, make_copy, make_setup
from mpwds.loader.options import Even, FinalOutput
from mpwds.loader.processes.launchers import Launcher
from mpwds.sharedmem.pinning import Pinning
from mpwds.suggestions import suggest_arguments


class RemoteLoader(MultiLoader):
    """Iterates batches that servers make (``mpwds serve``): a ``MultiLoader`` whose workers are elsewhere.

    The trainer gives each worker its part of the epoch and counts what was delivered, so order, exactly-once
    delivery, ``state_dict()``, ``rebatched``, ``even`` and ``stats()`` are those of a ``MultiLoader`` with as
    many workers. Its states can be loaded into the other. Making a loader waits until all servers answer;
    they may be started later.

    If a worker dies, its server starts it again. If the trainer and a server are on one machine, batches stay
    in the workers' shared memory.

    Args:
        urls: ``"tcp://HOST:PORT"`` or ``"ipc://PATH"`` of the servers; braces name several
            (``"tcp://cpu{1..4}:7880"``). Or a list of URLs.
        workers: Workers of all servers together. ``None`` takes what the servers grant: all that are free, or
            for the ranks of a job equal shares.
        timeout: As for ``MultiLoader``. If it is less than ``server_timeout``, it also limits the wait for
            servers when a loader is made or its workers start.
        in_order, output, seed, even, pin_memory, device, progress: As for ``MultiLoader``.
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
        urls: str | list[str],
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
        keys: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        group: str | None = None,
        members: int | None = None,
        max_lag: float | None = None,
        on_server_loss: OnServerLoss = "wait",
        server_timeout: float | None = 600.0,
        heartbeat_timeout: float = LOST_S,
        max_batch_bytes: int = 4 << 30,
        shared_memory: bool = True,
    ) -> None:
        self._remote = self._remote or Remote(  # a copy has it
            RemoteOptions(
                urls=urls,
                workers=workers,
                keys=keys,
                insecure=insecure,
                group=group,
                members=members,
                max_lag=max_lag,
                on_server_loss=on_server_loss,
                server_timeout=server_timeout,
                timeout=timeout,
                heartbeat_timeout=heartbeat_timeout,
                max_batch_bytes=max_batch_bytes,
                shared_memory=shared_memory,
                prefetch=prefetch,
            )
        )
        try:
            super().__init__(
                self._remote.dataset(),
                len(self._remote.slots),
                in_order=in_order,
                prefetch=prefetch,
                timeout=timeout,
                output=output,
                seed=seed,
                even=even,
                pin_memory=pin_memory,
                device=device,
                progress=progress,
            )
        except BaseException:
            self._remote.close()
            raise

    def _make_group(self, output: Output, pinning: Pinning | None) -> WorkerGroup:
        setup = functools.partial(make_setup, None, self._options)
        return self._remote.group(setup, lambda _: Launcher(), output, pinning=pinning)

    def __reduce__(self) -> tuple[Any, ...]:
        own = {**vars(self._options), **vars(self._remote.options)}
        unused = "start_method", "persistent", "on_worker_death", "remote", "fingerprint", "local"
        for name in unused:
            del own[name]
        return make_copy, (type(self), copy.copy(self._remote), (), own)

    def _as_called(self) -> str:
        return f"RemoteLoader({self._remote.options.urls!r}, workers={self.workers})"
