import pytest
import webdataset.handlers

from mpwds import DataPipeline, WebDataset
from mpwds.pipeline import handlers
from mpwds.pipeline.error_context import Incident
from mpwds.pipeline.stages.map import map
from mpwds.pipeline.stages.select import select


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "name", ["ignore_and_continue", "warn_and_continue", "ignore_and_stop", "warn_and_stop"]
)
def test_answers_what_webdatasets_handler_of_that_name_does(name, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    error = ValueError("bad")
    assert getattr(handlers, name)(error) is getattr(webdataset.handlers, name)(error)


def test_a_handler_sees_shard_key_offset_and_stage(shards):
    seen = []

    def handler(error):
        seen.append(error.incident)
        return True

    def third_is_bad(sample):
        if sample["__key__"] == "0002":
            raise ValueError("bad")
        return sample

    assert len(list(WebDataset(shards).map(third_is_bad, handler=handler))) == 19
    (incident,) = seen
    url = shards.replace("{000..005}", "000")
    stage, place = "map(third_is_bad, handler=handler)", f'sample "0002" of {url}'
    assert incident == Incident(stage, place, url, "0002", 4096, None)


def first_above(row):
    return next(number for number in row if number > 3)


def batch_of_first(rows):
    return first_above(rows[0])


def test_a_handler_skips_an_element_for_which_a_function_raises_stop_iteration():
    rows = DataPipeline([[1, 5], [1], [7]])
    seen = []

    def skip(error):
        seen.append((type(error), type(error.__cause__)))
        return True

    assert list(rows.map(first_above, handler=skip)) == [5, 7]
    assert list(rows.select(first_above, handler=skip)) == [[1, 5], [7]]
    assert list(rows.batched(1, collation_fn=batch_of_first, handler=skip)) == [5, 7]
    assert seen == [(RuntimeError, StopIteration)] * 3


def test_an_error_raised_by_one_stages_handler_is_not_the_next_ones_to_handle():
    stages = map(int), select(bool, handlers.ignore_and_continue)
    with pytest.raises(ValueError, match="invalid literal"):
        list(DataPipeline(["x"], *stages))


@pytest.mark.parametrize(
    ("handler", "found", "what"),
    [(handlers.warn_and_continue, [1, 2], "left out"), (handlers.warn_and_stop, [1], "stopped")],
)
def test_a_warning_points_at_the_line_that_iterates_and_tells_the_place(handler, found, what):
    message = rf"^{what}: ValueError\(.*\), in map\(int, .*\), on element 1$"
    with pytest.warns(UserWarning, match=message) as caught:
        assert list(DataPipeline(["1", "x", "2"], map(int, handler))) == found
    assert caught[0].filename == __file__
