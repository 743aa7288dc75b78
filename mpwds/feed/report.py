"""Reports on feeds: rates, workers, stages, clients, and what bounds the feed, made of servers' statuses.

A server's status (``Server.status``) holds counters since it started. :func:`feed_report` makes a report of
two readings of them, and the functions after it word the report, for the terminal and the page alike.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from mpwds.errors import MpwdsError
from mpwds.feed import wire
from mpwds.stats.diagnosis import diagnose_workers, no_answer
from mpwds.stats.measures import LoaderMeasures, Rates, StageStats, WorkerStats, rates_of, worker_stats
from mpwds.stats.report import NEGLIGIBLE
from mpwds.stats.snapshot import plain_values
from mpwds.viewing.tensors import TensorFigures
from mpwds.viewing.wording import Table, counted, duration, number, per, rate, shape_text, size, three_digits

_MOSTLY = 0.5  # of the time

Status = Mapping[str, Any]
"""A server's status: see ``StatusClient.status``."""


@dataclass(frozen=True)
class WorkerReport(Rates):
    """A worker of a server, and what it sent."""

    state: str  # running, idle between epochs, free without a client, or lost if its server does not answer
    client: str  # that it works for; empty if there is none
    epoch: int
    assigned_s: float  # in which a client had it
    waiting_share: float  # of assigned_s, in which it waited for its client or for an epoch, 0 to 1
    queued_bytes: int  # that it sent and its client has not acknowledged, of window_bytes
    window_bytes: int
    restarts: int  # of its process so far
    stats: WorkerStats


@dataclass(frozen=True)
class ClientReport:
    """A training process at a server: ``batches`` since it came, and rates between the readings."""

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
class ServerReport(Rates):
    """A server, and what it sent. If it does not answer, the values are its last."""

    url: str
    host: str
    pid: int
    version: str
    uptime_s: float
    draining: bool  # it takes no more clients and ends soon
    dataset: tuple[str, ...]  # its source and stages
    fingerprint: str  # of the dataset
    workers: int  # that it has
    clients: int  # that are connected
    verdict: str
    dropped: Mapping[str, int]  # messages that it did not accept, by reason
    lost_s: float  # for which it has not answered; 0 if it answers


@dataclass(frozen=True)
class FeedReport(Rates):
    """The work of a feed between two readings, or since its servers started."""

    seconds: float  # that the rates and shares are about
    verdict: str
    waiting_share: float = 0.0  # as a worker's, of all that had an epoch to do, or of all if none had
    queued_bytes: int = 0
    window_bytes: int = 0
    servers: tuple[ServerReport, ...] = ()
    workers: tuple[WorkerReport, ...] = ()
    stages: tuple[StageStats, ...] = ()  # of all workers together; none if servers have different datasets
    clients: tuple[ClientReport, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)  # elements left out, by "stage: exception"
    dropped: Mapping[str, int] = field(default_factory=dict)  # messages that were not accepted, by reason
    tensors: tuple[str, ...] = ()  # the latest batch's, with types and shapes; of a tensorcom feed only

    @property
    def lost(self) -> dict[str, float]:
        """The servers that do not answer, by URL, and for how many seconds."""
        return {server.url: server.lost_s for server in self.servers if server.lost_s}

    def as_dict(self) -> dict[str, Any]:
        """The same as dicts, lists, numbers and strings, for JSON."""
        return {**dataclasses.asdict(self), "lost": self.lost}


def feed_report(previous: Sequence[Status] | None, now: Sequence[Status]) -> FeedReport:
    """The report on a feed between two readings.

    Of ``previous`` statuses, a server's last one counts; without one, or where the server has restarted
    since, the report is about the time since it started. ``now`` are the statuses of all servers; of those
    that do not answer, by :func:`lost`. ``MpwdsError`` if a status lacks a value, or has one of a wrong type.
    """
    before = {status["server"]: status for status in previous or ()}
    away = {status["url"]: status["lost_s"] for status in now if "lost_s" in status}
    parts = [_read(before.get(status.get("server")), status, bool(away)) for status in now]
    servers = tuple(part.server for part in parts)
    workers = tuple(worker for part in parts for worker in part.workers)
    cores = {part.server.host: part.cores for part in parts}
    stats = _stats(workers, max((part.seconds for part in parts), default=0.0), sum(cores.values()))
    answers = [status for status in now if "lost_s" not in status]
    verdict = "; ".join([no_answer(away)] * bool(away) + [_verdict(stats, workers, answers, bool(away))])
    return FeedReport(
        **{each.name: sum(vars(server)[each.name] for server in servers) for each in fields(Rates)},
        seconds=stats.seconds,
        waiting_share=_waiting_share(workers),
        queued_bytes=sum(worker.queued_bytes for worker in workers),
        window_bytes=sum(worker.window_bytes for worker in workers),
        verdict=verdict if answers else no_answer(away),
        servers=servers,
        workers=workers,
        stages=stats.stages if len({status["fingerprint"] for status in answers}) < 2 else (),
        clients=tuple(client for part in parts for client in part.clients),
        skipped=_summed(part.skipped for part in parts),
        dropped=_summed(server.dropped for server in servers),
    )


def lost(url: str, last: Status | None, seconds: float) -> Status:
    """The status of a server that has not answered for some seconds, after its ``last`` one, if any."""
    unknown = {"host": "", "pid": 0, "version": "", "uptime_s": 0.0, "time_s": 0.0, "dataset": []}
    empty = {"fingerprint": "", "draining": False, "capacity": 0, "cores": 0, "clients": [], "dropped": {}}
    away = {"state": "lost", "unacknowledged_bytes": 0, "window_bytes": 0}
    known = {"url": url, "server": url, **unknown, **empty, "workers": [], **(last or {})}
    return {**known, "workers": [{**worker, **away} for worker in known["workers"]], "lost_s": seconds}


class _ServerPart(NamedTuple):
    server: ServerReport
    workers: tuple[WorkerReport, ...]
    clients: tuple[ClientReport, ...]
    seconds: float
    cores: int
    skipped: Mapping[str, int]


def _read(before: Status | None, now: Status, some_are_lost: bool) -> _ServerPart:
    try:
        return _part(before if "lost_s" not in now else now, now, some_are_lost)
    except (KeyError, TypeError, ValueError, AttributeError, wire.Malformed) as error:
        where = now.get("url", "a server")
        raise MpwdsError(
            f"the status of {where} cannot be read ({type(error).__name__}: {error}): does it run the same "
            "version of mpwds?"
        ) from error


def _part(before: Status | None, now: Status, some_are_lost: bool) -> _ServerPart:
    seconds = float(now["uptime_s"] if before is None else now["time_s"] - before["time_s"])
    earlier = before or {"workers": (), "clients": ()}
    workers_before = {worker["worker"]: worker for worker in earlier["workers"]}
    # A client that has the name of another that has gone began at another time.
    clients_before = {(client["client"], client["began_s"]): client for client in earlier["clients"]}
    url, lost_s = str(now["url"]), float(now.get("lost_s", 0.0))
    workers = tuple(
        _worker(url, workers_before.get(each["worker"]), each, seconds) for each in now["workers"]
    )
    clients = tuple(
        _client(url, clients_before.get((each["client"], each["began_s"])), each, seconds)
        for each in now["clients"]
    )
    stats = _stats(workers, seconds, int(now["cores"]))
    verdict = f"lost for {duration(lost_s)}" if lost_s else _verdict(stats, workers, [now], some_are_lost)
    own = {"workers": now["capacity"], "clients": len(clients), "verdict": verdict, "lost_s": lost_s}
    server = ServerReport(
        **plain_values(ServerReport, {**vars(stats), **now, **own}),
        dataset=tuple(map(str, now["dataset"])),
        dropped={str(reason): int(count) for reason, count in now["dropped"].items()},
    )
    skipped = _summed(worker["counters"]["skipped"] for worker in now["workers"])
    return _ServerPart(server, workers, clients, seconds, stats.cores, skipped)


def _worker(server: str, before: Status | None, now: Status, seconds: float) -> WorkerReport:
    total = wire.unpack_counters(now["counters"])
    counters = total if before is None else total - wire.unpack_counters(before["counters"])
    stats = worker_stats(int(now["worker"]), replace(counters, pid=int(now["pid"]), server=server))
    assigned_s = max(counters.assigned_ns / 1e9, stats.active_s)
    own = {
        **rates_of(stats.batches, stats.samples, stats.nbytes, seconds),
        "assigned_s": assigned_s,
        "waiting_share": per(assigned_s - stats.working_s, assigned_s),
        "queued_bytes": now["unacknowledged_bytes"],
        "restarts": total.restarts,
    }
    return WorkerReport(**plain_values(WorkerReport, {**now, **own}), stats=stats)


def _client(server: str, before: Status | None, now: Status, seconds: float) -> ClientReport:
    batches, nbytes, seconds_here = now["batches"], now["nbytes"], min(seconds, now["connected_s"])
    if before is not None:
        batches, nbytes, seconds_here = batches - before["batches"], nbytes - before["nbytes"], seconds
    rates = {"batches_per_s": per(batches, seconds_here), "bytes_per_s": per(nbytes, seconds_here)}
    return ClientReport(**plain_values(ClientReport, {**now, **rates, "server": server}))


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, counts), Counter[str]()))


def _stats(workers: Sequence[WorkerReport], seconds: float, cores: int) -> LoaderMeasures:
    """The workers' part of a loader's statistics, which knows how to add them up and judge them."""
    batches, samples = sum(worker.batches for worker in workers), sum(worker.samples for worker in workers)
    rates = rates_of(batches, samples, sum(worker.nbytes for worker in workers), seconds)
    own = tuple(worker.stats for worker in workers)
    return LoaderMeasures(**rates, cores=cores, workers=own, waited_s=seconds)


def _waiting_share(workers: Sequence[WorkerReport]) -> float:
    counted = [worker for worker in workers if worker.stats.active_s > 0] or workers
    waiting_s = sum(worker.waiting_share * worker.assigned_s for worker in counted)
    return per(waiting_s, sum(worker.assigned_s for worker in counted))


def _verdict(
    stats: LoaderMeasures, workers: Sequence[WorkerReport], now: Sequence[Status], some_are_lost: bool
) -> str:
    """Says what bounds the workers that had an epoch. A client has the same name at all its servers."""
    attended = any(status["clients"] for status in now)
    unread = not stats.batches and any(worker.queued_bytes for worker in workers)
    workers = [worker for worker in workers if worker.stats.active_s > 0]
    if not (workers or attended):
        return "no trainer is connected"
    if not workers or (attended and unread and _waiting_share(workers) > _MOSTLY):
        do = "have not read all that was sent to them" if unread else "read nothing"
        return f"the trainers that are connected {'may wait for it' if some_are_lost else do}"
    if len({status["fingerprint"] for status in now}) > 1:
        return "the servers have different datasets: see what bounds each of them, and its stages by itself"
    clients = {tuple(sorted(worker.client.split(", "))) for worker in workers}
    stats = replace(stats, workers=tuple(worker.stats for worker in workers))
    verdict = diagnose_workers(stats, _waiting_share(workers), len(clients) == 1, some_are_lost)
    return verdict if attended else f"{verdict}; now no trainer is connected"


# Text, for the terminal and the page

BOUND, SHAPE = "what bounds it", "shape"
"""Columns whose text may be long."""


def headline(report: FeedReport) -> list[tuple[str, str]]:
    """The feed's rates, each with its unit."""
    rates = [
        (rate(report.batches_per_s), "batches/s"),
        (rate(report.samples_per_s), "samples/s"),
        (rate(report.bytes_per_s / 1e6), "MB/s"),
    ]
    if report.window_bytes:
        rates.append((f"{size(report.queued_bytes)} of {size(report.window_bytes)}", "under way"))
    return rates


def about(report: FeedReport) -> list[str]:
    """Describes the server, if there is only one, and the datasets."""
    lines = []
    if len(report.servers) == 1:
        (server,) = report.servers
        state = "up" if not server.lost_s else f"lost for {duration(server.lost_s)}, was up"
        draining = ", draining" if server.draining else ""
        lines.append(
            f"on {server.host} (pid {server.pid}), mpwds {server.version}, "
            f"{counted(server.workers, 'worker')}, {state} {duration(server.uptime_s)}{draining}"
        )
    lines += dict.fromkeys(" → ".join(server.dataset) for server in report.servers if server.dataset)
    return lines


def tables(report: FeedReport) -> list[Table]:
    """Several servers, workers and clients, unless there are none."""
    several = len(report.servers) > 1
    of_workers, of_clients = dict(_OF_WORKER), dict(_OF_CLIENT)
    if several:
        of_workers = {"server": lambda each: each.stats.server.removeprefix("tcp://"), **of_workers}
        of_clients = {"server": lambda each: each.server.removeprefix("tcp://"), **of_clients}
    if not any(client.group for client in report.clients):
        del of_clients["group"]
    found = [
        Table.of("servers", 1, _OF_SERVER, report.servers if several else ()),
        Table.of("workers", 3 + several, of_workers, report.workers),
        Table.of("clients", list(of_clients).index("rank"), of_clients, report.clients),
    ]
    return [table for table in found if table.rows]


def notes(report: FeedReport) -> list[str]:
    """Lines about elements that were left out, and messages that were not accepted."""
    return [
        *(f"left out: {count:,} in {kind}" for kind, count in report.skipped.items()),
        *(f"dropped messages: {count:,}, {reason}" for reason, count in report.dropped.items()),
    ]


def shown_stages(report: FeedReport) -> list[StageStats]:
    """The stages that take some of the workers' time."""
    return [stage for stage in report.stages if stage.share >= NEGLIGIBLE]


def stage_cost(stage: StageStats) -> str:
    """The cost of an element of a stage.

    Example:
        >>> stage_cost(StageStats("decode", seconds=2.0, share=0.5, elements=1000))
        '2 ms each'
    """
    speed = f", {rate(stage.bytes_per_s / 1e6)} MB/s" if stage.nbytes else ""
    return f"{three_digits(stage.seconds / stage.elements * 1e3)} ms each{speed}" if stage.elements else ""


def tensor_table(tensors: Sequence[TensorFigures]) -> Table:
    """Statistics of tensors, without their histograms."""
    return Table.of("tensors", 3, _OF_TENSOR, tensors)


_RATES: dict[str, Callable[[Any], str]] = {
    "batches/s": lambda each: rate(each.batches_per_s),
    "MB/s": lambda each: rate(each.bytes_per_s / 1e6),
}
_OF_SERVER: dict[str, Callable[[ServerReport], str]] = {
    "server": lambda each: each.url,
    "up": lambda each: duration(each.uptime_s) if not each.lost_s else "lost",
    "workers": lambda each: str(each.workers),
    "clients": lambda each: str(each.clients),
    **_RATES,
    BOUND: lambda each: "draining" if each.draining and not each.lost_s else each.verdict,
}
_OF_WORKER: dict[str, Callable[[WorkerReport], str]] = {
    "worker": lambda each: str(each.stats.worker),
    "state": lambda each: each.state,
    "client": lambda each: each.client or "-",
    "epoch": lambda each: str(each.epoch),
    **_RATES,
    "waits": lambda each: f"{each.waiting_share:.0%}",
    "queue": lambda each: f"{each.queued_bytes / each.window_bytes:.0%}" if each.window_bytes else "-",
    "restarts": lambda each: str(each.restarts),
}
_OF_CLIENT: dict[str, Callable[[ClientReport], str]] = {
    "client": lambda each: each.client,
    "address": lambda each: each.address,
    "group": lambda each: each.group or "-",
    "rank": lambda each: f"{each.rank}/{each.world_size}",
    "workers": lambda each: str(each.workers),
    **_RATES,
    "connected": lambda each: duration(each.connected_s),
    "silent": lambda each: f"{each.silent_s:.1f} s",
}
_OF_TENSOR: dict[str, Callable[[TensorFigures], str]] = {
    "tensor": lambda each: each.path or "batch",
    "type": lambda each: each.dtype,
    SHAPE: lambda each: shape_text(each.shape),
    "min": lambda each: number(each.low),
    "max": lambda each: number(each.high),
    "mean": lambda each: number(each.mean),
    "std": lambda each: number(each.std),
    "NaN": lambda each: f"{each.nans:,}" + (f" + {each.infinities:,} inf" if each.infinities else ""),
}
