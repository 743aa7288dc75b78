"""A RemoteLoader delivers what a MultiLoader with as many workers delivers."""

import copy
import errno
import itertools
import json
import pickle
import warnings
from collections import Counter

import numpy as np
import pytest

import mpwds
from mpwds.feed import wire
from mpwds.feed.server import worker_relay
from mpwds.loader.launching.forkserver import ServerGone
from mpwds.loader.worker import elements
from tests.feed.serving import LENGTH, bits, delivered, large, locally, numbers, served
from tests.loader.faults.processes import wait_until
from tests.warned import files_of

pytestmark = pytest.mark.usefixtures("nothing_left")

WAYS = {
    "tcp": ("tcp://127.0.0.1:0", {"shared_memory": False}),
    "tcp on one machine": ("tcp://127.0.0.1:0", {}),
    "ipc": ("ipc", {}),
    "ipc without shared memory": ("ipc", {"shared_memory": False}),
}


@pytest.fixture(params=WAYS)
def way(request, tmp_path):
    url, options = WAYS[request.param]
    return (f"ipc://{tmp_path}/feed" if url == "ipc" else url), options


@pytest.mark.parametrize("dataset", [numbers(), large()], ids=["small", "large"])
def test_batches_and_order_are_those_of_local_workers(way, dataset):
    url, options = way
    expected = locally(dataset, 2, epochs=3)
    with served(dataset, url) as server, mpwds.RemoteLoader(server.url, output="numpy", **options) as loader:
        assert [delivered(loader) for _ in range(3)] == expected


def test_a_global_order_is_that_of_local_workers():
    dataset = mpwds.IndexedDataset(range(90), "global").batched(8)
    with served(dataset) as server, mpwds.RemoteLoader(server.url, output="numpy") as loader:
        epochs = [delivered(loader) for _ in range(2)]
        assert epochs == locally(dataset, 2, epochs=2)
        assert len(loader) == 12


def test_several_servers_are_one_loader():
    dataset = large()
    with served(dataset, workers=2) as one, served(dataset, workers=1) as other:
        with mpwds.RemoteLoader([one.url, other.url], output="numpy") as loader:
            assert loader.workers == 3
            assert delivered(loader) == locally(dataset, 3)[0]


def test_workers_without_a_shard_are_idle_with_one_warning(tmp_path):
    with mpwds.TarWriter(str(tmp_path / "0.tar")) as archive:
        archive.write({"__key__": "0", "cls": 7})
    dataset = mpwds.WebDataset(str(tmp_path / "0.tar")).decode().to_tuple("cls")
    with served(dataset, workers=3) as server, mpwds.RemoteLoader(server.url, output="numpy") as loader:
        with pytest.warns(RuntimeWarning, match="fewer shards than workers") as warned:
            assert [list(loader), list(loader)] == [[(7,)], [(7,)]]
        assert files_of(warned) == [__file__]


@pytest.mark.parametrize("options", [{}, {"streams": 128}], ids=["workers", "streams"])
def test_one_question_tells_the_lengths_of_all_ranks(options, monkeypatch):
    pack, sent = wire.pack, Counter()
    monkeypatch.setattr(wire, "pack", lambda kind, **fields: sent.update([kind]) or pack(kind, **fields))
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "64")
    dataset = mpwds.DataPipeline(range(1000)).batched(4)
    with served(dataset) as server:
        with mpwds.RemoteLoader(server.url, workers=2, even="pad", output="numpy", **options) as loader:
            for epoch in range(1, 3):
                assert sum(1 for _ in loader) == 4
                assert sent[wire.COUNT] == sent[wire.COUNTED] == epoch


def test_the_lengths_of_very_many_ranks_are_not_known(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "40000")
    with served(numbers()) as server, mpwds.RemoteLoader(server.url, workers=2) as loader:
        with pytest.raises(TypeError, match="the job has 80,000 workers, and counts of 65,536 fit"):
            len(loader)


def test_the_seed_of_the_trainer_counts():
    with served(numbers()) as server, mpwds.RemoteLoader(server.url, output="numpy", seed=5) as loader:
        assert delivered(loader) == locally(numbers(), 2, seed=5)[0] != locally(numbers(), 2)[0]


def test_batches_are_tensors_by_default():
    import torch

    with served(large()) as server, mpwds.RemoteLoader(server.url) as loader:
        images, labels = next(iter(loader))
        assert isinstance(images, torch.Tensor)
        assert images.dtype == torch.float32
        assert labels.shape == (4,)


@pytest.mark.parametrize("there", ["remote", "local"])
def test_a_state_continues_the_epoch_here_and_in_a_multi_loader(there):
    dataset = large()
    whole = locally(dataset, 2, epochs=2)
    with served(dataset) as server:
        for count in (0, 5, 24):
            with mpwds.RemoteLoader(server.url, output="numpy") as loader:
                begun = [bits(batch) for batch in itertools.islice(loader, count)]
                state = json.loads(json.dumps(loader.state_dict()))
            other = (
                mpwds.RemoteLoader(server.url, output="numpy")
                if there == "remote"
                else mpwds.MultiLoader(dataset, workers=2, output="numpy", start_method="fork")
            )
            with other, warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".* had nothing left")  # of 24 batches
                other.load_state_dict(state)
                assert begun + delivered(other) == whole[0]
                assert delivered(other) == whole[1]


class Count:
    """Counts; its state holds where it is in a list, or in something else."""

    def __init__(self, holding=list):
        self.at, self.holding = 0, holding

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == 12:
            raise StopIteration
        self.at += 1
        return self.at

    def state_dict(self):
        return {"at": self.holding([self.at])}

    def load_state_dict(self, state):
        [self.at] = state["at"]


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (lambda: Count(set), "the pipeline's state holds objects that only pickle can send"),
        (mpwds.DataPipeline(range(1, 13)).compose(iter), r"compose\(iter\) gives elements without addresses"),
    ],
    ids=["only for pickle", "without state"],
)
def test_where_no_state_can_be_sent_the_epoch_is_run_again_and_a_warning_says_why(
    monkeypatch, dataset, reason
):
    monkeypatch.setattr(elements, "STATE_EVERY_S", 0)
    monkeypatch.setattr(elements, "STATE_SHARE", float("inf"))
    with served(dataset, workers=1, start_method="fork") as server:
        with mpwds.RemoteLoader(server.url, output="numpy") as loader:
            begun = list(itertools.islice(loader, 5))
            state = loader.state_dict()
        with mpwds.RemoteLoader(server.url, output="numpy") as loader:
            loader.load_state_dict(state)
            with pytest.warns(UserWarning, match=f"{reason}: the epoch is continued by running it again"):
                assert begun + list(loader) == list(range(1, 13))


def test_a_dataset_with_a_state_of_its_own_is_continued_without_a_warning():
    with served(lambda: Count(), workers=1, start_method="fork") as server:
        with mpwds.RemoteLoader(server.url, output="numpy") as loader:
            begun = list(itertools.islice(loader, 5))
            state = loader.state_dict()
        assert state["streams"][0]["states"]
        with mpwds.RemoteLoader(server.url, output="numpy") as loader, warnings.catch_warnings():
            warnings.simplefilter("error")
            loader.load_state_dict(state)
            assert begun + list(loader) == list(range(1, 13))


@pytest.mark.filterwarnings("ignore:an epoch that was left early failed")
def test_a_resume_that_fails_leaves_the_loaded_state(tmp_path):
    away = tmp_path / "away"

    def read(number):
        if away.exists():
            raise OSError("the file server is away")
        return number

    def rows_of(batches):
        return [int(number) for batch in batches for number in batch]

    with served(mpwds.DataPipeline(range(60)).map(read).batched(5)) as server:
        with mpwds.RemoteLoader(server.url, output="numpy") as loader:
            pipeline = loader.unbatched().shuffle(20).batched(7)
            whole = rows_of(pipeline)
            loader.set_epoch(0)
            first = rows_of(itertools.islice(pipeline, 3))
            state = json.loads(json.dumps(pipeline.state_dict()))
            away.touch()
            pipeline.load_state_dict(state)
            with pytest.raises(OSError, match="the file server is away"):
                rows_of(pipeline)
            assert json.loads(json.dumps(pipeline.state_dict())) == state
            away.unlink()
            assert first + rows_of(pipeline) == whole


def test_rebatched_and_stages_behind_the_loader_are_those_of_local_workers():
    def behind(loader):
        with loader:
            stages = loader.unbatched().shuffle(20).batched(5)
            return [delivered(loader.rebatched(7, shuffle=30, seed=1)), delivered(stages)]

    with served(large()) as server:
        remote = behind(mpwds.RemoteLoader(server.url, output="numpy"))
    assert remote == behind(mpwds.MultiLoader(large(), workers=2, output="numpy", start_method="fork"))


def test_an_epoch_that_is_left_early_does_not_disturb_the_next():
    dataset = large(length=400)
    expected = locally(dataset, 2, epochs=4)
    with served(dataset) as server, mpwds.RemoteLoader(server.url, output="numpy") as loader:
        for epoch in range(3):
            assert [bits(b) for b in itertools.islice(loader, epoch)] == expected[epoch][:epoch]
        assert delivered(loader) == expected[3]


def test_length_comes_from_the_server():
    with served(mpwds.DataPipeline(range(50)).batched(4)) as server:
        with mpwds.RemoteLoader(server.url) as loader:
            assert len(loader) == 14
    with served(numbers()) as server, mpwds.RemoteLoader(server.url) as loader:
        with pytest.raises(TypeError, match=r"not known: map\(noisy\) may drop or add elements"):
            len(loader)


def test_statistics_name_the_stages_that_ran_on_the_server():
    with served(large()) as server, mpwds.RemoteLoader(server.url, output="numpy") as loader:
        delivered(loader)
        stats = loader.stats()
    assert stats.batches == LENGTH // 4
    assert {"map(image)", "shuffle(16)", "batched(4)"} <= {stage.name for stage in stats.stages}
    assert sum(worker.batches for worker in stats.workers) == LENGTH // 4


def test_batches_that_the_program_keeps_stay_as_they_are(way):
    url, options = way
    with served(large(), url) as server, mpwds.RemoteLoader(server.url, output="numpy", **options) as loader:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            kept = list(loader)
        are_copied = any("more than 3 batches of one worker are kept" in str(each.message) for each in told)
        assert are_copied == options.get("shared_memory", True)
        seen = [bits(batch) for batch in kept]
    assert seen == locally(large(), 2)[0]
    assert [bits(batch) for batch in kept] == seen


def test_an_error_of_a_stage_arrives_with_its_type_and_place():
    def fail(number):
        if number == 50:
            raise LookupError("no fifty", 50)
        return number

    with served(mpwds.DataPipeline(range(LENGTH)).map(fail).batched(4)) as server:
        with mpwds.RemoteLoader(server.url, output="numpy") as loader:
            with pytest.raises(LookupError, match="no fifty") as raised:
                list(loader)
            assert raised.value.args == ("no fifty", 50)
            assert any("map(fail)" in note for note in raised.value.__notes__)
            assert "def fail" in str(raised.value.__cause__) or "fail" in str(raised.value.__cause__)
            assert len(next(iter(loader))) == 4  # and the next epoch begins


def test_an_error_of_a_file_names_it():
    def fail(number):
        return open(f"/nowhere/{number}")

    with served(mpwds.DataPipeline(range(8)).map(fail)) as server, mpwds.RemoteLoader(server.url) as loader:
        with pytest.raises(FileNotFoundError) as raised:
            list(loader)
        assert raised.value.filename == "/nowhere/0"


class Own(Exception):
    pass


def test_an_exception_of_the_users_own_class_arrives_as_text():
    def fail(number):
        raise Own("mine")

    with served(mpwds.DataPipeline(range(8)).map(fail)) as server, mpwds.RemoteLoader(server.url) as loader:
        with pytest.raises(mpwds.MpwdsError, match="Own: mine"):
            list(loader)


def test_what_only_pickle_can_send_is_an_error_that_names_it():
    with served(mpwds.DataPipeline(range(8)).map(lambda n: {"a": [n, object()]})) as server:
        with mpwds.RemoteLoader(server.url) as loader:
            with pytest.raises(TypeError, match=r'\["a"\]\[1\] is a object') as raised:
                list(loader)
            assert "a server sends nothing pickled" in "".join(raised.value.__notes__)
            assert "allow_pickle" not in str(raised.value)  # no option of servers
            assert "convert it to arrays, numbers, text" in str(raised.value)


def test_a_plain_dataset_is_served_too():
    def batches():
        for number in range(6):
            yield np.full(3, number)

    with served(batches, workers=1) as server, mpwds.RemoteLoader(server.url, output="numpy") as loader:
        assert [batch.tolist() for batch in loader] == [[number] * 3 for number in range(6)]


def test_local_and_remote_workers_make_one_epoch_together():
    dataset = large()
    with served(dataset) as server:
        with mpwds.MultiLoader(dataset, workers=1, remote=server.url, output="numpy") as loader:
            assert loader.workers == 3
            assert [delivered(loader) for _ in range(2)] == locally(dataset, 3, epochs=2)
            assert len(loader._group.pids) == 1  # of this machine


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"members": 2}, "members= and max_lag= belong to a group="),
        ({"max_lag": 2.0}, "members= and max_lag= belong to a group="),
        ({"members": 0, "group": "g"}, "members must be at least 1"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"max_batch_bytes": 0}, "max_batch_bytes must be at least 1"),
        ({"on_server_loss": "stay"}, "on_server_loss must be"),
        ({"server_timeout": -1}, "timeout must be"),
        ({"max_lag": -1, "group": "g"}, "timeout must be"),
        ({"heartbeat_timeout": 0.1}, "heartbeat_timeout must be at least 2 seconds"),
        ({"min_servers": 3}, "min_servers=3, and there are 2 at the most"),
        ({"min_servers": 2, "workers": 1}, "min_servers=2 need as many workers=, got 1"),
        ({"workers": 9000}, "a server has up to 4096 workers, got 9000"),
        ({"group": 300 * "x"}, "group= is a short line of text"),
        ({"group": "two\nlines"}, "group= is a short line of text"),
        ({"streams": 4, "group": "g"}, "streams= does not work with group="),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_connected(options, why):
    with pytest.raises(ValueError, match=why):
        mpwds.RemoteLoader(**{"urls": ["tcp://127.0.0.1:9", "tcp://127.0.0.1:10"], **options})


def test_a_loader_that_cannot_be_made_leaves_its_servers():
    with served(numbers()) as server:
        with pytest.raises(ValueError, match="output"):
            mpwds.RemoteLoader(server.url, output="pandas")
        wait_until(lambda: not server.status()["clients"], "the server to hear that it left")
        with mpwds.RemoteLoader(server.url, workers=1) as loader:
            assert str(loader).startswith(f"RemoteLoader({server.url!r}, workers=1)")


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_batch_that_is_too_large_is_refused_before_it_takes_memory(shared_memory):
    with served(large()) as server:
        options = {"max_batch_bytes": 100_000, "shared_memory": shared_memory}
        with mpwds.RemoteLoader(server.url, output="numpy", **options) as loader:
            with pytest.raises(
                mpwds.MpwdsError, match=r"a batch of 2\d\d kB: raise max_batch_bytes= \(100 kB\)"
            ):
                list(loader)


@pytest.mark.filterwarnings("ignore:the server .* is", "ignore:.* cannot run. it is gone")
def test_a_worker_that_cannot_start_for_now_starts_later(monkeypatch):
    start = worker_relay._ServedWorker
    failures = [OSError(errno.ENOMEM, "no memory"), ServerGone("it is gone")]

    def fail_at_first(*arguments):
        if failures:
            raise failures.pop()
        return start(*arguments)

    monkeypatch.setattr(worker_relay, "_ServedWorker", fail_at_first)
    with served(numbers(), workers=1) as server:
        with mpwds.RemoteLoader(server.url, output="numpy") as loader:
            with pytest.warns(RuntimeWarning, match="worker 0 cannot run: .*no memory"):
                assert delivered(loader) == locally(numbers(), 1)[0]


COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda it: pickle.loads(pickle.dumps(it))}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("local", [0, 1])
def test_a_copy_needs_no_workers_before_its_first_epoch(way, local):
    with served(numbers()) as server:
        options = {"output": "numpy", "timeout": 600}
        original = (
            mpwds.MultiLoader(numbers(), local, remote=server.url, start_method="fork", **options)
            if local
            else mpwds.RemoteLoader(server.url, **options)
        )
        with original, COPIES[way](original) as other:
            assert len(server.status()["clients"]) == 1
            expected = delivered(original)
            original.close()
            assert other.workers == original.workers == 2 + local
            assert delivered(other) == expected


def test_a_closed_loader_connects_again_when_it_is_iterated():
    with served(numbers()) as server, mpwds.RemoteLoader(server.url, output="numpy") as loader:
        first = delivered(loader)
        loader.close()
        loader.set_epoch(0)
        assert delivered(loader) == first
