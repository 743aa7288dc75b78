import os
import pickle
import time
import warnings
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.errors import ShardError
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.handlers import ignore_and_continue, ignore_and_stop
from mpwds.pipeline.sources.samples import TarSamples, tarfile_samples, tarfile_to_samples
from mpwds.pipeline.sources.shards import ResampledShards, ShardList, SimpleShardList, single_node_only
from mpwds.pipeline.sources.webdataset import WebDataset
from mpwds.storage.streams.http import pools
from tests.pipeline.conftest import put_on_web
from tests.pipeline.places import read_everywhere
from tests.storage.conftest import Web


def classes(samples):
    return [int(sample["cls"]) for sample in samples]


WAYS = [
    *("::".join, iter, lambda urls: [*map(Path, urls)], SimpleShardList, ShardList),
    *(lambda urls: DataPipeline(SimpleShardList(urls)), lambda urls: {"datasets": [{"shards": urls}]}),
]


@pytest.mark.parametrize("given", WAYS)
def test_shards_are_given_in_many_ways(shards, given):
    urls = list(SimpleShardList(shards).urls)
    assert sorted(classes(WebDataset(given(urls)))) == list(range(20))


def test_it_can_refuse_several_nodes_as_webdataset_does(shards):
    dataset = WebDataset(shards, nodesplitter=single_node_only)
    assert len(list(dataset)) == 20
    with pytest.raises(ValueError, match="single_node_only, in worker .*, on node 1 of 2"):
        dataset.stream(Context(rank=1, world_size=2))


def test_without_splitters_every_worker_reads_everything(shards):
    dataset = WebDataset(shards, nodesplitter=None, workersplitter=None)
    context = Context(rank=1, world_size=2, worker=1, workers=2)
    assert classes(sample for _, sample in dataset.stream(context)) == list(range(20))


@pytest.mark.parametrize("options", [{"resampled": True}, {"mode": "resampled"}])
def test_resampled_it_draws_shards_without_end(shards, options):
    dataset = WebDataset(shards, **options)
    assert isinstance(dataset.stage(0), ResampledShards)
    assert len(list(islice(dataset, 60))) == 60


def test_resampled_with_epochs_continues_exactly(shards, continues):
    dataset = WebDataset(shards, resampled=True).shuffle(5).with_epoch(50)
    continues(lambda: dataset.stream(Context(epoch=2)), 23)


def test_it_may_be_repeated(shards):
    assert len(list(WebDataset(shards, repeat=2))) == 40
    assert len(list(islice(WebDataset(shards, repeat=True), 100))) == 100
    assert len(list(WebDataset(shards, repeat=True).slice(30))) == 30
    assert len(list(WebDataset(shards, repeat=3).batched(25, collation_fn=None))) == 3


def test_nothing_is_warned_of(shards):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for shardshuffle in (None, False, True, 100):
            WebDataset(shards, shardshuffle=shardshuffle)
            WebDataset(shards, resampled=True, shardshuffle=shardshuffle, detshuffle=True)


def test_members_are_renamed_and_selected(shards):
    chosen = {"select_files": lambda name: not name.endswith(".txt")}
    dataset = WebDataset(shards, rename_files=lambda name: name.replace(".cls", ".label"), **chosen)
    assert {tuple(sample) for sample in dataset} == {("__key__", "__url__", "__local_path__", "label")}
    stream = dataset.stream()
    assert all(stream.fetch(address) == sample for address, sample in dataset.stream())


def test_a_worker_without_a_shard_is_idle_with_a_warning(shards):
    first = shards.replace("{000..005}", "000")
    with pytest.warns(RuntimeWarning, match="there are fewer shards than workers"):
        assert list(WebDataset(first).stream(Context(worker=1, workers=2))) == []


EMPTY = "001"


@pytest.mark.parametrize(
    ("shard", "context"),
    [(EMPTY, Context()), (EMPTY, Context(worker=1, workers=2)), ("000", Context(rank=1, world_size=2))],
    ids=["no samples", "a worker's shard is empty", "a node has no shard"],
)
def test_no_samples_are_an_error_unless_it_is_allowed(shards, shard, context):
    given = [shards.replace("{000..005}", shard)] * (1 + context.worker)
    expected = f"no samples found in worker {context.worker} of .*, on node {context.rank}"
    with pytest.raises(ValueError, match=expected):
        list(WebDataset(given).stream(context))
    assert list(WebDataset(given, empty_check=False).stream(context)) == []


def test_a_restored_epoch_knows_that_there_were_samples(shards):
    first = WebDataset(shards).stream()
    list(islice(first, 20))
    second = WebDataset(shards).stream()
    second.load_state_dict(first.state_dict())
    assert list(second) == []


def test_a_shard_that_cannot_be_read_is_handled(shards, tmp_path):
    urls = list(SimpleShardList(shards).urls)
    (tmp_path / "bad.tar").write_bytes(Path(urls[0]).read_bytes()[:5000])
    several = [str(tmp_path / "bad.tar"), "/gone.tar", urls[3]]
    with pytest.raises(ShardError, match="bad.tar"):
        list(WebDataset(several))
    assert classes(WebDataset(several, handler=ignore_and_continue)) == [0, *range(6, 13)]
    assert classes(WebDataset(several, handler=ignore_and_stop)) == [0]


def test_a_stream_that_a_handler_ended_stays_ended(tmp_path, shards):
    (tmp_path / "bad.tar").write_bytes(b"x" * 512)
    several = WebDataset([str(tmp_path / "bad.tar"), *SimpleShardList(shards).urls], handler=ignore_and_stop)
    stream, resumed = several.stream(), several.stream()
    assert [list(stream), list(stream)] == [[], []]
    resumed.load_state_dict(stream.state_dict())
    assert list(resumed) == []


def test_a_member_twice_is_left_out_where_the_handler_goes_on(tar):
    url = tar([("a.cls", b"1"), ("b.cls", b"2"), ("b.cls", b"3"), ("b.txt", b"x"), ("c.cls", b"4")])
    incidents = []

    def keep(error):
        incidents.append(error.incident)
        return True

    dataset = WebDataset(url, handler=keep)
    assert classes(dataset) == [1, 2, 4]
    assert [(incident.member, incident.offset) for incident in incidents] == [("b.cls", 1024)]
    assert classes(WebDataset(url, handler=ignore_and_stop)) == [1]
    stream = dataset.stream()
    assert all(stream.fetch(address) == sample for address, sample in dataset.stream())


def test_shards_of_ones_own_list_are_shuffled_through_a_buffer(shards):
    dataset = WebDataset(SimpleShardList(shards), shardshuffle=True)
    first, second = classes(dataset), classes(dataset)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(20))


def test_the_seed_may_come_from_the_environment(monkeypatch, shards):
    def order(seed=None):
        return [sample["__key__"] for sample in WebDataset(shards, shardshuffle=True, seed=seed)]

    given = order(7)
    for text in ("7", "7e0"):
        monkeypatch.setenv("WDS_SEED", text)
        assert order() == given != order(0)
    monkeypatch.setenv("WDS_SEED", "seven")
    with pytest.raises(ValueError, match="WDS_SEED is 'seven', expected a whole number"):
        order()


def test_it_is_a_context_that_closes_its_parts(shards):
    closed = []

    class Source(list):
        def close(self):
            closed.append(1)

    with WebDataset(shards).shuffle(5).to_tuple("cls") as dataset:
        assert len(list(dataset)) == 20
    with DataPipeline(Source([1])):
        pass
    assert closed == [1]


def test_prints_as_it_was_written(tmp_path, monkeypatch):
    def mine(urls):
        return urls

    monkeypatch.chdir(tmp_path)
    for options in (
        "'x-{0..9}.tar', handler=ignore_and_continue, resampled=True, nodesplitter=mine",
        "'x.tar', repeat=2, shardshuffle=True, cache_dir='c', workersplitter=None, select_files=mine",
        "'x.tar', rename_files=mine, empty_check=False, max_decompressed_bytes=5",
        "'x.tar', mode='resampled'",
    ):
        written = f"WebDataset({options})"
        assert repr(eval(written, {**globals(), "mine": mine})) == written
    dataset = WebDataset({"datasets": [{"shards": "a.tar"}]}, seed=3).decode()
    assert repr(dataset) == "WebDataset({...}, seed=3)\n    .decode()"


@pytest.fixture(scope="module")
def server(shards):
    web = Web()
    put_on_web(web, Path(shards).parent)
    yield web
    web.close()
    pools.cache_clear()


def test_a_cache_fetches_each_shard_once_and_tells_where_it_is(server, shards, tmp_path):
    url = server.url("/x-{000..005}.tar")
    dataset = WebDataset(url, cache_dir=tmp_path, shardshuffle=True)
    server.requests.clear()
    for _ in range(2):
        samples = list(dataset)
        assert sorted(classes(samples)) == list(range(20))
        deadline = time.monotonic() + 600
        while not all(os.path.exists(sample["__local_path__"]) for sample in samples):
            assert time.monotonic() < deadline
        assert all(sample["__local_path__"].startswith(str(tmp_path)) for sample in samples)
    assert sorted(path for _, path, _ in server.requests) == [f"/x-00{n}.tar" for n in range(6)]


@settings(max_examples=15, deadline=None)
@given(stop=st.integers(0, 21), prefetch=st.integers(0, 3), workers=st.integers(1, 2))
def test_fetching_ahead_keeps_the_state_exact(server, tmp_path_factory, continues, stop, prefetch, workers):
    url = server.url("/x-{000..005}.tar")
    folder = tmp_path_factory.getbasetemp() / "cache"
    folder.mkdir(exist_ok=True)
    dataset = WebDataset(url, cache_dir=folder, shardshuffle=True, prefetch_shards=prefetch).shuffle(3)
    continues(lambda: dataset.stream(Context(epoch=1, worker=0, workers=workers)), stop)


def test_an_error_of_the_source_met_while_fetching_ahead_comes_in_its_turn_resumed_or_not(server, tmp_path):
    def failing(name):
        if name == "gone":
            raise OSError("list of shards is gone")
        return {"url": server.url(f"/x-{name}")}

    urls = DataPipeline(["000.tar", "gone", "002.tar"]).map(failing)
    dataset = WebDataset(urls, cache_dir=tmp_path, prefetch_shards=2)
    first = dataset.stream(Context())
    assert [int(next(first)[1]["cls"]) for _ in range(2)] == [0, 1]
    resumed = dataset.stream(Context())
    resumed.load_state_dict(first.state_dict())
    for stream in (first, resumed):
        assert [int(next(stream)[1]["cls"]) for _ in range(3)] == [2, 3, 4]
        with pytest.raises(OSError, match="list of shards is gone"):
            next(stream)


def test_shards_taken_ahead_are_not_read_when_a_handler_has_ended_the_stream(server, tmp_path):
    url = server.url("/{no,x-000,x-001}.tar")
    dataset = WebDataset(url, cache_dir=tmp_path, prefetch_shards=2, handler=ignore_and_stop)
    stream, resumed = dataset.stream(Context()), dataset.stream(Context())
    assert [*stream, *stream] == []
    resumed.load_state_dict(stream.state_dict())
    assert list(resumed) == []


def test_a_damaged_shard_that_was_put_into_the_cache_by_hand_is_named(server, tmp_path):
    (tmp_path / "x-000.tar").write_bytes(b"<html>")
    dataset = WebDataset(server.url("/x-000.tar"), cache_dir=tmp_path)
    with pytest.raises(ShardError, match="truncated") as caught:
        list(dataset)
    assert any(f"remove {tmp_path / 'x-000.tar'}" in note for note in caught.value.__notes__)


def test_the_cache_may_come_from_the_environment(monkeypatch, server, tmp_path):
    url = server.url("/x-000.tar")
    monkeypatch.setenv("WDS_CACHE", str(tmp_path))
    assert "__local_path__" in next(iter(WebDataset(url)))
    monkeypatch.setenv("WDS_CACHE_SIZE", "0")
    assert "__local_path__" not in next(iter(WebDataset(url)))
    monkeypatch.setenv("WDS_CACHE_SIZE", "lots")
    with pytest.raises(ValueError, match="WDS_CACHE_SIZE is 'lots'"):
        WebDataset(url)


def test_a_cache_folder_that_does_not_exist_is_created(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    WebDataset("http://host/x.tar", cache_dir="./deep/cache")
    assert (tmp_path / "deep" / "cache").is_dir()


def test_a_file_for_a_cache_folder_is_named(tmp_path):
    (tmp_path / "x").touch()
    for folder in (tmp_path / "x", tmp_path / "x" / "deeper"):
        with pytest.raises(NotADirectoryError, match=f"cache_dir '{folder}' must be a directory"):
            WebDataset("http://host/x.tar", cache_dir=folder)


@pytest.mark.parametrize("stage", [tarfile_samples, tarfile_to_samples(), TarSamples()])
def test_the_reader_of_shards_has_webdatasets_forms(shards, stage):
    dataset = DataPipeline(SimpleShardList(shards), stage)
    assert classes(dataset) == list(range(20))
    assert pickle.loads(pickle.dumps(stage)) == stage
    first = dataset.stream()
    next(first)
    assert first.state_dict()["offset"] == 2048


def test_shards_that_are_drawn_without_end_and_have_no_sample_are_an_error(shards):
    dataset = WebDataset(shards, resampled=True, select_files=lambda name: name.endswith(".jpeg"))
    with pytest.raises(ValueError, match="no samples found"):
        next(iter(dataset))
    missing = WebDataset("no-{0..3}.tar", resampled=True, handler=ignore_and_continue)
    with pytest.raises(ValueError, match="no samples found"):
        next(iter(missing))


@pytest.mark.parametrize("splitters", [{}, {"nodesplitter": None}])
def test_shards_of_ones_own_list_are_divided_as_others_are(shards, splitters):
    dataset = WebDataset(SimpleShardList(shards), empty_check=False, **splitters)
    read = read_everywhere(dataset.stream, 2, 2)
    assert sorted(classes(read)) == sorted([*range(20)] * (2 if splitters else 1))


def test_a_mode_that_is_none_of_its_own_is_refused(shards):
    for mode in ("resample", "unlink"):
        with pytest.raises(ValueError, match="WebDataset: mode must be one of None, 'resampled', got"):
            WebDataset(shards, mode=mode)
