import dataclasses
import json
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import mpwds
from mpwds import DataPipeline, ShardWriter, WebDataset
from mpwds.errors import QuarantineFull
from mpwds.pipeline.quarantine import quarantine
from mpwds.pipeline.stages.fields import map_dict


@pytest.fixture
def path(tmp_path):
    return tmp_path / "bad.jsonl"


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def odd_are_bad(number):
    if int(number) % 2:
        raise ValueError(f"{number} is odd")
    return number


def test_bad_samples_are_left_out_and_written_down(path, shards):
    dataset = WebDataset(shards).map_dict(cls=odd_are_bad, handler=quarantine(path))
    assert [int(sample["cls"]) for sample in dataset] == list(range(0, 20, 2))
    first = records(path)[0]
    assert "odd_are_bad" in first.pop("traceback")
    assert first.pop("time") > 0
    url = shards.replace("{000..005}", "000")
    place = {"url": url, "key": "0001", "offset": 2048, "place": f'sample "0001" of {url}'}
    error = {"type": "ValueError", "message": "b'1' is odd", "member": None, "address": None}
    stage = "map_dict(cls=odd_are_bad, handler=Quarantine(...))"
    assert first == {**place, **error, "stage": stage, "rank": 0, "worker": 0, "pid": os.getpid()}


def test_samples_without_a_shard_that_share_a_key_count_each_once(path):
    dataset = DataPipeline([{"__key__": "a", "cls": number} for number in range(8)])
    dataset = dataset.map_dict(cls=odd_are_bad, handler=quarantine(path, budget=3)).repeat(2)
    with pytest.raises(QuarantineFull, match="4 bad"):
        list(dataset)
    assert [record["message"] for record in records(path)] == [f"{number} is odd" for number in (1, 3, 5, 7)]
    assert len({record["address"] for record in records(path)}) == 4


def test_the_member_is_named_where_the_error_names_it(path):
    samples = [{"__key__": "a", "cls": b"x"}]
    assert list(DataPipeline(samples).decode(handler=quarantine(path))) == []
    assert records(path)[0]["member"] == "cls"


@pytest.mark.parametrize("value", [{1}, b"cls", np.zeros(2), object(), ["cls"]])
def test_an_exception_or_a_sample_with_any_attribute_is_written_down(path, value):
    def refuse(sample):
        error = ValueError("bad")
        error.field = error.incident = value
        raise error

    samples = [{"__key__": value}, {"__key__": "b"}]
    assert list(DataPipeline(samples).map(refuse, handler=quarantine(path))) == []
    first, second = records(path)
    assert (first["message"], first["member"], second["key"]) == ("bad", None, "b")


SHORT_WRITE = """
import resource, signal, sys
from mpwds.pipeline.quarantine import quarantine
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
handler = quarantine(sys.argv[1])
try:
    handler(ValueError("x" * 5000))
except OSError as error:
    print("full:", error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
handler(ValueError("there is room again"))
"""


def test_a_record_that_did_not_fit_is_an_error_and_spoils_no_other(path):
    done = subprocess.run([sys.executable, "-B", "-c", SHORT_WRITE, path], capture_output=True, text=True)
    assert done.stdout.startswith("full: ["), done.stderr
    assert [each["message"] for each in records(path)] == ["there is room again"]


def test_a_record_follows_one_that_a_kill_cut_short_on_a_line_of_its_own(path):
    path.write_text('{"url": nu')
    quarantine(path)(ValueError("bad"))
    cut, whole = path.read_text().splitlines()
    assert cut == '{"url": nu'
    assert json.loads(whole)["message"] == "bad"


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    code: int


class UnprintableError(Exception):
    def __str__(self):
        return self.reason


@pytest.mark.parametrize("error", [FrozenError(3), UnprintableError()])
def test_an_exception_that_cannot_be_changed_or_printed_is_written_down(path, error):
    def refuse(sample):
        raise error

    assert list(DataPipeline([1]).map(refuse, handler=quarantine(path))) == []
    assert records(path)[0]["type"] == type(error).__name__
    with pytest.raises(type(error)):
        list(DataPipeline([1]).map(refuse))


def test_a_budget_of_samples_is_spent_by_one_more(path):
    stream = iter(DataPipeline(range(20)).map(odd_are_bad, handler=quarantine(path, budget=3)))
    assert [next(stream) for _ in range(4)] == [0, 2, 4, 6]
    with pytest.raises(QuarantineFull, match="4 bad samples are above the budget of 3: .*bad.js") as caught:
        next(stream)
    assert (caught.value.path, caught.value.count, str(caught.value.__cause__)) == (str(path), 4, "7 is odd")
    assert len(records(path)) == 4


@pytest.mark.parametrize(("budget", "numbers"), [(None, range(1000)), (1.0, [1] * 50), (0.1, [1, 2])])
def test_a_budget_may_have_no_end_be_everything_or_one_sample_among_few(path, budget, numbers):
    made = list(DataPipeline(numbers).map(odd_are_bad, handler=quarantine(path, budget=budget)))
    assert made == [number for number in numbers if number % 2 == 0]


def test_a_fraction_is_of_the_samples_seen(path):
    def bad_from(first):
        def check(number):
            if number >= first:
                raise ValueError("bad")
            return number

        return DataPipeline(range(200)).map(check, handler=quarantine(path, budget=0.25))

    assert len(list(bad_from(150))) == 150
    few = DataPipeline([1, 2, 3]).map(odd_are_bad, handler=quarantine(path, budget=0.1))
    for dataset, bad in ((bad_from(133), "45 .* 178"), (bad_from(29), "11 .* 40"), (few, "2 .* 3")):
        with pytest.raises(QuarantineFull, match=f"{bad} samples are above the budget of 0.* of them"):
            list(dataset)


def test_stages_share_file_and_budget(path):
    handler = quarantine(path, budget=4)
    dataset = DataPipeline([{"n": n} for n in range(5)]).map_dict(n=odd_are_bad, handler=handler)
    assert list(dataset.to_tuple("m", handler=handler).slice(0)) == []
    with pytest.raises(QuarantineFull, match="5 bad samples"):
        list(dataset.to_tuple("m", handler=handler))


def test_a_sample_that_is_bad_in_each_epoch_has_one_record(path):
    dataset = DataPipeline(range(6)).map(odd_are_bad, handler=quarantine(path, budget=3))
    for _ in range(3):
        assert list(dataset) == [0, 2, 4]
    assert [record["place"] for record in records(path)] == ["element 1", "element 3", "element 5"]


@pytest.mark.parametrize(("budget", "recorded"), [(3, 6), (None, 3)])
def test_records_of_an_earlier_run_stay_and_do_not_count(path, budget, recorded):
    for _ in range(2):
        assert len(list(DataPipeline(range(6)).map(odd_are_bad, handler=quarantine(path, budget)))) == 3
    assert len(records(path)) == recorded


def test_a_shard_that_cannot_be_read_is_written_down_with_its_url(path, shards, tmp_path):
    damaged = tmp_path / "damaged.tar"
    with open(shards.replace("{000..005}", "000"), "rb") as whole:
        damaged.write_bytes(whole.read()[:3000])
    intact = shards.replace("{000..005}", "003")
    dataset = WebDataset([str(damaged), intact], handler=quarantine(path))
    assert len(list(dataset)) >= 7
    (record,) = records(path)
    assert record["url"] == str(damaged)
    assert record["type"] == "ShardError"
    assert isinstance(record["offset"], int)


def test_a_copy_counts_for_itself_and_sees_the_file(path):
    handler = quarantine(path, budget=2)
    for copy in (pickle.loads(pickle.dumps(handler)), cloudpickle.loads(cloudpickle.dumps(handler))):
        assert copy(ValueError("bad"))
    with pytest.raises(QuarantineFull, match="3 bad samples"):
        handler(ValueError("bad"))


def test_a_copy_counts_what_was_bad_before_it_was_made(path):
    handler = quarantine(path, budget=1)
    handler(ValueError("bad"))
    with pytest.raises(QuarantineFull, match="2 bad samples"):
        pickle.loads(pickle.dumps(handler))(ValueError("worse"))


def spend(handler, number):
    random.seed(number)
    stage = map_dict(n=odd_are_bad, handler=handler)
    samples = [{"__key__": f"{number}/{n}" + "x" * random.randrange(5000), "n": n} for n in range(1, 100, 2)]
    assert list(stage(samples)) == []


def test_processes_that_write_one_file_write_whole_lines(path):
    handler = quarantine(path, budget=200)
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=spend, args=(handler, number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert len({record["key"] for record in records(path)}) == len(records(path)) == 200


def test_workers_share_a_budget_of_samples(path):
    def bad(number):
        raise ValueError("bad")

    dataset = DataPipeline(range(40)).map(bad, handler=quarantine(path, budget=9)).batched(1)
    with (
        mpwds.MultiLoader(dataset, workers=2, start_method="fork") as loader,
        pytest.raises(QuarantineFull, match="budget of 9") as caught,
    ):
        list(loader)
    assert caught.value.path == str(path)
    assert {record["worker"] for record in records(path)} <= {0, 1}
    assert len(records(path)) <= 11


def replace(path):
    other = path.with_name("other")
    other.write_text("x" * 100_000 + "\n")
    other.replace(path)


@pytest.mark.parametrize(
    ("remove", "before"), [(Path.unlink, 0), (lambda path: path.write_text(""), 0), (replace, 1)]
)
def test_a_file_that_is_gone_is_begun_again_with_all_that_is_bad_from_then_on(path, remove, before):
    dataset = DataPipeline(range(6)).map(odd_are_bad, handler=quarantine(path, budget=3))
    for number in range(2):
        assert list(dataset) == [0, 2, 4]  # what is bad again does not count again
        lines = path.read_text().splitlines()[before if number else 0 :]
        assert [json.loads(line)["place"] for line in lines] == ["element 1", "element 3", "element 5"]
        remove(path)


def test_a_copy_knows_that_its_file_is_gone(path):
    handler = quarantine(path, budget=1)
    handler(ValueError("bad"))
    copy = pickle.loads(pickle.dumps(quarantine(path, budget=1)))
    spare = path.with_name("spare")  # so that the file's number is not given out again
    os.link(path, spare)
    path.unlink()
    quarantine(path, budget=None)(ValueError("of another process " * 1000))
    with pytest.raises(QuarantineFull, match="2 bad samples"):
        copy(ValueError("worse"))
    assert len(records(path)) == 2


def test_a_fraction_is_of_samples_where_shards_are_read(path, tmp_path):
    with ShardWriter(f"{tmp_path}/x-%d.tar", maxcount=500, verbose=0) as sink:
        for number in range(1000):
            sink.write({"__key__": f"{number:04}", "txt": "x"})

    def choose(name):
        if name in ("0003.txt", "0503.txt"):
            raise ValueError("a bad name")
        return True

    def read(budget):
        handler = quarantine(path, budget=budget)
        return list(WebDataset(f"{tmp_path}/x-{{0..1}}.tar", select_files=choose, handler=handler))

    assert len(read(0.01)) == 998
    with pytest.raises(QuarantineFull, match="2 bad ones among 998 samples"):
        read(0.001)
