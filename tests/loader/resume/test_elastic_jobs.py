"""Random pipelines of all kinds of sources and stages, under random changes: one order, that of one rank.

A job of two epochs is saved at random batches, sometimes twice in a row, also at the edges of epochs. It goes
on with other ranks and workers, and without the states of some ranks. The control runs without streams.
"""

import functools
import random

import msgpack
import numpy as np
import pytest

import mpwds
from mpwds import DataPipeline
from mpwds.pipeline.context import Context
from mpwds.pipeline.stream import LengthUnknown
from mpwds.storage.writing.tar_writer import TarWriter
from tests.loader.jobs import RANKS, STREAMS, as_json, as_lists, disturbed, left_out_at_random, noisy

pytestmark = [
    pytest.mark.usefixtures("quick_workers"),
    pytest.mark.filterwarnings("ignore:.*(had nothing left|running it again from its start)"),
]

SHARDS = 18


def number_of(sample):
    return int(sample["cls"])


def as_number(element):
    return int(np.asarray(element).ravel()[0])


def as_array(number):
    return np.full(1 + int(number) % 9, number)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder, number = tmp_path_factory.mktemp("shards"), 0
    for shard in range(SHARDS):
        with TarWriter(str(folder / f"{shard:02}.tar")) as archive:
            for _ in range(8 + shard % 5):
                archive.write({"__key__": f"{number:04}", "cls": number})
                number += 1
    return str(folder / f"{{00..{SHARDS - 1:02}}}.tar")


SOURCES = {
    "sequence": lambda shards: DataPipeline(range(260)),
    "shards": lambda shards: mpwds.WebDataset(shards, shardshuffle=True).map(number_of),
    "resampled": lambda shards: DataPipeline(
        mpwds.WebDataset(shards, resampled=True).map(number_of).with_epoch(17)
    ),
    "indexed": lambda shards: mpwds.IndexedDataset(range(250), "global"),
    "mixed": lambda shards: DataPipeline(
        mpwds.RandomMix([DataPipeline(range(150)), DataPipeline(range(1000, 1200))], [0.4, 0.6])
    ),
    "in turn": lambda shards: DataPipeline(
        mpwds.RoundRobin([DataPipeline(range(150)), DataPipeline(range(1000, 1200))])
    ),
    "cached": lambda shards: mpwds.WebDataset(shards).map(number_of).mcached(),
}
STAGES = {
    "shuffle": lambda dataset: dataset.shuffle(20),
    "total": lambda dataset: dataset.shuffle(total=120),
    "select": lambda dataset: dataset.select(lambda number: as_number(number) % 7 != 3),
    "flatmap": lambda dataset: dataset.flatmap(lambda n: [n] * (1 + as_number(n) % 5 // 4)),
    "map": lambda dataset: dataset.map(noisy),
    "threads": lambda dataset: dataset.map(lambda number: number + 0.5, threads=2),
    "repeat": lambda dataset: dataset.compose().repeat(2),
    "generator": lambda dataset: dataset.compose(left_out_at_random),
    "regrouped": lambda dataset: dataset.batched(3).unbatched(),
}
BATCHES = {
    "batched": lambda dataset: dataset.batched(4),
    "whole": lambda dataset: dataset.batched(3, partial=False),
    "bucketed": lambda dataset: dataset.map(lambda n: np.full(1 + int(n) % 9, n)).bucketed(
        len, [4, 7], [3, 2, 2]
    ),
}


def drawn(draw, shards):
    """A pipeline, and what it consists of."""
    names = [
        draw.choice(list(SOURCES)),
        *draw.sample(list(STAGES), draw.randrange(4)),
        draw.choice(list(BATCHES)),
    ]
    source, *stages = names
    dataset = SOURCES[source](shards)
    for stage in stages:
        dataset = {**STAGES, **BATCHES}[stage](dataset)
    return dataset, names


def is_counted(dataset):
    try:
        dataset.count_in(Context(workers=STREAMS))
    except LengthUnknown:
        return False
    return True


def round_trip(state):
    return msgpack.unpackb(msgpack.packb(as_json(state)))


@pytest.mark.slow
@pytest.mark.parametrize("even", [None, "drop", "pad", "wrap"])
@pytest.mark.parametrize("seed", range(24))
def test_the_order_is_that_of_an_undisturbed_run_on_one_rank(seed, even, shards, loader_of):
    draw = random.Random(seed)
    dataset, names = drawn(draw, shards)
    make = functools.partial(loader_of, dataset, even=even)
    undisturbed = make()
    whole, following = as_lists(undisturbed), as_lists(undisturbed)
    ranks = RANKS if even is not None and is_counted(dataset) else (1,)
    got, state = disturbed(make, whole, draw, ranks, round_trip)
    assert got == whole, names
    loader = make(workers=draw.choice([0, 2]))
    loader.load_state_dict(state)
    assert as_lists(loader) == []  # the epoch had nothing left
    assert as_lists(loader) == following, names
