"""What Prometheus reads of a server and of a trainer."""

import itertools
import json
import re
import socket
import sys
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

import mpwds
from mpwds.feed.metrics import serve_server_metrics
from mpwds.feed.report import feed_report
from mpwds.feed.status_client import StatusClient
from mpwds.stats.report import LoaderStats
from tests.feed.faults.checking import BATCHES, rows, warned
from tests.feed.serving import LENGTH, ServerProcess, delivered, numbers
from tests.feed.viewing.statuses import client, reading, status, worker
from tests.loader.faults.processes import wait_until

DASHBOARD = Path(__file__).parents[2] / "docs/guides/servers/grafana-dashboard.json"

STATUS = status(
    100,
    [
        worker(0, reading(100, 20, batches=1000, skipped={"decode: ValueError": 2})),
        worker(1, reading(50, batches=9, restarts=3), unacknowledged_bytes=4, window_bytes=5),
    ],
    [client()],
    dropped={"replayed": 4},
    capacity=6,
)


def samples(port):
    """Each metric with its labels, and its value."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
    assert len(found) == len(lines), "Prometheus rejects what comes twice"
    return found


def ask(port, host, path="/metrics", **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host, **headers})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("host", ["example.org", "example.org:{port}", "10.0.0.1:{port}", "[", "x:y"])
def test_a_site_that_points_its_name_at_this_machine_reads_nothing(host):
    with serve_server_metrics(lambda: STATUS) as metrics:
        status, answer = ask(metrics.port, host.format(port=metrics.port))
    assert (status, answer) == (403, f"metrics are at http://127.0.0.1:{metrics.port} only\n")


@pytest.mark.parametrize(
    ("listens", "host"),
    [
        ("127.0.0.1", "localhost:{port}"),
        ("127.0.0.1", "127.0.0.1:{port}"),
        ("127.0.0.1", "localhost:9000"),  # through a tunnel
        ("0.0.0.0", "cpu1.example:{port}"),
    ],
)
def test_an_agent_reads_by_a_name_of_this_machine_or_any_if_all_may_read(listens, host):
    with serve_server_metrics(lambda: STATUS, host=listens) as metrics:
        status, answer = ask(metrics.port, host.format(port=metrics.port))
    assert status == 200
    assert "mpwds_server_batches_total" in answer


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, 401), ({"Authorization": "Bearer no"}, 401), ({"Authorization": "Bearer é"}, 401)],
)
def test_with_a_token_only_who_sends_it_reads(given, expected):
    with serve_server_metrics(lambda: STATUS, token="secret") as metrics:
        assert ask(metrics.port, "localhost", **given)[0] == expected
        assert ask(metrics.port, "localhost", Authorization="Bearer secret")[0] == 200


def test_who_sends_no_token_learns_whether_the_server_takes_trainers():
    now = dict(STATUS)
    with serve_server_metrics(lambda: now, host="0.0.0.0", token="secret") as metrics:
        assert ask(metrics.port, "cpu1", "/ready") == (200, "ready\n")
        now["draining"] = True
        assert ask(metrics.port, "cpu1", "/ready") == (503, "draining\n")
        assert "mpwds_server_draining 1" in ask(metrics.port, "cpu1", Authorization="Bearer secret")[1]
        assert ask(metrics.port, "cpu1", "/ready/metrics")[0] == 401


@pytest.fixture(scope="module")
def of_server():
    with serve_server_metrics(lambda: STATUS) as metrics:
        return samples(metrics.port)


@pytest.fixture(scope="module")
def of_trainer():
    dataset = mpwds.DataPipeline(range(12)).map(float).batched(4)
    with mpwds.MultiLoader(dataset, workers=0, output="numpy") as loader:
        assert len(list(loader)) == 3
        with mpwds.serve_metrics(loader) as metrics:
            return samples(metrics.port)


def test_workers_of_several_trainers_have_metrics_of_their_own():
    with ServerProcess(numbers(), workers=2) as server:
        loaders = [mpwds.RemoteLoader(server.url, workers=1, output="numpy") for _ in range(2)]
        for loader in loaders:
            list(loader)
        with StatusClient([server.url]) as inspector:
            now = inspector.status()[0]
        for loader in loaders:
            loader.close()
    with serve_server_metrics(lambda: now) as metrics:
        found = samples(metrics.port)
    batches = LENGTH // 4
    assert [found[f'mpwds_server_batches_total{{worker="{number}"}}'] for number in range(2)] == [batches] * 2


def test_totals_of_a_server_go_on_with_the_next_trainer_and_with_workers_that_are_restarted(tmp_path):
    dataset = rows(deaths={100: 1}, folder=tmp_path)
    found = []
    with ServerProcess(dataset, workers=2) as server, StatusClient([server.url]) as inspector:
        with serve_server_metrics(lambda: inspector.status()[0]) as metrics:
            for _ in range(3):
                with mpwds.RemoteLoader(server.url, output="numpy") as loader, warned():
                    assert len(delivered(loader)) == BATCHES
                found.append(samples(metrics.port))
    totals = [{name: value for name, value in each.items() if "_total{worker=" in name} for each in found]
    for name in totals[0]:
        assert totals[0][name] <= totals[1][name] <= totals[2][name], name
    for label in ('{worker="0"}', '{worker="1"}'):
        batches = [each[f"mpwds_server_batches_total{label}"] for each in totals]
        assert batches[0] >= BATCHES // 2
        assert [batches[1] - batches[0], batches[2] - batches[1]] == [BATCHES // 2] * 2
    restarts = [value for name, value in totals[2].items() if "restarts" in name]
    assert sorted(restarts) == [0, 1]


def test_an_estimated_time_that_shrinks_is_no_counter_that_begins_anew():
    dear, cheap = ({"decode('rgb8')": [seconds * 10**9, 640, False, 0]} for seconds in (50, 10))
    readings = iter([reading(100, batches=10, stages=dear), reading(101, batches=11, stages=cheap)])
    with serve_server_metrics(lambda: status(100, [worker(0, next(readings))])) as metrics:
        before, after = samples(metrics.port), samples(metrics.port)
    name = "mpwds_server_stage_seconds_total{stage=\"decode('rgb8')\"}"
    assert after[name] == before[name] > 50
    assert after['mpwds_server_batches_total{worker="0"}'] == 11


def test_a_stage_that_was_handed_out_stays_while_workers_come_and_begin():
    new, begun = reading(1, stages={}, writing=[0, 0, False, 0]), reading(10, batches=10)
    foreign = {**begun, "stages": {}, "other": [9 * 10**9, 0, False, 0]}
    for kind, rest in ((begun, "between stages"), (foreign, "the dataset")):
        moments = [new], [new, kind], [kind, new], [kind, kind]
        statuses = iter([status(100, [worker(n, each) for n, each in enumerate(now)]) for now in moments])
        with serve_server_metrics(lambda statuses=statuses: next(statuses)) as metrics:
            found = [samples(metrics.port) for _ in moments]
        for before, after in itertools.pairwise(found):
            assert {name for name in before if "stage" in name} <= {name for name in after if "stage" in name}
        assert f'mpwds_server_stage_seconds_total{{stage="{rest}"}}' in found[-1]
        other = {"between stages": "the dataset", "the dataset": "between stages"}[rest]
        assert not any(other in name for each in found for name in each)


STAGES = {
    "between stages": (0, 1009, 0),
    "tarfile_to_samples()": (0.2 * 130, 64 * 1009, 1009 * 10**6),
    "decode('rgb8')": (0.7 * 130, 64 * 1009, 0),
    "writing batches": (0.1 * 130, 1009, 0),
}
OF_WORKERS = {
    "batches_total": (1000, 9),
    "samples_total": (64_000, 576),
    "bytes_total": (10**9, 9 * 10**6),
    "active_seconds_total": (100, 50),
    "waiting_seconds_total": (20, 0),
    "restarts_total": (0, 3),
    "unacknowledged_bytes": (500_000, 4),
    "window_bytes": (2_000_000, 5),
}


def of_stages(of):
    return {
        f'mpwds_{of}_stage_{name}_total{{stage="{stage}"}}': figures[number]
        for stage, figures in STAGES.items()
        for number, name in enumerate(("seconds", "elements", "read_bytes"))
    }


def test_every_figure_of_a_server_is_its_own(of_server):
    assert of_server == pytest.approx(
        {
            **{
                f'mpwds_server_{name}{{worker="{number}"}}': value
                for name, values in OF_WORKERS.items()
                for number, value in enumerate(values)
            },
            **of_stages("server"),
            'mpwds_server_skipped_total{reason="decode: ValueError"}': 2,
            'mpwds_server_dropped_messages_total{reason="replayed"}': 4,
            "mpwds_server_clients": 1,
            "mpwds_server_workers": 6,
            "mpwds_server_draining": 0,
            "mpwds_server_uptime_seconds": 100,
        },
        abs=1e-6,
    )


class Measured:
    """Stands for a loader: two workers, one of them of a server that is lost."""

    def stats(self, since="epoch"):
        assert since == "start"
        (here,) = feed_report(
            None, [status(100, [worker(0, reading(100, 20, batches=1000, restarts=3))])]
        ).workers
        away = feed_report(None, [status(50, [worker(1, reading(50, batches=9))])]).workers[0].stats
        return LoaderStats(
            epoch=7,
            batches=11,
            samples=12,
            nbytes=13,
            batches_per_s=0.0,
            samples_per_s=0.0,
            bytes_per_s=0.0,
            first_batch_s=1.5,
            waited_s=2.5,
            received_s=3.5,
            elsewhere_s=4.5,
            stages_s=5.5,
            cores=8,
            workers=(replace(here.stats, server=""), replace(away, lost_s=6.5)),
            stages_skipped={"map(f): ValueError": 8},
        )


def test_every_figure_of_a_trainer_is_its_own_and_since_its_loader_was_made():
    with mpwds.serve_metrics(Measured()) as metrics:
        assert samples(metrics.port) == pytest.approx(
            {
                'mpwds_trainer_seconds_total{doing="waiting"}': 2.5,
                'mpwds_trainer_seconds_total{doing="receiving"}': 3.5,
                'mpwds_trainer_seconds_total{doing="elsewhere"}': 4.5,
                'mpwds_trainer_seconds_total{doing="stages"}': 5.5,
                "mpwds_trainer_batches_total": 11,
                "mpwds_trainer_samples_total": 12,
                "mpwds_trainer_bytes_total": 13,
                "mpwds_trainer_first_batch_seconds_total": 1.5,
                "mpwds_trainer_restarts_total": 3,
                "mpwds_trainer_epoch": 7,
                'mpwds_trainer_server_lost_seconds{server="tcp://cpu1:7880"}': 6.5,
                'mpwds_trainer_skipped_total{reason="map(f): ValueError"}': 8,
                **of_stages("trainer"),
            },
            abs=1e-6,
        )


def test_a_port_that_is_taken_is_an_error_that_names_it():
    with serve_server_metrics(lambda: STATUS) as metrics:
        with pytest.raises(OSError, match=f"in use: 'metrics at 127.0.0.1:{metrics.port}'"):
            serve_server_metrics(lambda: STATUS, metrics.port)


def test_without_its_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    needs = re.escape("metrics need prometheus_client: pip install 'mpwds[metrics]'")
    with pytest.raises(ImportError, match=f"^{needs}$"):
        serve_server_metrics(lambda: STATUS)


def test_a_server_that_is_lost_is_told_by_the_trainers_metrics_statistics_and_verdict():
    def lost():
        return samples(metrics.port)[f'mpwds_trainer_server_lost_seconds{{server="{server.url}"}}']

    with ServerProcess(numbers(), workers=1) as server:
        options = {"output": "numpy", "heartbeat_timeout": 60}
        with mpwds.RemoteLoader(server.url, **options) as loader, mpwds.serve_metrics(loader) as metrics:
            assert len(list(loader)) == LENGTH // 4
            assert (lost(), loader.stats().lost) == (0, {})
            assert [worker.server for worker in loader.stats().workers] == [server.url]
            (connection,) = loader._remote.servers.connections
            connection.options = replace(connection.options, heartbeat_timeout=2)
            server.kill()
            wait_until(lost, "the loss")
            stats = loader.stats()
    assert 0 < stats.lost[server.url] == stats.as_dict()["lost"][server.url]
    assert stats.verdict.startswith(f"no answer from {server.url} for ")
    assert f"{server.url} (no answer for " in str(stats)


def test_the_dashboard_shows_these_metrics_and_no_others(of_server, of_trainer):
    panels = json.loads(DASHBOARD.read_text())["panels"]
    shown = {
        name
        for panel in panels
        for target in panel.get("targets", [])
        for name in re.findall(r"mpwds_\w+", target["expr"])
    }
    # Of what a trainer left out, and of its servers, there is nothing to hand out here.
    assert shown == {name.partition("{")[0] for name in [*of_server, *of_trainer]} | {
        "mpwds_trainer_skipped_total",
        "mpwds_trainer_server_lost_seconds",
    }


def test_the_dashboard_has_the_structure_that_grafana_imports():
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["schemaVersion"] >= 36
    assert {"title", "uid", "time", "templating", "panels"} <= dashboard.keys()
    panels = dashboard["panels"]
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = {"source"}
    for panel in panels:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24, panel["title"]
        for target in panel.get("targets", []):
            used |= set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
    assert used == variables
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)


def test_nobody_else_is_served_and_one_that_is_closed_frees_its_port():
    with serve_server_metrics(lambda: STATUS) as metrics, socket.socket() as other:
        port = metrics.port
        with pytest.raises(ConnectionRefusedError):
            other.connect(("127.0.0.2", port))
    with serve_server_metrics(lambda: STATUS, port) as again:
        assert samples(again.port)["mpwds_server_workers"] == 6
