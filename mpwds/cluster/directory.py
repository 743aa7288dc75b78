"""A trainer's end of a fleet: the addresses of its servers at the moment, and the keys."""

from __future__ import annotations

import secrets
import weakref
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mpwds.cluster.actors import KeyFolder, TrainerFigures
from mpwds.cluster.engine import connect
from mpwds.feed.client.addresses import ServerDirectory

if TYPE_CHECKING:
    from mpwds.loader.multi_loader import MultiLoader

_ANSWER_S = 10.0


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
            raise ConnectionError(
                f"there is no fleet at {self.url}, or it does not answer: {error}"
            ) from error

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
