import random

import numpy as np
import pytest
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.iterable_sources import Indexed, Iterated
from tests.pipeline.places import read_everywhere


@settings(max_examples=50, deadline=None)
@given(n=st.integers(0, 30), world_size=st.integers(1, 3), workers=st.integers(1, 3))
def test_a_sequence_is_divided_among_ranks_and_workers(n, world_size, workers):
    assert sorted(read_everywhere(Indexed(range(n)).stream, world_size, workers)) == list(range(n))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(0, 20), stop=st.integers(0, 21))
def test_a_sequence_continues_from_its_state_exactly(continues, n, stop):
    continues(lambda: Indexed(list(range(n))).stream(Context(worker=1, workers=2)), stop)


class Augmented(torch.utils.data.Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        if index == 4:
            raise OSError("no such picture")
        return index + random.random() + np.random.rand()


def test_a_map_style_dataset_draws_the_same_numbers_for_an_element_again():
    stream = Indexed(Augmented()).stream()
    (address, element), (_, following) = next(stream), next(stream)
    assert stream.fetch(address) == element
    assert element % 1 != following % 1


def test_an_error_of_a_map_style_dataset_names_the_element():
    with pytest.raises(OSError, match="no such picture") as caught:
        Indexed(Augmented()).stream().fetch(4)
    assert caught.value.__notes__ == ["in Augmented, on element 4"]


def test_an_iterable_is_read_as_it_is_in_every_worker():
    for worker in (0, 1):
        stream = Iterated(lambda: iter("abc")).stream(Context(worker=worker, workers=2))
        assert [element for _, element in stream] == ["a", "b", "c"]


def test_addresses_of_an_iterable_tell_the_workers_apart():
    streams = [Iterated([1]).stream(Context(worker=worker, workers=2)) for worker in (0, 1)]
    assert [next(stream)[0] for stream in streams] == [(0, 0, 0), (0, 1, 0)]


def test_a_function_that_raises_stop_iteration_is_no_empty_dataset():
    def numbers():
        return iter([next(iter([]))])

    with pytest.raises(RuntimeError, match="cannot end a dataset") as caught:
        list(Iterated(numbers).stream())
    assert caught.value.__notes__ == ["in numbers, after 0 elements"]
