"""The figures of a feed: rates, workers, stages, clients, and what bounds it, out of servers' statuses."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from mpwds.errors import MpwdsError
from mpwds.feed import wire
from mpwds.stats.diagnosis import diagnose_workers, no_answer
from mpwds.stats.report import (
    LoaderStats,
    StageStats,
    WorkerStats,
    worker_stats,
)
from mpwds.viewing.wording import duration

Status = Mapping[str, Any]
"""What a server says of itself: see ``Inspector.status``."""


@dataclass(frozen=True)
class Rates:
    """What was sent between two readings.

    Attributes:
        batches: Batches that were sent, with ``samples`` in them and ``nbytes`` of their arrays.
        batches_per_s: The same per second, as ``samples_per_s`` and ``bytes_per_s``.
    """

    batches: int
    samples: int
    nbytes: int
    batches_per_s: float
    samples_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class WorkerFigures(Rates):
    """A worker of a server, and what it sent.

    Attributes:
        state: ``"running"``, ``"idle"`` between epochs, ``"free"`` if no trainer has it, or ``"lost"`` if its
            server does not answer.
        client: The trainer that it works for; empty if there is none.
        epoch: Its epoch.
        assigned_s: Seconds in which a trainer had it.
        waiting_share: Share of ``assigned_s`` in which it waited for its trainer or for an epoch, 0 to 1.
        queued_bytes: Bytes that it sent and its trainer has not acknowledged.
        window_bytes: How many that may be.
        restarts: How often its process was restarted so far.
        stats: Its times, its stages and the shard that it read last.
    """

    state: str
    client: str
    epoch: int
    assigned_s: float
    waiting_share: float
    queued_bytes: int
    window_bytes: int
    restarts: int
    stats: WorkerStats


@dataclass(frozen=True)
class ClientFigures:
    """A trainer, or a rank of one, at a server.

    Attributes:
        server: URL of the server.
        client: Its name.
        address: Where it is.
        group: The group with which it shares batches; empty if none.
        rank: Its rank, of ``world_size``.
        workers: Workers that it has.
        batches: Batches it was sent.
        batches_per_s: Batches per second, as ``bytes_per_s``.
        connected_s: Seconds since it came.
        silent_s: Seconds since it was heard.
    """

    server: str
    client: str
    address: str
    group: str
    rank: int
    world_size: int
    workers: int
    batches: int
    batches_per_s: float
    bytes_per_s: float
    connected_s: float
    silent_s: float


@dataclass(frozen=True)
class ServerFigures(Rates):
    """A server, and what it sent.

    Attributes:
        url: Where it is reached.
        host: Its machine.
        pid: Its process id.
        version: Its mpwds.
        uptime_s: Seconds since it started.
        draining: Whether it takes no more trainers and ends soon.
        dataset: Its source and stages.
        fingerprint: Of its dataset's definition.
        workers: Workers that it has.
        clients: Trainers that are connected.
        verdict: What bounds it.
        dropped: Messages that it did not accept, by reason.
        lost_s: Seconds for which it has not answered; 0 if it answers. The figures above are then its last.
    """

    url: str
    host: str
    pid: int
    version: str
    uptime_s: float
    draining: bool
    dataset: tuple[str, ...]
    fingerprint: str
    workers: int
    clients: int
    verdict: str
    dropped: Mapping[str, int]
    lost_s: float


@dataclass(frozen=True)
class Figures(Rates):
    """What a feed did between two readings, or since its servers started.

    Attributes:
        seconds: Seconds that the rates and shares are about.
        waiting_share: As a worker's, of all that had an epoch to do, or of all if none had.
        queued_bytes: Bytes that were sent and are not acknowledged yet.
        window_bytes: How many that may be.
        verdict: What bounds the feed.
        servers: Its servers.
        workers: Their workers.
        stages: The pipeline's stages, of all workers together; none if servers have different datasets.
        clients: The trainers.
        skipped: Elements that error handlers have left out so far, by ``"stage: exception"``.
        dropped: Messages that were not accepted so far, by reason.
        tensors: The latest batch's tensors, with types and shapes; of a tensorcom feed only.
    """

    seconds: float
    waiting_share: float
    queued_bytes: int
    window_bytes: int
    verdict: str
    servers: tuple[ServerFigures, ...] = ()
    workers: tuple[WorkerFigures, ...] = ()
    stages: tuple[StageStats, ...] = ()
    clients: tuple[ClientFigures, ...] = ()
    skipped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    tensors: tuple[str, ...] = ()

    @property
    def lost(self) -> dict[str, float]:
        """The servers that do not answer, by URL, and for how many seconds."""
        return {server.url: server.lost_s for server in self.servers if server.lost_s}

    def as_dict(self) -> dict[str, Any]:
        """The same as dicts, lists, numbers and strings, for JSON."""
        return dataclasses.asdict(self)


def figures(previous: Sequence[Status] | None, now: Sequence[Status]) -> Figures:
    """The figures of a feed between two readings.

    Args:
        previous: Statuses of earlier readings, of which a server's last one counts; without one, or where the
            server has restarted since, the figures are about the time since it started.
        now: The servers' statuses, one for each; of those that do not answer, by :func:`lost`.

    Raises:
        MpwdsError: A status lacks something, or has a value of the wrong type.
    """
    before = {status["server"]: status for status in previous or ()}
    away = {status["url"]: status["lost_s"] for status in now if "lost_s" in status}
    parts = [_server(before.get(status.get("server")), status, bool(away)) for status in now]
    seconds = max((part.seconds for part in parts), default=0.0)
    cores = {part.server.host: part.cores for part in parts}
    workers = tuple(worker for part in parts for worker in part.workers)
    stats = _stats(workers, seconds, sum(cores.values()))
    answers = [status for status in now if "lost_s" not in status]
    verdict = "; ".join([no_answer(away)] * bool(away) + [_verdict(stats, workers, answers, bool(away))])
    clients = tuple(client for part in parts for client in part.clients)
    return Figures(
        **{each.name: sum(getattr(part.server, each.name) for part in parts) for each in fields(Rates)},
        seconds=stats.seconds,
        waiting_share=_waiting_share(workers),
        queued_bytes=sum(worker.queued_bytes for worker in workers),
        window_bytes=sum(worker.window_bytes for worker in workers),
        verdict=verdict if answers else no_answer(away),
        servers=tuple(part.server for part in parts),
        workers=workers,
        stages=stats.stages if len({status["fingerprint"] for status in answers}) < 2 else (),
        clients=clients,
        skipped=dict(sum((part.skipped for part in parts), Counter())),
        dropped=dict(sum((Counter(part.server.dropped) for part in parts), Counter())),
    )


def lost(url: str, last: Status | None, seconds: float) -> Status:
    """The status of a server that has not answered for some seconds, after its ``last`` one, if any."""
    unknown = {"host": "", "pid": 0, "version": "", "uptime_s": 0.0, "time_s": 0.0, "dataset": []}
    empty = {"fingerprint": "", "draining": False, "capacity": 0, "cores": 0, "clients": [], "dropped": {}}
    away = {"state": "lost", "unacknowledged_bytes": 0, "window_bytes": 0}
    known = {"url": url, "server": url, **unknown, **empty, "workers": [], **(last or {})}
    return {**known, "workers": [{**worker, **away} for worker in known["workers"]], "lost_s": seconds}


@dataclass(frozen=True)
class _Part:
    server: ServerFigures
    workers: tuple[WorkerFigures, ...]
    clients: tuple[ClientFigures, ...]
    seconds: float
    cores: int
    skipped: Counter[str]


def _server(before: Status | None, now: Status, some_are_lost: bool) -> _Part:
    try:
        return _read(before if "lost_s" not in now else now, now, some_are_lost)
    except (KeyError, TypeError, ValueError, AttributeError, wire.Malformed) as error:
        where = now.get("url", "a server")
        raise MpwdsError(
            f"the status of {where} cannot be read ({type(error).__name__}: {error}): does it run the same "
            "version of mpwds?"
        ) from error


def _read(before: Status | None, now: Status, some_are_lost: bool) -> _Part:
    seconds = float(now["uptime_s"] if before is None else now["time_s"] - before["time_s"])
    earlier = before or {"workers": (), "clients": ()}
    workers_before = {worker["worker"]: worker for worker in earlier["workers"]}
    # A client that has the name of another that has gone began at another time.
    clients_before = {(client["client"], client["began_s"]): client for client in earlier["clients"]}
    workers = tuple(
        _worker(now["url"], workers_before.get(worker["worker"]), worker, seconds)
        for worker in now["workers"]
    )
    clients = tuple(
        _client_figures(
            now["url"], clients_before.get((client["client"], client["began_s"])), client, seconds
        )
        for client in now["clients"]
    )
    stats, lost_s = _stats(workers, seconds, int(now["cores"])), float(now.get("lost_s", 0.0))
    server = ServerFigures(
        **rates_of(stats.batches, stats.samples, stats.nbytes, seconds),
        url=str(now["url"]),
        host=str(now["host"]),
        pid=int(now["pid"]),
        version=str(now["version"]),
        uptime_s=float(now["uptime_s"]),
        draining=bool(now["draining"]),
        dataset=tuple(map(str, now["dataset"])),
        fingerprint=str(now["fingerprint"]),
        workers=int(now["capacity"]),
        clients=len(clients),
        verdict=f"lost for {duration(lost_s)}" if lost_s else _verdict(stats, workers, [now], some_are_lost),
        dropped={str(reason): int(count) for reason, count in now["dropped"].items()},
        lost_s=lost_s,
    )
    skipped = sum((Counter(worker["counters"]["skipped"]) for worker in now["workers"]), Counter[str]())
    return _Part(server, workers, clients, seconds, stats.cores, skipped)


def _worker(server: str, before: Status | None, now: Status, seconds: float) -> WorkerFigures:
    total = wire.unpack_counters(now["counters"])
    counters = total if before is None else total - wire.unpack_counters(before["counters"])
    stats = worker_stats(int(now["worker"]), replace(counters, pid=int(now["pid"]), server=server))
    assigned_s = max(counters.assigned_ns / 1e9, stats.active_s)
    return WorkerFigures(
        **rates_of(stats.batches, stats.samples, stats.nbytes, seconds),
        state=str(now["state"]),
        client=str(now["client"]),
        epoch=int(now["epoch"]),
        assigned_s=assigned_s,
        waiting_share=_per(assigned_s - stats.working_s, assigned_s),
        queued_bytes=int(now["unacknowledged_bytes"]),
        window_bytes=int(now["window_bytes"]),
        restarts=total.restarts,
        stats=stats,
    )


def _client_figures(server: str, before: Status | None, now: Status, seconds: float) -> ClientFigures:
    batches, nbytes, seconds_here = now["batches"], now["nbytes"], min(seconds, now["connected_s"])
    if before is not None:
        batches, nbytes, seconds_here = batches - before["batches"], nbytes - before["nbytes"], seconds
    return ClientFigures(
        server=server,
        client=str(now["client"]),
        address=str(now["address"]),
        group=str(now["group"]),
        rank=int(now["rank"]),
        world_size=int(now["world_size"]),
        workers=int(now["workers"]),
        batches=int(now["batches"]),
        batches_per_s=_per(batches, seconds_here),
        bytes_per_s=_per(nbytes, seconds_here),
        connected_s=float(now["connected_s"]),
        silent_s=float(now["silent_s"]),
    )


def _stats(workers: Sequence[WorkerFigures], seconds: float, cores: int) -> LoaderStats:
    """The workers' part of a loader's statistics, which knows how to add them up and judge them."""
    batches, samples, nbytes = (
        sum(getattr(worker, name) for worker in workers) for name in ("batches", "samples", "nbytes")
    )
    return LoaderStats(
        **rates_of(batches, samples, nbytes, seconds),
        epoch=0,
        first_batch_s=0.0,
        waited_s=seconds,
        received_s=0.0,
        elsewhere_s=0.0,
        stages_s=0.0,
        private_copies=0,
        in_order=True,
        in_process=False,
        cores=cores,
        workers=tuple(worker.stats for worker in workers),
    )


def _waiting_share(workers: Sequence[WorkerFigures]) -> float:
    counted = [worker for worker in workers if worker.stats.active_s > 0] or workers
    waiting_s = sum(worker.waiting_share * worker.assigned_s for worker in counted)
    return _per(waiting_s, sum(worker.assigned_s for worker in counted))


def _verdict(
    stats: LoaderStats, workers: Sequence[WorkerFigures], now: Sequence[Status], some_are_lost: bool
) -> str:
    """What bounds the workers that had something to do. A trainer has the same name at all its servers."""
    attended = any(status["clients"] for status in now)
    workers = [worker for worker in workers if worker.stats.active_s > 0]
    if not workers:
        do = "may wait for it" if some_are_lost else "read nothing"
        return f"the trainers that are connected {do}" if attended else "no trainer is connected"
    if len({status["fingerprint"] for status in now}) > 1:
        return "the servers have different datasets: see what bounds each of them, and its stages by itself"
    trainers = {tuple(sorted(worker.client.split(", "))) for worker in workers}
    stats = replace(stats, workers=tuple(worker.stats for worker in workers))
    verdict = diagnose_workers(stats, _waiting_share(workers), len(trainers) == 1, some_are_lost)
    return verdict if attended else f"{verdict}; now no trainer is connected"


def rates_of(batches: int, samples: int, nbytes: int, seconds: float) -> dict[str, Any]:
    """The fields of :class:`Rates`, for what was sent in some seconds."""
    return {
        "batches": batches,
        "samples": samples,
        "nbytes": nbytes,
        "batches_per_s": _per(batches, seconds),
        "samples_per_s": _per(samples, seconds),
        "bytes_per_s": _per(nbytes, seconds),
    }


def _per(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 and math.isfinite(seconds) else 0.0
