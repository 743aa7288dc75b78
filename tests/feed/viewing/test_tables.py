"""What a terminal shows of figures and batches."""

import io

import numpy as np
from rich.console import Console

from mpwds.cli.feed import tables
from mpwds.feed.report import feed_report, lost
from mpwds.viewing.pictures import pictures
from mpwds.viewing.tensors import TensorStatistics
from tests.feed.viewing.statuses import client, reading, status, worker


def shown(content, width=120, **options):
    console = Console(file=io.StringIO(), width=width, **options)
    console.print(content)
    return console.file.getvalue()


def monitored(*statuses, most_workers=None, width=120):
    return shown(tables.monitor(feed_report(None, statuses), "the feed", most_workers), width)


WORKERS = [worker(number, reading(100, batches=1000)) for number in range(8)]


def test_a_report_on_a_feed_is_whole_in_eighty_columns():
    stages = {**WORKERS[0]["counters"]["stages"], "to_tuple()": [10**7, 9, False, 0]}
    first = worker(0, reading(100, batches=1000, stages=stages, skipped={"decode: DecodeError": 1234}))
    text = monitored(status(100, [first, *WORKERS[1:]], dropped={"replayed": 3}), width=80)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for what in (
        "on cpu1 (pid 7), mpwds 0.1.0, 2 workers, up 1 min 40 s",
        "80.0 batches/s",
        "80.0 MB/s",
        "decode('rgb8')",
        "70%",
        "gpu1:77",
        "10.0.0.7",
        "running",
        "25%",
        "left out: 1,234 in decode: DecodeError",
        "dropped messages: 3, replayed",
    ):
        assert what in text
    assert "to_tuple" not in text  # it takes next to nothing
    assert "servers" not in text  # there is one


def test_the_largest_share_is_bold_and_a_bar_in_eighths_and_a_lost_servers_verdict_is_red():
    stages = {"decode('rgb8')": [70 * 10**9, 9, False, 0], "map(f)": [10 * 10**9, 9, False, 0]}
    last = status(100, [worker(0, reading(100, batches=9, stages=stages))])
    bold_red = []
    for found in (last, lost("tcp://cpu1:7880", last, 75)):
        drawn = tables.monitor(feed_report(None, [found]), "the feed")
        text = shown(drawn, force_terminal=True, color_system="standard")
        bold_red.append([line for line in text.splitlines() if "\x1b[1;31m" in line and "▸" in line])
        if found is last:
            largest, *others = (line for line in text.splitlines() if "█" in line)
    assert [len(lines) for lines in bold_red] == [0, 1]
    assert "decode" in largest
    assert "\x1b[1m" in largest
    assert not any("\x1b[1m" in line for line in others)
    assert "78%" in largest
    assert "m" + "█" * 18 + "▋\x1b" in largest
    assert "m" + "·" * 5 + "\x1b" in largest


def test_several_servers_are_a_table_and_one_that_is_lost_is_no_longer_draining():
    draining = status(100, WORKERS, url="tcp://cpu2:7880", server="b2", draining=True)
    several = monitored(status(100, WORKERS), draining)
    assert several.count("cpu2:7880") == 1 + len(WORKERS) + 1
    assert "draining" in several
    text = monitored(status(100, WORKERS), lost("tcp://cpu2:7880", draining, 75))
    assert "lost for 1 min 15 s" in text
    assert "draining" not in text


def test_workers_that_do_not_fit_are_counted():
    text = monitored(status(100, WORKERS), most_workers=3)
    assert text.count("running") == 3
    assert "and 5 more" in text


def test_workers_are_left_out_until_a_terminal_shows_the_rest():
    place = Console(width=120, file=io.StringIO())
    found = feed_report(None, [status(100, WORKERS)])
    for lines in (27, 30, 100):
        drawn = place.render_lines(tables.fitting(found, "the feed", place, lines))
        assert len(drawn) <= lines
        assert "10.0.0.7" in "".join(segment.text for line in drawn for segment in line)  # the client
    assert len(drawn) == len(place.render_lines(tables.monitor(found, "the feed")))


def test_nothing_that_a_peer_says_controls_the_terminal():
    evil = "\x1b]0;owned\x07\x1b[2J\r[bold]"
    everywhere = status(
        100,
        [
            worker(
                0,
                reading(100, batches=9, skipped={evil: 1}, stages={evil: [10**9, 9, False, 0]}),
                client=evil,
            )
        ],
        [client(evil, group=evil, address=evil)],
        host=evil,
        dataset=[evil],
        dropped={evil: 1},
    )
    text = monitored(everywhere)
    assert "�" in text
    assert "[bold]" in text
    batch = {evil: np.zeros((2, 8, 8, 3), np.uint8), "label": [evil] * 2}
    statistics = TensorStatistics()
    statistics.add(batch)
    text += shown(tables.tensors(statistics.read()))
    for content in (batch, {"txt": [evil]}):
        text += shown(tables.batch_pictures(pictures(content), 80, colour=False))
    text += shown(tables.batch_pictures(pictures(batch), 80, colour=True))
    assert not {"\x1b", "\x07", "\r"} & set(text)


def test_a_histogram_is_one_line_in_which_the_rarest_shows():
    statistics = TensorStatistics()
    statistics.add(np.repeat([0, 1, 3], [1000, 500, 1]))
    (tensor,) = statistics.read()
    assert tables.sparkline(tensor) == "█▄ ▁"


def test_a_histogram_of_many_bins_has_half_as_many_characters():
    statistics = TensorStatistics()
    statistics.add(np.repeat([0.0, 1.0], [3, 1]))
    (tensor,) = statistics.read()
    line = tables.sparkline(tensor)
    assert len(line) == len(tensor.filled_bins) // 2 <= 12
    assert (line[0], line[-1], set(line[1:-1])) == ("█", "▃", {" "})


def test_the_terminal_shows_as_many_pictures_as_fit_in_three_lines_with_the_beginnings_of_labels():
    batch = pictures({"image": np.full((30, 8, 8, 3), 7, np.uint8), "label": ["a label of many words"] * 30})
    for width, count in ((16, 3), (40, 6), (1000, 24)):
        text = shown(tables.batch_pictures(batch, width, colour=True), 1000)
        assert text.count("a label of many ") == count
        assert "words" not in text


def test_pictures_are_named_by_their_labels_where_there_is_no_colour_and_texts_are_a_table():
    def texts_of(batch):
        return shown(tables.batch_pictures(pictures(batch), 80, colour=False)).split()

    images = np.zeros((3, 8, 8, 3), np.uint8)
    assert texts_of({"image": images, "label": ["a", "b", "c"]}) == ["labels:", "a,", "b,", "c"]
    assert texts_of({"image": images}) == ["3", "samples", "without", "labels"]
    assert " ".join(texts_of({"x": np.zeros(3)})).startswith("nothing in this batch can be shown")
    found = texts_of({"txt": [f"text{number}" for number in range(30)]})
    assert found[:2] == ["label", "text"]
    assert [word for word in found if word.startswith("text")][1:] == [f"text{n}" for n in range(24)]


def test_a_character_is_two_pixels_of_which_either_may_be_outside_of_the_picture():
    image = np.full((1, 6, 16, 3), (200, 0, 0), np.uint8)
    image[0, 5] = (0, 100, 0)
    drawn = tables.batch_pictures(pictures({"image": image}), 80, colour=True)
    lines = [line.strip() for line in shown(drawn).splitlines()]
    assert lines == ["", "", "▄" * 16, *["▀" * 16] * 3, "", "", ""]
    lower, *whole, upper = shown(drawn, force_terminal=True, color_system="truecolor").splitlines()[2:6]
    assert "38;2;200;0;0" in lower
    assert all("38;2;200;0;0;48;2;200;0;0" in line for line in whole)
    assert "38;2;0;100;0" in upper
    assert "48;2" not in lower + upper
