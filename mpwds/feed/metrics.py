"""Metrics for Prometheus, of feed servers and of trainers. docs/grafana-dashboard.json shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from mpwds.feed import keys
from mpwds.feed.report import FeedReport, Status, WorkerReport, feed_report

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.samples import Sample

    from mpwds.stats.measures import StageStats
    from mpwds.stats.report import LoaderStats

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
    return Metrics(lambda: server_metrics(feed_report(None, [read()])), port, host)


class HasStats(Protocol):
    """``MultiLoader``, ``RemoteLoader``, ``DataLoader`` and loaders with stages after them."""

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
    """Answers prometheus_client. Its counters never shrink, as estimated times may."""

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


def _counter(name: str, help: str, label: str, values: Mapping[str, float]) -> Metric:
    """A value that only grows, for each value of a label; its name will end in ``_total``."""
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(name, help, labels=[label] if label else []), label, values)


def _gauge(name: str, help: str, label: str, values: Mapping[str, float]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(name, help, labels=[label] if label else []), label, values)


def _filled(family: Any, label: str, values: Mapping[str, float]) -> Metric:
    for key, value in values.items():
        family.add_metric([key] if label else [], value)
    filled: Metric = family
    return filled


_OF_WORKERS: tuple[tuple[Callable[..., Metric], str, str, Callable[[WorkerReport], float]], ...] = (
    (_counter, "batches", "Batches sent.", lambda each: each.batches),
    (_counter, "samples", "Samples sent.", lambda each: each.samples),
    (_counter, "bytes", "Bytes of the arrays sent.", lambda each: each.nbytes),
    (_counter, "active_seconds", "Seconds in which a worker had an epoch.", lambda each: each.stats.active_s),
    (_counter, "waiting_seconds", "Seconds of these spent waiting.", lambda each: each.stats.waiting_s),
    (_counter, "restarts", "Restarts of a worker's process.", lambda each: each.restarts),
    (_gauge, "unacknowledged_bytes", "Bytes sent and not acknowledged.", lambda each: each.queued_bytes),
    (_gauge, "window_bytes", "How many bytes may be unacknowledged.", lambda each: each.window_bytes),
)


def server_metrics(report: FeedReport) -> list[Metric]:
    """A server's report since it started, as metrics named ``mpwds_server_...``."""
    workers = {str(each.stats.worker): each for each in report.workers}
    found = [
        kind(f"mpwds_server_{name}", help, "worker", {label: of(each) for label, each in workers.items()})
        for kind, name, help, of in _OF_WORKERS
    ]
    found += _of_stages("mpwds_server", report.stages, report.skipped)
    dropped = "Messages that were not accepted."
    found.append(_counter("mpwds_server_dropped_messages", dropped, "reason", report.dropped))
    for server in report.servers:
        gauges = {
            "clients": ("Trainers that are connected.", server.clients),
            "workers": ("Workers that the server has.", server.workers),
            "draining": ("1 while the server ends.", server.draining),
            "uptime_seconds": ("Seconds since it started.", server.uptime_s),
        }
        for name, (help, value) in gauges.items():
            found.append(_gauge(f"mpwds_server_{name}", help, "", {"": value}))
    return found


def trainer_metrics(stats: LoaderStats) -> list[Metric]:
    """A loader's statistics since it was made, as metrics named ``mpwds_trainer_...``."""
    spent = {
        "waiting": stats.waited_s,
        "receiving": stats.received_s,
        "stages": stats.stages_s,
        "elsewhere": stats.elsewhere_s,
    }
    doing = "Seconds since first batches, by what the trainer did in them."
    totals = {
        "batches": ("Batches delivered.", stats.batches),
        "samples": ("Samples delivered.", stats.samples),
        "bytes": ("Bytes of the arrays delivered.", stats.nbytes),
        "first_batch_seconds": ("Seconds to epochs' first batches.", stats.first_batch_s),
        "restarts": ("Restarts of worker processes.", stats.restarts),
    }
    lost = {worker.server: stats.lost.get(worker.server, 0.0) for worker in stats.workers if worker.server}
    lost_help = "Seconds for which a server has not answered; 0 if it answers."
    return [
        _counter("mpwds_trainer_seconds", doing, "doing", spent),
        *(_counter(f"mpwds_trainer_{name}", help, "", {"": value}) for name, (help, value) in totals.items()),
        _gauge("mpwds_trainer_epoch", "The epoch that began last.", "", {"": stats.epoch}),
        _gauge("mpwds_trainer_server_lost_seconds", lost_help, "server", lost),
        *_of_stages("mpwds_trainer", stats.stages, stats.skipped),
    ]


def _of_stages(prefix: str, stages: Sequence[StageStats], skipped: Mapping[str, int]) -> list[Metric]:
    seconds = {each.name: each.seconds for each in stages}
    elements = {each.name: each.elements for each in stages}
    nbytes = {each.name: each.nbytes for each in stages}
    return [
        _counter(f"{prefix}_stage_seconds", "Workers' seconds in a stage.", "stage", seconds),
        _counter(f"{prefix}_stage_elements", "Elements that a stage made.", "stage", elements),
        _counter(f"{prefix}_stage_read_bytes", "Bytes of shards that a stage read.", "stage", nbytes),
        _counter(f"{prefix}_skipped", "Elements that error handlers left out.", "reason", skipped),
    ]
