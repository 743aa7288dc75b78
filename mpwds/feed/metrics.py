"""Metrics for Prometheus, of feed servers and of trainers. grafana-dashboard.json in docs shows them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from mpwds.closing import Closes
from mpwds.feed import keys
from mpwds.feed.report import FeedReport, Status, WorkerReport, feed_report
from mpwds.imports import require

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.samples import Sample

    from mpwds.stats.measures import StageStats
    from mpwds.stats.report import LoaderStats

LOOPBACK = "127.0.0.1"


class Metrics(Closes):
    """An HTTP server that hands figures to Prometheus at its ``port``, until it is closed.

    At a loopback address it answers requests for names of this machine alone. With a ``token``, requests must
    have it (``Authorization: Bearer TOKEN``), except ``/ready``, which says whether ``ready`` returns true.
    """

    def __init__(
        self,
        read: Callable[[], list[Metric]],
        port: int,
        host: str,
        token: str | None = None,
        ready: Callable[[], bool] | None = None,
    ) -> None:
        client = require("prometheus_client", "metrics need prometheus_client: pip install 'mpwds[metrics]'")
        registry = client.CollectorRegistry(auto_describe=False)
        registry.register(_Collector(read))
        try:
            self._server, self._thread = client.start_http_server(port, host, registry)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"metrics at {host}:{port}") from None
        self.port: int = self._server.server_port
        self._is_local = keys.is_loopback(host)
        self._authorization = None if token is None else f"Bearer {token}"
        self._ready = ready
        self._metrics = self._server.get_app()
        self._server.set_app(self._answer)

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        given = environ.get("HTTP_AUTHORIZATION", "")
        if self._is_local and not keys.is_asked_for(environ.get("HTTP_HOST")):
            status, text = "403 Forbidden", f"metrics are at http://{LOOPBACK}:{self.port} only\n"
        elif self._ready is not None and environ["PATH_INFO"] == "/ready":
            ready = self._ready()
            status, text = ("200 OK", "ready\n") if ready else ("503 Service Unavailable", "draining\n")
        elif self._authorization and not secrets.compare_digest(given.encode(), self._authorization.encode()):
            status, text = "401 Unauthorized", "metrics need the token of --metrics-token\n"
        else:
            found: Iterable[bytes] = self._metrics(environ, start_response)
            return found
        start_response(status, [("Content-Type", "text/plain")])
        return [text.encode()]

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_server_metrics(
    read: Callable[[], Status], port: int = 0, host: str = LOOPBACK, token: str | None = None
) -> Metrics:
    """Hands a feed server's figures to Prometheus, and tells at ``/ready`` whether it takes trainers.

    ``read``, such as ``server.status``, returns the server's status; each request calls it in another thread.
    Other arguments and errors are those of :func:`serve_metrics`.
    """
    return Metrics(
        lambda: server_metrics(feed_report(None, [read()])), port, host, token, lambda: not read()["draining"]
    )


class HasStats(Protocol):
    """``MultiLoader``, ``RemoteLoader``, ``DataLoader`` and loaders with stages after them."""

    def stats(self, since: Any = ...) -> LoaderStats: ...


def serve_metrics(loader: HasStats, port: int = 0, host: str = LOOPBACK, token: str | None = None) -> Metrics:
    """Hands a loader's statistics to Prometheus, until the result is closed.

    Args:
        loader: The loader. It is not closed with the metrics.
        port: The port; 0 takes a free one. Ranks on one machine need one each.
        host: The address to listen at. Others than loopback show the figures to everybody who reaches it,
            unless there is a token.
        token: What Prometheus must send (``authorization: credentials: TOKEN`` in its configuration).

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
    return Metrics(lambda: trainer_metrics(loader.stats("start")), port, host, token)


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
        return type(sample)(sample.name, sample.labels, self.most[key])


def _metrics(prefix: str, rows: Iterable[_Row]) -> list[Metric]:
    """A metric for each row, with a value for each value of its label, or the one of a row without label."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    found: list[Metric] = []
    for kind, name, help, label, values in rows:
        family: Any = CounterMetricFamily if kind == _COUNTER else GaugeMetricFamily
        metric = family(f"{prefix}_{name}", help, labels=[label] if label else [])
        for key, value in values.items():
            metric.add_metric([key] if label else [], value)
        found.append(metric)
    return found


_COUNTER, _GAUGE = "counter", "gauge"  # names of counters, which only grow, will end in ``_total``
_Row = tuple[str, str, str, str, Mapping[str, float]]
"""Kind, name, help and label of a metric, and its value for each value of the label."""

_OF_WORKERS: tuple[tuple[str, str, str, Callable[[WorkerReport], float]], ...] = (
    (_COUNTER, "batches", "Batches sent.", lambda each: each.batches),
    (_COUNTER, "samples", "Samples sent.", lambda each: each.samples),
    (_COUNTER, "bytes", "Bytes of the arrays sent.", lambda each: each.nbytes),
    (_COUNTER, "active_seconds", "Seconds in which a worker had an epoch.", lambda each: each.stats.active_s),
    (_COUNTER, "waiting_seconds", "Seconds of these spent waiting.", lambda each: each.stats.waiting_s),
    (_COUNTER, "restarts", "Restarts of a worker's process.", lambda each: each.restarts),
    (_GAUGE, "unacknowledged_bytes", "Bytes sent and not acknowledged.", lambda each: each.queued_bytes),
    (_GAUGE, "window_bytes", "How many bytes may be unacknowledged.", lambda each: each.window_bytes),
)


def server_metrics(report: FeedReport) -> list[Metric]:
    """A server's report since it started, as metrics named ``mpwds_server_...``."""
    workers = {str(each.stats.worker): each for each in report.workers}
    rows: list[_Row] = [
        (kind, name, help, "worker", {label: of(each) for label, each in workers.items()})
        for kind, name, help, of in _OF_WORKERS
    ]
    rows += _of_stages(report.stages, report.skipped)
    rows.append((_COUNTER, "dropped_messages", "Messages that were not accepted.", "reason", report.dropped))
    for server in report.servers:
        rows += [
            (_GAUGE, "clients", "Trainers that are connected.", "", {"": server.clients}),
            (_GAUGE, "workers", "Workers that the server has.", "", {"": server.workers}),
            (_GAUGE, "draining", "1 while the server ends.", "", {"": server.draining}),
            (_GAUGE, "uptime_seconds", "Seconds since it started.", "", {"": server.uptime_s}),
        ]
    return _metrics("mpwds_server", rows)


def trainer_metrics(stats: LoaderStats) -> list[Metric]:
    """A loader's statistics since it was made, as metrics named ``mpwds_trainer_...``."""
    spent = {
        "waiting": stats.waited_s,
        "receiving": stats.received_s,
        "stages": stats.stages_s,
        "elsewhere": stats.elsewhere_s,
    }
    lost = {worker.server: stats.lost.get(worker.server, 0.0) for worker in stats.workers if worker.server}
    lost_help = "Seconds for which a server has not answered; 0 if it answers."
    spent_help = "Seconds since first batches, by what the trainer did in them."
    rows: list[_Row] = [
        (_COUNTER, "seconds", spent_help, "doing", spent),
        (_COUNTER, "batches", "Batches delivered.", "", {"": stats.batches}),
        (_COUNTER, "samples", "Samples delivered.", "", {"": stats.samples}),
        (_COUNTER, "bytes", "Bytes of the arrays delivered.", "", {"": stats.nbytes}),
        (_COUNTER, "first_batch_seconds", "Seconds to epochs' first batches.", "", {"": stats.first_batch_s}),
        (_COUNTER, "restarts", "Restarts of worker processes.", "", {"": stats.restarts}),
        (_GAUGE, "epoch", "The epoch that began last.", "", {"": stats.epoch}),
        (_GAUGE, "server_lost_seconds", lost_help, "server", lost),
        *_of_stages(stats.stages, stats.skipped),
    ]
    return _metrics("mpwds_trainer", rows)


def _of_stages(stages: Sequence[StageStats], skipped: Mapping[str, int]) -> list[_Row]:
    seconds = {each.name: each.seconds for each in stages}
    elements = {each.name: each.elements for each in stages}
    nbytes = {each.name: each.nbytes for each in stages}
    return [
        (_COUNTER, "stage_seconds", "Workers' seconds in a stage.", "stage", seconds),
        (_COUNTER, "stage_elements", "Elements that a stage made.", "stage", elements),
        (_COUNTER, "stage_read_bytes", "Bytes of shards that a stage read.", "stage", nbytes),
        (_COUNTER, "skipped", "Elements that error handlers left out.", "reason", skipped),
    ]
