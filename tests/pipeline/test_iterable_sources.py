import json
import random
import warnings

import numpy as np
import pytest
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
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


def test_an_iterable_is_read_as_it_is_in_every_worker_and_its_addresses_tell_the_workers_apart():
    for worker in (0, 1):
        stream = Iterated(lambda: iter("abc")).stream(Context(worker=worker, workers=2))
        assert list(stream) == [((0, worker, number), letter) for number, letter in enumerate("abc")]


def test_a_function_that_raises_stop_iteration_is_no_empty_dataset():
    def numbers():
        return iter([next(iter([]))])

    with pytest.raises(RuntimeError, match="cannot end a dataset") as caught:
        list(Iterated(numbers).stream())
    assert caught.value.__notes__ == ["in numbers, after 0 elements"]


def test_a_function_that_returns_a_map_style_dataset_is_an_error():
    with pytest.raises(TypeError, match=r"returned <.*Augmented object .*>, not an iterator of elements"):
        next(Iterated(lambda: Augmented()).stream())


def every_other(source):
    for element in source:
        yield element + random.random()
        next(source, None)


def pipeline(source=range(40)):
    return DataPipeline(source).compose(every_other).shuffle(5).map(lambda n: n + random.random()).batched(3)


def plain(stream):
    return [batch.tolist() for _, batch in stream]


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_a_replay_continues_exactly_with_one_warning_that_names_the_stage(stop):
    first = pipeline().stream()
    seen = [next(first)[1].tolist() for _ in range(stop)]
    second = pipeline().stream()
    with pytest.warns(UserWarning, match=rf"compose\(every_other\) .* the first {stop} elements") as caught:
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert len(caught) == 1
    assert seen + plain(second) == plain(pipeline().stream())


def test_a_replay_continues_a_second_time():
    stream = pipeline().stream()
    next(stream)
    state = stream.state_dict()
    rest = plain(stream)
    for _ in range(2):
        with pytest.warns(UserWarning, match="elements without addresses"):
            stream.load_state_dict(state)
        assert plain(stream) == rest


def test_the_beginning_needs_no_replay_and_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream = pipeline().stream()
        stream.load_state_dict(stream.state_dict())
    assert plain(stream) == plain(pipeline().stream())
