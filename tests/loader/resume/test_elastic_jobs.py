"""Random pipelines of all kinds of sources and stages, under random changes: one order, that of one rank.

A job of two epochs is saved at random batches, sometimes twice in a row, also at the edges of epochs. It goes
on with other ranks and workers, and without the states of some ranks. The control runs without streams.
"""

import io
import json
import random
import tarfile

import msgpack
import numpy as np
import pytest

import mpwds
from mpwds import DataPipeline, MultiLoader
from mpwds.pipeline.context import Context
from mpwds.pipeline.stream import LengthUnknown

pytestmark = [
    pytest.mark.usefixtures("quick_workers"),
    pytest.mark.filterwarnings("ignore:.*(had nothing left|running it again from its start)"),
]

STREAMS = 12
SHARDS = 18


def noisy(number):
    return number + random.random() + float(np.random.random())


def left_out_at_random(numbers):
    return (number for number in numbers if random.random() < 0.9)


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
        with tarfile.open(folder / f"{shard:02}.tar", "w") as archive:
            for _ in range(8 + shard % 5):
                member = tarfile.TarInfo(f"{number:04}.cls")
                data = str(number).encode()
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
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


def plain(batch):
    return json.dumps(
        [np.asarray(row).tolist() for row in batch] if isinstance(batch, (list, tuple)) else batch.tolist()
    )


def round_trip(state, draw):
    through = draw.choice([json, msgpack])
    return through.loads(through.dumps(state))


class Job:
    """The ranks of a job, one after the other: those that need no messages."""

    def __init__(self, dataset, monkeypatch, **options):
        self._dataset = dataset
        self._patch = monkeypatch
        self._options = {"streams": STREAMS, "seed": 3, "output": "numpy", "timeout": 60, **options}

    def loader(self, rank=0, ranks=1, workers=0):
        self._patch.setenv("RANK", str(rank))
        self._patch.setenv("WORLD_SIZE", str(ranks))
        return MultiLoader(self._dataset, workers, **self._options)

    def epochs(self, number):
        with self.loader() as loader:
            return [[plain(batch) for batch in loader] for _ in range(number)]

    def phase(self, state, steps, ranks, workers):
        """The batches of some steps on all ranks, and their states."""
        seen, states = [], []
        for rank in range(ranks):
            with self.loader(rank, ranks, workers) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                batches = iter(loader)
                seen.append([plain(next(batches)) for _ in range(steps)])
                states.append(loader.state_dict())
        return [batch for step in zip(*seen, strict=True) for batch in step], states


def disturbed(job, whole, draw, may_change_ranks):
    """An epoch of a job with changes at random batches; the state at its end."""
    got, state = [], None
    while len(got) < len(whole):
        left = len(whole) - len(got)
        possible = [n for n in (1, 2, 3, 4, 6, 12) if len(got) % n == 0 and left % n == 0]
        ranks = draw.choice(possible) if may_change_ranks else 1
        steps = draw.choice([0, min(left, draw.randrange(1, 40)) // ranks, left // ranks])
        batches, states = job.phase(state, steps, ranks, draw.choice([0, 0, 0, 1, min(3, STREAMS // ranks)]))
        got += batches
        if ranks > 1 and draw.random() < 0.3:
            states.pop(draw.randrange(ranks))
        state = round_trip(mpwds.merge_states(states), draw)
    return got, state


@pytest.mark.slow
@pytest.mark.parametrize("even", [None, "drop", "pad", "wrap"])
@pytest.mark.parametrize("seed", range(24))
def test_the_order_is_that_of_an_undisturbed_run_on_one_rank(seed, even, shards, monkeypatch):
    draw = random.Random(seed)
    dataset, names = drawn(draw, shards)
    job = Job(dataset, monkeypatch, even=even)
    whole = job.epochs(2)
    got, state = disturbed(job, whole[0], draw, even is not None and is_counted(dataset))
    assert got == whole[0], names
    with job.loader(workers=draw.choice([0, 2])) as loader:
        loader.load_state_dict(state)
        rest = [plain(batch) for batch in loader]
        assert rest == []  # the epoch had nothing left
        assert [plain(batch) for batch in loader] == whole[1], names


@pytest.mark.slow
def test_without_streams_the_order_depends_on_the_workers(shards, monkeypatch):
    differ = 0
    for seed in range(20):
        dataset, _ = drawn(random.Random(seed), shards)
        orders = []
        for workers in (1, 3):
            monkeypatch.setenv("RANK", "0")
            monkeypatch.setenv("WORLD_SIZE", "1")
            with MultiLoader(dataset, workers, seed=3, output="numpy") as loader:
                orders.append([plain(batch) for batch in loader])
        differ += orders[0] != orders[1]
    assert differ >= 15
