"""The words and tables of a report on a feed, whole."""

import pytest

from mpwds.feed import report as wording
from mpwds.feed.report import feed_report, lost
from mpwds.stats.measures import StageStats
from mpwds.viewing.tensors import TensorFigures
from tests.feed.viewing.statuses import client, reading, status, worker

WORKERS = [
    worker(0, reading(100, 20, batches=1000, skipped={"decode: E": 1234}, restarts=2)),
    worker(1, reading(50, batches=9), client="", state="free", window_bytes=0),
]
ONE = feed_report(None, [status(100, WORKERS, dropped={"replayed": 1000})])
OF_A_GROUP = client(group="g", rank=1, world_size=2, batches=200, connected_s=20.0)
SECOND = status(3700, WORKERS, [OF_A_GROUP], url="tcp://cpu2:7880", server="b2", draining=True)
THREE = feed_report(None, [status(100, WORKERS), SECOND, lost("tcp://cpu3:7880", None, 75)])
DATASET = "train-{000..099}.tar → decode('rgb8') → batched(64)"


def test_a_feed_has_its_rates_and_what_is_under_way_in_its_headline():
    assert wording.headline(ONE) == [
        ("10.1", "batches/s"),
        ("646", "samples/s"),
        ("10.1", "MB/s"),
        ("1.0 MB of 2.0 MB", "under way"),
    ]
    nobody = feed_report(None, [status(100, [])])
    assert wording.headline(nobody) == [("0", "batches/s"), ("0", "samples/s"), ("0", "MB/s")]


ABOUT = {
    "a server": ({}, "2 workers, up 1 min 40 s"),
    "one that has one worker": ({"capacity": 1}, "1 worker, up 1 min 40 s"),
    "one that drains": ({"draining": True}, "2 workers, up 1 min 40 s, draining"),
}


@pytest.mark.parametrize(("more", "told"), ABOUT.values(), ids=ABOUT)
def test_a_server_is_described_with_its_dataset(more, told):
    found = feed_report(None, [status(100, [], **more)])
    assert wording.about(found) == [f"on cpu1 (pid 7), mpwds 0.1.0, {told}", DATASET]


def test_a_server_that_is_lost_was_up():
    found = feed_report(None, [lost("tcp://cpu1:7880", status(100, []), 75)])
    told = "on cpu1 (pid 7), mpwds 0.1.0, 2 workers, lost for 1 min 15 s, was up 1 min 40 s"
    assert wording.about(found) == [told, DATASET]


def test_each_dataset_of_several_servers_is_told_once():
    other = status(100, [], url="tcp://cpu4:7880", server="d4", dataset=["other.tar"])
    found = feed_report(None, [status(100, []), SECOND, other, lost("tcp://cpu3:7880", None, 75)])
    assert wording.about(found) == [DATASET, "other.tar"]


def test_one_server_has_tables_of_its_workers_and_clients():
    workers, clients = wording.tables(ONE)
    assert (workers.title, workers.left) == ("workers", 3)
    assert " ".join(workers.columns) == "worker state client epoch batches/s MB/s waits queue restarts"
    assert workers.rows == (
        ("0", "running", "gpu1:77", "3", "10.0", "10.0", "20%", "25%", "2"),
        ("1", "free", "-", "3", "0.09", "0.09", "0%", "-", "0"),
    )
    assert (clients.title, clients.left) == ("clients", 2)
    assert " ".join(clients.columns) == "client address rank workers batches/s MB/s connected silent"
    assert clients.rows == (("gpu1:77", "10.0.0.7", "0/1", "2", "0", "0", "1 min 40 s", "0.2 s"),)


def test_several_servers_have_a_table_and_a_column_in_the_others():
    servers, workers, clients = wording.tables(THREE)
    assert (servers.title, servers.left) == ("servers", 1)
    assert servers.columns == ("server", "up", "workers", "clients", "batches/s", "MB/s", "what bounds it")
    assert servers.rows == (
        ("tcp://cpu1:7880", "1 min 40 s", "2", "1", "10.1", "10.1", THREE.servers[0].verdict),
        ("tcp://cpu2:7880", "1 h 1 min", "2", "1", "0.27", "0.27", "draining"),
        ("tcp://cpu3:7880", "lost", "0", "0", "0", "0", "lost for 1 min 15 s"),
    )
    assert (workers.columns[:2], workers.left) == (("server", "worker"), 4)
    assert [row[:3] for row in workers.rows] == [
        ("cpu1:7880", "0", "running"),
        ("cpu1:7880", "1", "free"),
        ("cpu2:7880", "0", "running"),
        ("cpu2:7880", "1", "free"),
    ]
    assert (clients.columns[:5], clients.left) == (("server", "client", "address", "group", "rank"), 4)
    assert clients.rows == (
        ("cpu1:7880", "gpu1:77", "10.0.0.7", "-", "0/1", "2", "0", "0", "1 min 40 s", "0.2 s"),
        ("cpu2:7880", "gpu1:77", "10.0.0.7", "g", "1/2", "2", "10.0", "10.0", "20 s", "0.2 s"),
    )


def test_there_is_no_table_of_nothing():
    assert wording.tables(feed_report(None, [status(100, [], [])])) == []


def test_notes_tell_what_was_left_out_or_dropped():
    assert wording.notes(ONE) == [
        "left out: 1,234 in decode: E",
        "dropped messages: 1,000, replayed",
    ]
    assert wording.notes(THREE) == ["left out: 2,468 in decode: E"]


@pytest.mark.parametrize(
    ("elements", "nbytes", "cost"),
    [(0, 0, ""), (1000, 0, "2 ms each"), (1000, 5_000_000, "2 ms each, 2.50 MB/s")],
)
def test_an_element_of_a_stage_has_its_cost(elements, nbytes, cost):
    assert wording.stage_cost(StageStats("decode", 2.0, 0.5, elements, False, nbytes)) == cost


@pytest.mark.parametrize(("share", "is_shown"), [(0.0049, False), (0.005, True)])
def test_stages_of_half_a_percent_or_more_are_shown(share, is_shown):
    stages = {"big": [1000 * 10**6, 1, False, 0], "small": [0, 1, False, 0]}
    total = 10**9 / (1 - share)
    stages["small"][0] = round(total * share) + is_shown
    counters = reading(1, batches=1, stages=stages, writing=[0, 0, False, 0])
    found = wording.shown_stages(feed_report(None, [status(1, [worker(0, counters)])]))
    assert [stage.name for stage in found] == ["big", "small"][: 1 + is_shown]


def tensor(path="x", nans=0, infinities=0):
    return TensorFigures(
        path, "float32", (64, "*"), 1, 2, -1.5, 2.25, 0.12345, 1e6, nans, infinities, (), 0.0, 0.0
    )


def test_tensors_have_a_table():
    table = wording.tensor_table([tensor('["x"]', nans=1000), tensor("", 2, 3000)])
    assert (table.title, table.left) == ("tensors", 3)
    assert table.columns == ("tensor", "type", "shape", "min", "max", "mean", "std", "NaN")
    figures = "float32", "[64, *]", "-1.5", "2.25", "0.1235", "1e+06"
    assert table.rows == (('["x"]', *figures, "1,000"), ("batch", *figures, "2 + 3,000 inf"))
