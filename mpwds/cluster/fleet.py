"""A fleet: servers on the machines of a Ray cluster, which come and go; and the trainers' end of it."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import re
import secrets
import tempfile
import threading
import time
import weakref
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from mpwds.closing import Closes
from mpwds.cluster.actors import SERVER_KEYS, Directory, KeyFolder, ServerActor, TrainerFigures
from mpwds.cluster.engine import connect, pack
from mpwds.cluster.scaling import Scaling
from mpwds.errors import MpwdsError
from mpwds.feed import keys
from mpwds.feed.client.addresses import ServerDirectory
from mpwds.imports import load_object
from mpwds.loader.engine import options as checks
from mpwds.loader.messages.protocol import revive_error

if TYPE_CHECKING:
    from mpwds.loader.multi_loader import MultiLoader

_HEAD = {"node:__internal_head__": 0.001}  # of the machine that outlives all others
_SCALE_EVERY_S = 5.0
_STOPPING_S = 10.0
_ANSWER_S = 10.0
logger = logging.getLogger("mpwds.cluster")


class FleetDirectory(ServerDirectory):
    """A function that returns the URLs of a fleet's servers, for ``RemoteLoader(urls=...)``.

    It knows the fleet by ``namespace`` and ``name``, so it can be pickled, and the fleet's actors may be
    restarted. Calling it raises ``ConnectionError`` if the fleet cannot be asked.
    """

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace = namespace
        self.name = name
        self._loaders: list[tuple[str, weakref.ref[MultiLoader]]] = []  # replaced, as threads read it

    @property
    def url(self) -> str:
        """The fleet's address, for ``RemoteLoader`` in programs of the same cluster."""
        return f"ray://{self.namespace}/{self.name}"

    def __call__(self) -> list[str]:
        urls: list[str] | None = self._ask("addresses", self._figures())
        if urls is None:
            raise ConnectionError(f"{self.url} has just been restarted, and waits for its servers")
        return urls

    @property
    def keys(self) -> str:
        """A folder with the trainer's keys, which vanishes with this object."""
        return self._folder.path

    @cached_property
    def _folder(self) -> KeyFolder:
        return KeyFolder(self._ask("client_keys"))

    def watch(self, loader: MultiLoader) -> None:
        """Tells the fleet, whenever addresses are asked for, how long the loader waits for batches."""
        alive = [known for known in self._loaders if known[1]() is not None]
        self._loaders = [*alive, (secrets.token_hex(8), weakref.ref(loader))]

    def _figures(self) -> dict[str, TrainerFigures]:
        loaders = [(name, known()) for name, known in self._loaders]
        return {name: _figures_of(loader) for name, loader in loaders if loader is not None}

    def _ask(self, method: str, *arguments: Any) -> Any:
        ray = connect("auto")
        try:
            actor = ray.get_actor(self.name, self.namespace)
            return ray.get(getattr(actor, method).remote(*arguments), timeout=_ANSWER_S)
        except (ValueError, ray.exceptions.RayError) as error:
            raise ConnectionError(f"there is no fleet at {self.url}, or it is silent: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return FleetDirectory, (self.namespace, self.name)


def _figures_of(loader: MultiLoader) -> TrainerFigures:
    stats = loader.stats("start")
    workers = [worker for worker in stats.workers if worker.server]  # a MultiLoader has others, too
    waited_s = sum(worker.waiting_s for worker in workers)
    active_s = sum(worker.active_s for worker in workers)
    servers = tuple({worker.server for worker in workers})
    return TrainerFigures(stats.waited_s, stats.seconds, waited_s, active_s, servers)


def servers_in_ray(url: str) -> FleetDirectory:
    """The directory of the fleet at ``ray://NAMESPACE/NAME``. Raises ``ValueError`` for other URLs."""
    parts = urlsplit(url)
    name = parts.path.removeprefix("/")
    if not parts.netloc or not name or "/" in name:
        raise ValueError(f"a fleet's address is ray://NAMESPACE/NAME, got {url!r}")
    return FleetDirectory(parts.netloc, name)


class ServerFleet(FleetDirectory, Closes):
    """Runs servers on the machines of a Ray cluster, for ``RemoteLoader(fleet)``.

    Servers are actors, spread over the machines. Ray restarts each whose process or machine is lost. A
    directory on the head machine knows where they are, and trainers follow it. The fleet can be pickled, for
    Ray Train's workers among others. Other programs of the cluster reach it as
    ``RemoteLoader("ray://NAMESPACE/NAME")``.

    The fleet makes keys, which Ray hands to servers and trainers. Everybody who can use the cluster gets them
    there, and nobody else can read batches.

    Args:
        dataset: As for ``MultiLoader``, or ``"FILE.py:NAME"``, or ``"package.module:NAME"``. It is sent by
            value, with the code of modules that are not installed.
        servers: Their number, or ``"auto"``: from one to as many as the cluster has room for, by the time
            that trainers wait for batches.
        workers_per_server: Worker processes, and processors that Ray reserves, of each server.
        name: The fleet's name; by default a new one.
        namespace: Ray's namespace for the name.
        start_timeout: Seconds in which the first server must serve.
        options: Further options of :class:`mpwds.Server`.

    Attributes:
        url: ``ray://NAMESPACE/NAME``.

    Raises:
        ImportError: Ray is not installed.
        ValueError: An argument is invalid, or the name is taken.
        MpwdsError: No machine had room for a server in time.
        TypeError: The dataset cannot be sent to other machines.

    An error with which the first server starts is raised here, too.

    Example:
        >>> fleet = mpwds.cluster.ServerFleet("pipeline.py:dataset", servers=4)  # doctest: +SKIP
        >>> loader = mpwds.RemoteLoader(fleet)  # doctest: +SKIP
    """

    def __init__(
        self,
        dataset: Any,
        *,
        servers: int | Literal["auto"] = 1,
        workers_per_server: int = 8,
        name: str | None = None,
        namespace: str = "mpwds",
        start_timeout: float = 300.0,
        **options: Any,
    ) -> None:
        super().__init__(namespace, name or f"fleet-{secrets.token_hex(4)}")
        if not re.fullmatch(r"ray://[\w.-]+/[\w.-]+", self.url):
            raise ValueError(
                f"ServerFleet: name and namespace make the fleet's address, {self.url!r}: they may have "
                "letters, digits, '.', '_' and '-'"
            )
        workers = checks.integer("ServerFleet", "workers_per_server", workers_per_server, at_least=1)
        if isinstance(servers, str) and servers != "auto":
            raise ValueError(f"ServerFleet: servers must be a number or 'auto', got {servers!r}")
        count = 1 if servers == "auto" else checks.integer("ServerFleet", "servers", servers, at_least=1)
        if given := options.keys() & {"bind", "keys", "insecure"}:
            raise ValueError(f"ServerFleet: {min(given)}= is not an option: the fleet makes its own")
        if isinstance(dataset, str):
            dataset = load_object(dataset)
        self._ray = connect()
        own_keys = _new_keys()
        for_servers = {each: own_keys[each] for each in SERVER_KEYS}
        self._workers = workers
        setup = {"dataset": dataset, "workers": workers, "keys": for_servers, "options": options}
        self._packed = pack(setup)
        self._actors: dict[int, Any] = {}
        self._starts: dict[int, Any] = {}  # of the servers that have yet to tell whether they could start
        self._numbers = itertools.count()
        self._closing = threading.Event()
        scaling = Scaling() if servers == "auto" else None
        self._watching = threading.Thread(target=self._watch, args=[scaling], name="mpwds fleet", daemon=True)
        restarted = {"max_restarts": -1, "max_task_retries": -1, "namespace": namespace}
        directory = self._ray.remote(num_cpus=0, resources=_HEAD, **restarted)(Directory)
        self._directory = directory.options(name=self.name).remote(own_keys)
        self._server = self._ray.remote(num_cpus=workers, scheduling_strategy="SPREAD", **restarted)(
            ServerActor
        )
        try:
            self._ray.get(self._directory.servers.remote())
            self._tell_room(count)
            self._start(count)
            self._wait(start_timeout)
        except BaseException:
            self.close()
            raise
        self._watching.start()
        atexit.register(self.close)

    def servers(self) -> dict[int, str]:
        """The URLs of the servers that serve now, by their numbers."""
        return self._ask("servers") or {}

    def close(self) -> None:
        """Ends the servers and the directory. The end of the program does so, too, and ``ray.shutdown``."""
        atexit.unregister(self.close)
        self._closing.set()
        if self._watching.is_alive():
            self._watching.join()
        if not self._ray.is_initialized():
            return
        serving: dict[int, str] = {}
        with contextlib.suppress(ConnectionError):  # the directory is gone: servers are killed
            serving = self.servers()
        if ends := [actor.stop.remote() for number, actor in self._actors.items() if number in serving]:
            self._ray.wait(ends, num_returns=len(ends), timeout=_STOPPING_S)
        for actor in (*self._actors.values(), self._directory):
            self._ray.kill(actor)
        self._actors.clear()

    def _start(self, count: int) -> None:
        for number in itertools.islice(self._numbers, count):  # none twice: retired ones stay so
            actor = self._server.options(name=f"{self.name}-server-{number}")
            # The directory's name, and not its handle: handles in arguments endanger restarts.
            self._actors[number] = actor.remote(self._packed, number, self.name, self.namespace)
            self._starts[number] = self._actors[number].failure.remote()

    def _tell_room(self, count: int) -> None:
        """Warns if the cluster's machines, even when they are free, have no room for so many servers."""
        nodes = [node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"]]
        room = sum(int(cpus // self._workers) for cpus in nodes)
        if room < count:
            logger.warning(
                "%s: the cluster has room for %d of %d servers with %d processors each "
                "(workers_per_server), and its largest machine has %d: others start when there is room",
                *(self.url, room, count, self._workers, max(nodes, default=0)),
            )

    def _wait(self, timeout_s: float) -> None:
        """Returns when the first server serves."""
        ready, _ = self._ray.wait(list(self._starts.values()), timeout=timeout_s)
        if not ready:
            raise MpwdsError(
                f"no server of the fleet has started in {timeout_s:g} s: does a machine of the cluster have "
                f"{self._workers} free processors (workers_per_server)?"
            )
        if failure := self._ray.get(ready[0]):
            raise revive_error(failure, "a server of the fleet")
        while not self.servers():
            time.sleep(0.05)

    def _watch(self, scaling: Scaling | None) -> None:
        """Gives up servers that could not start, adds others and removes some, until the fleet is closed."""
        while not self._closing.wait(_SCALE_EVERY_S) and self._ray.is_initialized():
            # The directory is being restarted.
            with contextlib.suppress(ConnectionError, self._ray.exceptions.RayError):
                self._give_up_failed()
                if scaling is not None:
                    self._scale(scaling)

    def _give_up_failed(self) -> None:
        """Ends the servers that could not start."""
        for number, start in list(self._starts.items()):
            if not self._ray.wait([start], timeout=0)[0]:
                continue
            if failure := self._ray.get(start):
                logger.warning(
                    "a server of %s could not start on %s, and is given up: %s",
                    *(self.url, failure["host"], failure["summary"]),
                )
                self._retire(number, is_serving=False)
            self._starts.pop(number, None)  # at last: it is tried again if the directory was away

    def _scale(self, scaling: Scaling) -> None:
        serving, idle = self.servers(), self._ask("idle")
        wanted = scaling.decide(len(serving), self._ask("figures"), len(idle))
        waiting = self._actors.keys() - serving.keys()  # for room in the cluster
        if wanted > len(serving) and not waiting:
            self._start(wanted - len(serving))
        elif wanted < len(serving) or (waiting and scaling.is_enough):
            self._retire(max(waiting or idle or serving), is_serving=not waiting)

    def _retire(self, number: int, is_serving: bool) -> None:
        """Ends a server. It tells its trainers, which go to others."""
        self._ask("retire", number)
        self._starts.pop(number, None)
        actor = self._actors.pop(number)
        if is_serving:
            with contextlib.suppress(self._ray.exceptions.RayError):  # it is lost already
                self._ray.get(actor.stop.remote(), timeout=_STOPPING_S)
        self._ray.kill(actor)


def _new_keys() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        keys.generate(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}
