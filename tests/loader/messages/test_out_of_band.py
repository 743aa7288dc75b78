"""out_of_band: arrays and tensors in objects of any class travel as arrays."""

import collections

import numpy as np
import pytest
import torch

from mpwds.loader.messages.out_of_band import OutOfBand, put_together, take_apart
from tests.loader.dataloader.data_loader_datasets import Pair, Point, plain


class Graph:
    def __init__(self, *nodes):
        self.nodes = list(nodes)


@pytest.mark.parametrize(
    "batch",
    [
        {"x": [1, "a", None], "y": (np.zeros(2), torch.zeros(2))},
        collections.OrderedDict(a=1),
        Pair(1, np.float32(2)),
        Point(3),
        [],
        torch.nn.Parameter(torch.ones(1)),
    ],
    ids=str,
)
def test_what_nest_sends_well_is_left_alone(batch):
    assert take_apart(batch) is batch


@pytest.mark.parametrize(
    "make",
    [
        Graph,
        lambda *arrays: {"a": [1, Graph(*arrays)], "b": arrays[0]},
        lambda *arrays: Pair(collections.UserDict(x=arrays[0]), arrays[1:]),
        lambda *arrays: [{1, 2}, torch.Size([3]), collections.Counter("ab"), Graph()],
    ],
)
def test_objects_come_back_as_they_were(make):
    arrays = (
        np.arange(6.0).reshape(2, 3),
        torch.arange(4),
        torch.ones(2, dtype=torch.bfloat16),
        np.zeros((0, 2)),
    )
    batch = make(*arrays)
    assert plain(put_together(take_apart(batch))) == plain(batch)


def test_arrays_and_tensors_are_neither_pickled_nor_copied():
    array, tensor = np.zeros(1000), torch.zeros(1000)
    apart = take_apart(Graph(array, tensor))
    assert type(apart) is OutOfBand
    assert len(apart.pickled) < 1000
    apart.buffers[0].view(np.float64)[:] = 7
    apart.buffers[1].view(np.float32)[:] = 8
    assert (array[0], float(tensor[0])) == (7, 8)
    array, tensor = put_together(apart).nodes
    assert (array[999], float(tensor[999])) == (7, 8)
