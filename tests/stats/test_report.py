"""The table of a loader's statistics, whole, for figures as they come."""

from dataclasses import replace
from html import escape

import pytest

from mpwds.stats.measures import StageStats, WorkerStats
from mpwds.stats.report import LoaderStats

READING = StageStats("tarfile_to_samples()", 2.0, 0.25, 2000, storage=True, nbytes=50_000_000)
CROPPING = StageStats(f"map({'x' * 60})", 5.96, 0.745, 1000)
UNUSED = StageStats("between stages", 0.0396, 0.00495, 0)
HERE = WorkerStats(
    worker=0,
    pid=100,
    batches=1234,
    samples=2500,
    nbytes=10**9,
    active_s=10.0,
    waiting_s=2.0,
    cpu_s=7.0,
    queued_s=0.5,
    skipped={"decode: DecodeError": 1000, "map(f): ValueError": 2},
    restarts=3,
    stages=(READING, CROPPING, UNUSED),
    shard="s3://data/train-3.tar",
)
THERE = replace(
    HERE, worker=1, pid=0, skipped={}, restarts=0, shard="", server="tcp://cpu1:7880", lost_s=75.0
)
STATS = LoaderStats(
    epoch=2,
    batches=1500,
    samples=3000,
    nbytes=2 * 10**9,
    batches_per_s=150.04,
    samples_per_s=1234.56,
    bytes_per_s=200_040_000.0,
    first_batch_s=0.5,
    waited_s=1.0,
    received_s=2.0,
    elsewhere_s=6.0,
    stages_s=1.0,
    private_copies=1,
    in_order=True,
    in_process=False,
    cores=8,
    workers=(HERE,),
    others_cpu_s=20.0,
)
WHOLE = f"""\
epoch 2: 1,500 batches, 3,000 samples, in 10.0 s after the first batch, which took 0.5 s
1,234.6 samples/s, 150.0 batches/s, 200.0 MB/s
trainer: waits 10%, receives 20%, is in stages 10%, is elsewhere 60% of the time
1 batch was copied out of shared memory: many are kept
other processes take 25% of the 8 processors
worker  pid  batches  samples/s       MB  active  waits    cpu  queued  skipped  restarts        shard
0       100    1,234      250.0  1,000.0  10.0 s    20%  7.0 s   0.5 s     1002         3  train-3.tar
stage                                             share   time  elements  ms each  elements/s  MB/s  by worker
tarfile_to_samples()                                25%  2.0 s     2,000        1       1,000  25.0        25%
map({"x" * 41}...    74%  6.0 s     1,000     5.96         168     -        74%
left out: 1,000 in decode: DecodeError
left out: 2 in map(f): ValueError
verdict: the trainer waits 10% of the time, the most that can be gained; """


def test_the_table_tells_everything_that_was_measured():
    lines = str(STATS).splitlines()
    assert lines[:-1] == WHOLE.splitlines()[:-1]
    assert lines[-1] == f"verdict: {STATS.verdict}"


def test_the_repr_names_epoch_batches_rate_and_verdict():
    assert repr(STATS) == f"<LoaderStats: epoch 2, 1,500 batches, 1,234.6 samples/s; {STATS.verdict}>"


def test_a_notebook_shows_the_same_in_tables():
    stats = replace(STATS, workers=(replace(HERE, shard="<a>.tar"),))
    html = stats._repr_html_()
    assert html.count("<table>") == html.count("</table>") == 2
    assert [word for word in str(stats).split() if escape(word) not in html] == []


SOME_LINES = {
    "several epochs": (
        {"epochs": 2},
        "2 epochs, the last of them number 2: 1,500 batches, 3,000 samples, in 10.0 s after the first "
        "batches, which together took 0.5 s",
    ),
    "one of each": (
        {"batches": 1, "samples": 1},
        "epoch 2: 1 batch, 1 sample, in 10.0 s after the first batch, which took 0.5 s",
    ),
    "no stages after the loader": (
        {"stages_s": 0.0, "elsewhere_s": 7.0},
        "trainer: waits 10%, receives 20%, is elsewhere 70% of the time",
    ),
    "several copies": (
        {"private_copies": 1200},
        "1,200 batches were copied out of shared memory: many are kept",
    ),
    "no time": (
        dict.fromkeys(("waited_s", "received_s", "elsewhere_s", "stages_s"), 0.0),
        "trainer: waits 0%, receives 0%, is elsewhere 0% of the time",
    ),
}


@pytest.mark.parametrize(("figures", "line"), SOME_LINES.values(), ids=SOME_LINES)
def test_lines_agree_with_their_figures(figures, line):
    assert line in str(replace(STATS, **figures)).splitlines()


@pytest.mark.parametrize("figures", [{"private_copies": 0}, {"others_cpu_s": 8.0}])
def test_what_has_not_happened_has_no_line(figures):
    """Of others' processor time, a tenth is not worth a line."""
    without = str(replace(STATS, **figures)).splitlines()
    assert len(without) == len(str(STATS).splitlines()) - 1
    assert not any("copied" in line for line in without) or "private_copies" not in figures
    assert not any("other processes" in line for line in without) or "others_cpu_s" not in figures


def test_workers_of_servers_have_a_column_for_them_and_those_beside_the_trainer_are_here():
    lines = str(replace(STATS, workers=(HERE, THERE))).splitlines()
    first, second = lines[6].split("  "), lines[7].split("  ")
    assert lines[5].endswith("  server")
    assert (first[0], first[-1].strip()) == ("0", "here")
    assert (second[0], second[-1].strip()) == ("1", "tcp://cpu1:7880 (no answer for 1 min 15 s)")
    assert second[-2].strip() == "-"  # its shard is not known
    assert "server" not in str(STATS)


def row_of(stage):
    """The row of the only stage of the only worker."""
    return str(replace(STATS, workers=(replace(HERE, stages=(stage,)),))).splitlines()[8]


def test_a_stage_without_elements_has_no_cost_and_no_rate():
    cells = row_of(replace(UNUSED, seconds=0.8)).split()
    assert cells == ["between", "stages", "10%", "0.8", "s", "0", "-", "-", "-", "0%"]


def test_a_name_of_48_characters_is_shown_whole():
    name = f"map({'y' * 43})"
    assert row_of(replace(CROPPING, name=name)).startswith(f"{name}  ")
    assert row_of(replace(CROPPING, name=f"{name})")).startswith(f"{name[:45]}...  ")


def test_a_dict_for_logs_has_all_of_it():
    told = replace(STATS, workers=(HERE, THERE), stages_skipped={"map(f): ValueError": 5}).as_dict()
    assert (told["seconds"], told["waiting_share"], told["workers_waiting_share"]) == (10, 0.1, 0.2)
    assert told["skipped"] == {"decode: DecodeError": 1000, "map(f): ValueError": 7}
    assert (told["lost"], told["restarts"]) == ({"tcp://cpu1:7880": 75.0}, 3)
    assert told["verdict"].startswith("no answer from tcp://cpu1:7880")
    assert [worker["pid"] for worker in told["workers"]] == [100, 0]
    assert told["workers"][0]["stages"][0]["name"] == "tarfile_to_samples()"
    assert [stage["elements"] for stage in told["stages"]] == [4000, 2000, 0]
