"""Streams are dealt to workers anew: when one is slow, and (in tests/feed) when some are lost or come."""

import os
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpwds
from mpwds.loader.engine import dealing
from mpwds.loader.engine.dealing import deal

WORKERS = st.dictionaries(st.integers(0, 9), st.floats(1e-4, 1e3), min_size=1)
CARRIERS = st.lists(st.integers(0, 12), min_size=1, max_size=40).map(lambda each: dict(enumerate(each)))


def round_s(carriers, seconds):
    return max(count * seconds[worker] for worker, count in Counter(carriers.values()).items())


@given(CARRIERS, WORKERS)
def test_every_stream_gets_a_worker_that_is_there(carriers, seconds):
    dealt = deal(carriers, seconds)
    assert list(dealt) == list(carriers)
    assert set(dealt.values()) <= seconds.keys()


@given(CARRIERS, WORKERS)
def test_no_stream_could_go_to_another_worker_and_make_the_round_shorter(carriers, seconds):
    dealt = deal(carriers, seconds)
    now = round_s(dealt, seconds)
    for stream in dealt:
        for worker in seconds:
            assert round_s({**dealt, stream: worker}, seconds) >= now * (1 - 1e-9)


@given(CARRIERS, WORKERS)
def test_streams_that_are_dealt_once_more_stay(carriers, seconds):
    dealt = deal(carriers, seconds)
    assert deal(dealt, seconds) == dealt


def test_streams_of_a_lost_worker_are_shared_and_all_others_stay():
    before = {stream: stream % 4 for stream in range(12)}
    after = deal(before, dict.fromkeys([0, 1, 2], 0.1))
    assert {stream: worker for stream, worker in after.items() if before[stream] != 3} == {
        stream: worker for stream, worker in before.items() if worker != 3
    }
    assert Counter(after.values()) == {0: 4, 1: 4, 2: 4}


class SlowInOneProcess:
    """A function that takes long in the process that calls it first."""

    def __init__(self, first):
        self.first, self.is_slow = str(first), None

    def __call__(self, element):
        if self.is_slow is None:
            try:
                os.close(os.open(self.first, os.O_CREAT | os.O_EXCL))
                self.is_slow = True
            except FileExistsError:
                self.is_slow = False
        time.sleep(0.02 if self.is_slow else 0)
        return element


@pytest.mark.parametrize("even", [None, "pad"])
def test_a_slow_worker_hands_streams_to_a_fast_one_in_the_middle_of_an_epoch(even, tmp_path, monkeypatch):
    monkeypatch.setattr(dealing, "_LOOK_EVERY_S", 0.2)
    dataset = mpwds.DataPipeline(range(1200)).shuffle(20).map(SlowInOneProcess(tmp_path / "first")).batched(2)
    options = {"streams": 12, "seed": 1, "even": even, "output": "numpy"}
    with mpwds.MultiLoader(dataset, workers=2, **options) as loader:
        batches = [batch.tolist() for batch in loader]
        made = sorted(worker.batches for worker in loader.stats().workers)
    assert made[0] < made[1] / 2
    assert batches == [batch.tolist() for batch in mpwds.MultiLoader(dataset, workers=0, **options)]
