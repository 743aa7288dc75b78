import pickle
import threading
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.errors import ShardError
from mpwds.pipeline.context import Context
from mpwds.pipeline.indexed.source import IndexedSamples
from tests.pipeline.indexed.letters import Letters

kinds = st.sampled_from(["global", "chunked", "shards", False])
lengths = st.lists(st.integers(0, 9), max_size=6)
few = st.integers(1, 3)


def keys(stream):
    return [sample["__key__"] for _, sample in stream]


@settings(max_examples=100)
@given(kind=kinds, lengths=lengths, ranks=few, workers=few, epoch=st.integers(0, 2))
def test_each_sample_is_read_by_one_worker_and_counts_are_known(kind, lengths, ranks, workers, epoch):
    source = IndexedSamples(Letters(*lengths), kind, chunksize=4)
    read = []
    for rank in range(ranks):
        for worker in range(workers):
            context = Context(epoch=epoch, rank=rank, world_size=ranks, worker=worker, workers=workers)
            own = keys(source.stream(context))
            assert len(own) == source.count_in(context).elements
            read += own
    assert sorted(read) == sorted(keys(IndexedSamples(Letters(*lengths)).stream()))
    assert len(read) == sum(lengths) == len(source)


@settings(max_examples=60)
@given(kind=kinds, lengths=lengths, stop=st.integers(0, 30))
def test_it_continues_from_its_state_exactly(continues, kind, lengths, stop):
    source = IndexedSamples(Letters(*lengths), kind, chunksize=4)
    continues(lambda: source.stream(Context(epoch=3, worker=1, workers=2)), stop)


def test_what_it_computed_of_the_lengths_is_not_sent_along():
    source = IndexedSamples(Letters(*[3] * 1000))
    sent = pickle.dumps(source)
    assert source.place(2999) == (999, 2)
    assert pickle.dumps(source) == sent


def test_a_sample_keeps_its_address_in_every_order():
    for kind in ("global", "chunked", "shards", False):
        found = dict(IndexedSamples(Letters(3, 0, 2), kind).stream())
        assert [found[n]["__key__"] for n in range(5)] == ["a0", "a1", "a2", "c0", "c1"]


def test_more_samples_than_are_found_at_once_come_once():
    source = IndexedSamples(Letters(3000, 5000, 2000), "global")
    numbers = [number for number, _ in source.stream(Context(worker=1, workers=2))]
    assert len(set(numbers)) == 5000


def test_the_order_depends_on_seed_and_epoch_and_is_the_same_for_all_ranks():
    source = IndexedSamples(Letters(50, 50), "global")

    def order(**context):
        return [number for number, _ in source.stream(Context(**context))]

    whole = order(seed=1, epoch=2)
    assert order(seed=1, epoch=2, rank=1, world_size=2) == whole[1::2]
    assert order(seed=1, epoch=3) != whole != order(seed=2, epoch=2)


@given(kind=kinds, lengths=lengths, data=st.data())
def test_chosen_samples_are_read_in_every_order(kind, lengths, data):
    total = sum(lengths)
    positions = data.draw(st.lists(st.integers(0, total - 1), max_size=20)) if total else []
    source = IndexedSamples(Letters(*lengths), kind, chunksize=3).of(np.array(positions, np.int64))
    assert sorted(number for number, _ in source.stream()) == sorted(positions)


def test_shards_of_a_slice_are_shuffled_as_shards():
    whole = IndexedSamples(Letters(4, 4, 4), "shards")
    part = IndexedSamples(Letters(4, 4, 4), "shards", chosen=whole.numbers[2:10])
    read = "".join(key[0] for key in keys(part.stream()))
    assert read in map("".join, permutations(("aa", "bbbb", "cc")))
    backwards = IndexedSamples(Letters(2, 2), "shards", chosen=whole.numbers[3::-1])
    assert "".join(keys(backwards.stream())) in ("b1b0a1a0", "a1a0b1b0")


class Damaged(Letters):
    def read(self, shard, index):
        if index == 2:
            raise ShardError("the header at offset 1024 of b.tar is damaged")
        return super().read(shard, index)


def test_errors_name_the_sample_and_its_shard():
    stream = IndexedSamples(Damaged(1, 4)).stream()
    assert keys(zip(range(3), (sample for _, sample in stream), strict=False)) == ["a0", "b0", "b1"]
    with pytest.raises(ShardError, match="offset 1024 of b.tar") as caught:
        next(stream)
    assert caught.value.__notes__ == ["in IndexedSamples(Damaged), on sample 2 of b.tar"]
    assert next(stream)[1]["__key__"] == "b3"  # an exception loses no other sample
    with pytest.raises(ShardError, match="offset 1024 of b.tar") as caught:
        stream.fetch(3)
    assert caught.value.__notes__ == ["in IndexedSamples(Damaged), on sample 2 of b.tar"]


class TestThreads:
    @settings(max_examples=30)
    @given(kind=kinds, lengths=lengths, stop=st.integers(0, 30))
    def test_do_not_change_the_order_nor_the_state(self, continues, kind, lengths, stop):
        def stream(threads):
            return IndexedSamples(Letters(*lengths), kind, chunksize=4, threads=threads).stream()

        assert list(stream(3)) == list(stream(1))
        continues(lambda: stream(3), stop)

    def test_read_at_the_same_time(self):
        together = threading.Barrier(4, timeout=600)

        class Slow(Letters):
            def read(self, shard, index):
                together.wait()  # for three other reads
                return super().read(shard, index)

        assert len(list(IndexedSamples(Slow(16), threads=4).stream())) == 16

    def test_raise_an_error_in_its_turn(self):
        stream = IndexedSamples(Damaged(5), threads=2).stream()
        assert [next(stream)[0], next(stream)[0]] == [0, 1]
        with pytest.raises(ShardError):
            next(stream)
        assert [number for number, _ in stream] == [3, 4]

    def test_end_with_the_stream(self):
        stream = IndexedSamples(Letters(100), threads=3).stream()
        next(stream)
        readers = [each for each in threading.enumerate() if each.name.startswith("mpwds ahead")]
        assert readers
        del stream
        for reader in readers:
            reader.join(600)
            assert not reader.is_alive()


def test_a_state_of_another_dataset_is_refused():
    state = IndexedSamples(Letters(5)).stream().state_dict()
    with pytest.raises(ValueError, match="the state is of a dataset of 5 samples, this one has 6"):
        IndexedSamples(Letters(6)).stream().load_state_dict(state)


def test_a_worker_says_which_shard_it_reads():
    begun = []
    list(IndexedSamples(Letters(2, 0, 3)).stream(Context(on_shard=begun.append)))
    assert begun == ["a.tar", "c.tar"]
