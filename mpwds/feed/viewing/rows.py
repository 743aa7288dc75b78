"""The figures of a feed as rows of text: the terminal and the page show the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpwds.feed.viewing.figures import ClientFigures, Figures, WorkerFigures
from mpwds.stats.report import StageStats
from mpwds.viewing.tensors import TensorFigures
from mpwds.viewing.wording import counted, duration, number, rate, shape_text, size, three_digits

NEGLIGIBLE = 0.005
"""The share of workers' time below which a stage is not shown."""


BOUND = "what bounds it"
SHAPE = "shape"
"""Columns whose text may be long."""


@dataclass(frozen=True)
class Rows:
    """A table: the first ``left`` columns, and those that may be long, are words, the others figures."""

    title: str
    columns: tuple[str, ...]
    left: int
    rows: tuple[tuple[str, ...], ...]


def headline(figures: Figures) -> list[tuple[str, str]]:
    """The feed's rates, each with its unit."""
    rates = [
        (rate(figures.batches_per_s), "batches/s"),
        (rate(figures.samples_per_s), "samples/s"),
        (rate(figures.bytes_per_s / 1e6), "MB/s"),
    ]
    if figures.window_bytes:
        rates.append((f"{size(figures.queued_bytes)} of {size(figures.window_bytes)}", "under way"))
    return rates


def about(figures: Figures) -> list[str]:
    """Where the only server runs, and what the servers serve."""
    lines = []
    if len(figures.servers) == 1:
        (server,) = figures.servers
        state = "up" if not server.lost_s else f"lost for {duration(server.lost_s)}, was up"
        draining = ", draining" if server.draining else ""
        lines.append(
            f"on {server.host} (pid {server.pid}), mpwds {server.version}, "
            f"{counted(server.workers, 'worker')}, {state} {duration(server.uptime_s)}{draining}"
        )
    lines += dict.fromkeys(" → ".join(server.dataset) for server in figures.servers if server.dataset)
    return lines


def tables(figures: Figures) -> list[Rows]:
    """Several servers, workers and clients, unless there are none."""
    several = len(figures.servers) > 1
    found = [_workers(figures, several), _clients(figures, several)]
    return [table for table in ([_servers(figures)] if several else []) + found if table.rows]


def notes(figures: Figures) -> list[str]:
    """What was left out or not accepted."""
    return [
        *(f"left out: {count:,} in {kind}" for kind, count in figures.skipped.items()),
        *(f"dropped messages: {count:,}, {reason}" for reason, count in figures.dropped.items()),
    ]


def shown_stages(figures: Figures) -> list[StageStats]:
    """The stages that take some of the workers' time."""
    return [stage for stage in figures.stages if stage.share >= NEGLIGIBLE]


def stage_cost(stage: StageStats) -> str:
    """What an element of a stage costs.

    Example:
        >>> stage_cost(StageStats("decode", seconds=2.0, share=0.5, elements=1000))
        '2 ms each'
    """
    speed = f", {rate(stage.bytes_per_s / 1e6)} MB/s" if stage.nbytes else ""
    return f"{three_digits(stage.seconds / stage.elements * 1e3)} ms each{speed}" if stage.elements else ""


def tensor_rows(tensors: Sequence[TensorFigures]) -> Rows:
    """Statistics of tensors, without their histograms."""
    columns = ("tensor", "type", SHAPE, "min", "max", "mean", "std", "NaN")
    return Rows("tensors", columns, 3, tuple(_tensor(tensor) for tensor in tensors))


def _tensor(tensor: TensorFigures) -> tuple[str, ...]:
    figures = (tensor.low, tensor.high, tensor.mean, tensor.std)
    place = (tensor.path or "batch", tensor.dtype, shape_text(tensor.shape))
    infinite = f" + {tensor.infinities:,} inf" if tensor.infinities else ""
    return (*place, *map(number, figures), f"{tensor.nans:,}{infinite}")


def _servers(figures: Figures) -> Rows:
    columns = ("server", "up", "workers", "clients", "batches/s", "MB/s", BOUND)
    rows = tuple(
        (
            server.url,
            duration(server.uptime_s) if not server.lost_s else "lost",
            str(server.workers),
            str(server.clients),
            rate(server.batches_per_s),
            rate(server.bytes_per_s / 1e6),
            "draining" if server.draining and not server.lost_s else server.verdict,
        )
        for server in figures.servers
    )
    return Rows("servers", columns, 1, rows)


def _workers(figures: Figures, several: bool) -> Rows:
    columns = ("worker", "state", "client", "epoch", "batches/s", "MB/s", "waits", "queue", "restarts")
    rows = tuple((*_of(worker.stats.server, several), *_worker(worker)) for worker in figures.workers)
    return Rows("workers", (*_of("server", several), *columns), 3 + several, rows)


def _worker(worker: WorkerFigures) -> tuple[str, ...]:
    return (
        str(worker.stats.worker),
        worker.state,
        worker.client or "-",
        str(worker.epoch),
        rate(worker.batches_per_s),
        rate(worker.bytes_per_s / 1e6),
        f"{worker.waiting_share:.0%}",
        f"{worker.queued_bytes / worker.window_bytes:.0%}" if worker.window_bytes else "-",
        str(worker.restarts),
    )


def _clients(figures: Figures, several: bool) -> Rows:
    grouped = any(client.group for client in figures.clients)
    first = (*_of("server", several), "client", "address", *(("group",) if grouped else ()))
    columns = ("rank", "workers", "batches/s", "MB/s", "connected", "silent")
    rows = tuple(_client(client, several, grouped) for client in figures.clients)
    return Rows("clients", (*first, *columns), len(first), rows)


def _client(client: ClientFigures, several: bool, grouped: bool) -> tuple[str, ...]:
    return (
        *_of(client.server, several),
        client.client,
        client.address,
        *((client.group or "-",) if grouped else ()),
        f"{client.rank}/{client.world_size}",
        str(client.workers),
        rate(client.batches_per_s),
        rate(client.bytes_per_s / 1e6),
        duration(client.connected_s),
        f"{client.silent_s:.1f} s",
    )


def _of(server: str, several: bool) -> tuple[str, ...]:
    return (server.removeprefix("tcp://"),) if several else ()
