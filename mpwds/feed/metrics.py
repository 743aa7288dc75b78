"""Figures for Prometheus, of feed servers and of trainers. docs/grafana-dashboard.json shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from mpwds.feed import keys
from mpwds.feed.viewing.figures import Figures, Status, figures

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.samples import Sample

    from mpwds.stats.report import LoaderStats, StageStats

LOOPBACK = "127.0.0.1"


class Metrics:
    """An HTTP server that hands figures to Prometheus, until it is closed. Made by the functions below.

    Attributes:
        port: Its port.
    """

    def __init__(self, read: Callable[[], list[Metric]], port: int, host: str) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise ImportError("metrics need prometheus_client: pip install 'mpwds[metrics]'") from error
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(read))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"metrics at {host}:{port}") from None
        self.port: int = self._server.server_port
        if keys.is_loopback(host):
            self._server.set_app(self._for_own_names(self._server.get_app()))

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _for_own_names(self, app: Any) -> Any:
        def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            if keys.is_asked_for(environ.get("HTTP_HOST")):
                found: Iterable[bytes] = app(environ, start_response)
                return found
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [f"metrics are at http://{LOOPBACK}:{self.port} only\n".encode()]

        return answer

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_server_metrics(read: Callable[[], Status], port: int = 0, host: str = LOOPBACK) -> Metrics:
    """Hands a feed server's figures to Prometheus.

    Args:
        read: Returns the server's status, such as ``server.status``. It is called in another thread, once for
            each time that Prometheus asks.
        port: The port; 0 takes a free one.
        host: The address to listen at. Others than loopback show the figures to everybody who reaches it.

    Raises:
        ImportError: prometheus_client is not installed.
        OSError: The port is taken.
    """
    return Metrics(lambda: server_metrics(figures(None, [read()])), port, host)


class HasStats(Protocol):
    """``MultiLoader``, ``RemoteLoader``, ``DataLoader`` and loaders with stages behind them."""

    def stats(self, since: Any = ...) -> LoaderStats: ...


def serve_metrics(loader: HasStats, port: int = 0, host: str = LOOPBACK) -> Metrics:
    """Hands a loader's statistics to Prometheus, until the result is closed.

    Args:
        loader: The loader. It is not closed with the metrics.
        port: The port; 0 takes a free one. Ranks on one machine need one each.
        host: The address to listen at. Others than loopback show the figures to everybody who reaches it.

    Returns:
        The HTTP server: a context manager with ``port`` and ``close()``.

    Raises:
        ImportError: prometheus_client is not installed.
        OSError: The port is taken.

    Example:
        >>> import urllib.request
        >>> from mpwds import MultiLoader
        >>> loader = MultiLoader([1.0, 2.0, 3.0], workers=0, output="numpy")
        >>> with serve_metrics(loader) as metrics:
        ...     for number in loader: pass
        ...     page = urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics").read().decode()
        >>> [line for line in page.splitlines() if line.startswith("mpwds_trainer_batches_total")]
        ['mpwds_trainer_batches_total 3.0']
    """
    return Metrics(lambda: trainer_metrics(loader.stats("start")), port, host)


@dataclass(eq=False)
class _Collector:
    """What prometheus_client asks for metrics. Counters never shrink, as estimated times may."""

    read: Callable[[], list[Metric]]
    most: dict[tuple[str, ...], float] = field(default_factory=dict)

    def collect(self) -> Iterable[Metric]:
        families = self.read()
        for family in families:
            if family.type == "counter":
                family.samples = [self._grown(sample) for sample in family.samples]
        return families

    def _grown(self, sample: Sample) -> Sample:
        key = sample.name, *sample.labels.values()
        self.most[key] = max(sample.value, self.most.get(key, 0.0))
        return sample._replace(value=self.most[key])


@dataclass
class _Families:
    """Builds metrics of the same labels."""

    families: list[Metric] = field(default_factory=list)

    def counter(self, name: str, help: str, labels: tuple[str, ...] = ()) -> Any:
        """A figure that only grows; its name ends in ``_total``."""
        from prometheus_client.core import CounterMetricFamily

        return self._keep(CounterMetricFamily(name, help, labels=labels))

    def gauge(self, name: str, help: str, labels: tuple[str, ...] = ()) -> Any:
        from prometheus_client.core import GaugeMetricFamily

        return self._keep(GaugeMetricFamily(name, help, labels=labels))

    def _keep(self, family: Metric) -> Metric:
        self.families.append(family)
        return family


def server_metrics(figures: Figures) -> list[Metric]:
    """A server's figures since it started, as metrics named ``mpwds_server_...``."""
    found = _Families()
    worker = ("worker",)
    batches = found.counter("mpwds_server_batches", "Batches sent.", worker)
    samples = found.counter("mpwds_server_samples", "Samples sent.", worker)
    nbytes = found.counter("mpwds_server_bytes", "Bytes of the arrays sent.", worker)
    active = found.counter(
        "mpwds_server_active_seconds", "Seconds in which a worker had an epoch to do.", worker
    )
    waiting = found.counter(
        "mpwds_server_waiting_seconds", "Seconds of these spent waiting for the trainer.", worker
    )
    restarts = found.counter("mpwds_server_restarts", "Restarts of a worker's process.", worker)
    queued = found.gauge("mpwds_server_unacknowledged_bytes", "Bytes sent and not acknowledged.", worker)
    window = found.gauge("mpwds_server_window_bytes", "How many bytes may be unacknowledged.", worker)
    for each in figures.workers:
        label = [str(each.stats.worker)]
        batches.add_metric(label, each.batches)
        samples.add_metric(label, each.samples)
        nbytes.add_metric(label, each.nbytes)
        active.add_metric(label, each.stats.active_s)
        waiting.add_metric(label, each.stats.waiting_s)
        restarts.add_metric(label, each.restarts)
        queued.add_metric(label, each.queued_bytes)
        window.add_metric(label, each.window_bytes)
    _add_stages(found, "mpwds_server", figures.stages)
    skipped = found.counter("mpwds_server_skipped", "Elements that error handlers left out.", ("reason",))
    for reason, count in figures.skipped.items():
        skipped.add_metric([reason], count)
    dropped = found.counter("mpwds_server_dropped_messages", "Messages that were not accepted.", ("reason",))
    for reason, count in figures.dropped.items():
        dropped.add_metric([reason], count)
    for server in figures.servers:
        found.gauge("mpwds_server_clients", "Trainers that are connected.").add_metric([], server.clients)
        found.gauge("mpwds_server_workers", "Workers that the server has.").add_metric([], server.workers)
        found.gauge("mpwds_server_draining", "1 while the server ends.").add_metric([], server.draining)
        found.gauge("mpwds_server_uptime_seconds", "Seconds since it started.").add_metric(
            [], server.uptime_s
        )
    return found.families


def trainer_metrics(stats: LoaderStats) -> list[Metric]:
    """A loader's statistics since it was made, as metrics named ``mpwds_trainer_...``."""
    found = _Families()
    spent = found.counter(
        "mpwds_trainer_seconds", "Seconds since first batches, by what the trainer did in them.", ("doing",)
    )
    times = {
        "waiting": stats.waited_s,
        "receiving": stats.received_s,
        "stages": stats.stages_s,
        "elsewhere": stats.elsewhere_s,
    }
    for doing, seconds in times.items():
        spent.add_metric([doing], seconds)
    totals = {
        "batches": ("Batches delivered.", stats.batches),
        "samples": ("Samples delivered.", stats.samples),
        "bytes": ("Bytes of the arrays delivered.", stats.nbytes),
        "first_batch_seconds": ("Seconds to epochs' first batches.", stats.first_batch_s),
        "restarts": ("Restarts of worker processes.", stats.restarts),
    }
    for name, (help, value) in totals.items():
        found.counter(f"mpwds_trainer_{name}", help).add_metric([], value)
    found.gauge("mpwds_trainer_epoch", "The epoch that began last.").add_metric([], stats.epoch)
    lost_help = "Seconds for which a server has not answered; 0 if it answers."
    lost = found.gauge("mpwds_trainer_server_lost_seconds", lost_help, ("server",))
    for server in dict.fromkeys(worker.server for worker in stats.workers if worker.server):
        lost.add_metric([server], stats.lost.get(server, 0.0))
    _add_stages(found, "mpwds_trainer", stats.stages)
    skipped = found.counter("mpwds_trainer_skipped", "Elements that error handlers left out.", ("reason",))
    for reason, count in stats.skipped.items():
        skipped.add_metric([reason], count)
    return found.families


def _add_stages(found: _Families, prefix: str, stages: Iterable[StageStats]) -> None:
    seconds = found.counter(f"{prefix}_stage_seconds", "Workers' seconds in a stage.", ("stage",))
    elements = found.counter(f"{prefix}_stage_elements", "Elements that a stage made.", ("stage",))
    nbytes = found.counter(f"{prefix}_stage_read_bytes", "Bytes of shards that a stage read.", ("stage",))
    for stage in stages:
        nbytes.add_metric([stage.name], stage.nbytes)
        seconds.add_metric([stage.name], stage.seconds)
        elements.add_metric([stage.name], stage.elements)
