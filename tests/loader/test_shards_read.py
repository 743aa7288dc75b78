"""Which shards a worker reads is known without running it, where the pipeline leaves no doubt."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpwds
from mpwds import DataPipeline, WebDataset
from mpwds.loader.header_counts import count_by_headers
from mpwds.loader.lengths import count_delivered
from mpwds.loader.shards_read import shards_read
from mpwds.pipeline.context import ALONE, Context

CONTEXTS = st.builds(
    lambda epoch, seed, workers, worker, world_size, rank: Context(
        epoch=epoch,
        seed=seed,
        workers=workers,
        worker=worker % workers,
        world_size=world_size,
        rank=rank % world_size,
    ),
    epoch=st.integers(0, 5),
    seed=st.none() | st.integers(0, 5),
    workers=st.integers(1, 3),
    worker=st.integers(0, 2),
    world_size=st.integers(1, 3),
    rank=st.integers(0, 2),
)


def pipelines(shards):
    return {
        "dealt": WebDataset(shards, empty_check=False),
        "shuffled": WebDataset(shards, shardshuffle=True, empty_check=False, seed=3),
        "not dealt to ranks": WebDataset(shards, nodesplitter=None, shardshuffle=True, empty_check=False),
        "written out": DataPipeline(
            mpwds.SimpleShardList(shards),
            mpwds.shuffle(3),
            mpwds.split_by_node,
            mpwds.split_by_worker,
            mpwds.tarfile_to_samples(),
            mpwds.shuffle(5),
        ),
        "cached": DataPipeline(
            mpwds.SimpleShardList(shards, seed=2),
            mpwds.split_by_worker,
            mpwds.detshuffle(),
            mpwds.tarfile_samples,
            mpwds.mcached(),
        ),
    }


@pytest.mark.filterwarnings("ignore:4 shards for")
@pytest.mark.parametrize("which", list(pipelines("x.tar")))
def test_they_are_those_that_the_pipeline_reads(which, shards):
    @settings(deadline=None, max_examples=25)
    @given(context=CONTEXTS)
    def as_read(context):
        pipeline = pipelines(shards)[which]
        read = []
        samples = list(pipeline.stream(replace(context, on_shard=read.append)))
        told = shards_read(pipeline, context)
        assert told.urls == read
        assert len(samples) == 10 * len(read)

    as_read()


def some_of(shards):
    yield from list(shards)[::2]


@pytest.mark.parametrize(
    "make",
    [
        lambda shards: WebDataset(shards, nodesplitter=some_of),
        lambda shards: WebDataset(shards, handler=mpwds.warn_and_continue),
        lambda shards: WebDataset(shards, select_files=bool),
        lambda shards: WebDataset(shards, resampled=True),
        lambda shards: WebDataset(shards).repeat(2),
        lambda shards: WebDataset({"datasets": [{"shards": shards}]}),
        lambda shards: DataPipeline(mpwds.SimpleShardList(shards), some_of, mpwds.tarfile_to_samples()),
        lambda shards: DataPipeline(range(3)),
    ],
)
def test_where_the_pipeline_leaves_doubt_nothing_is_said(make, shards):
    assert shards_read(make(shards), Context()) is None


def counted(pipeline, workers=2, context=ALONE, **given):
    def count(context, **more):
        return count_delivered(pipeline, workers, context, **more).elements

    return count_by_headers(count, context, **given)


def test_batches_are_counted_by_the_headers_of_the_shards(shards):
    pipeline = WebDataset(shards, shardshuffle=True).decode().to_tuple("npy", "cls").batched(4)
    assert counted(pipeline) == 2 * 5  # two workers with 20 samples each
    assert counted(pipeline, context=Context(rank=1, world_size=4), workers=1) == 3
    assert counted(pipeline, seconds=-1) == 10  # what is known takes no time


def test_what_cannot_be_counted_is_left_open(shards, tmp_path):
    assert counted(WebDataset(shards).map(lambda sample: sample)) is None
    assert counted(WebDataset("pipe:cat x.tar")) is None
    assert counted(WebDataset(f"{tmp_path}/none.tar")) is None
    (tmp_path / "empty.tar").touch()
    assert counted(WebDataset(f"{tmp_path}/empty.tar")) is None
    fresh = tmp_path / "fresh.tar"
    fresh.write_bytes((tmp_path / "train-0.tar").read_bytes())
    assert counted(WebDataset(str(fresh)), seconds=-1) is None
