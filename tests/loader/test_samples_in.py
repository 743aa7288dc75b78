"""How many samples an element counts as."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from mpwds import DataPipeline, RoundRobin, WebDataset
from mpwds.loader.samples_in import sample_counter, samples_in


@dataclasses.dataclass
class Pair:
    image: Any
    label: Any


IMAGES, LABELS = np.zeros((5, 2, 2)), list(range(5))


@pytest.mark.parametrize(
    "batch",
    [
        IMAGES,
        LABELS,
        (IMAGES, LABELS),
        [IMAGES, LABELS],
        {"image": IMAGES, "label": LABELS},
        {"image": {"left": IMAGES, "right": IMAGES}, "label": LABELS},
        (IMAGES, None),
        Pair(IMAGES, LABELS),
        [(np.zeros(3), 1)] * 5,
        [{"__key__": "a"}] * 5,
        ["a"] * 5,
    ],
)
def test_a_batch_counts_its_rows(batch):
    assert samples_in(batch) == 5


@pytest.mark.parametrize(
    "sample",
    [7, "text", b"bytes", None, (IMAGES, 7), {"__key__": "a", "image": IMAGES}, np.float32(1), (), {}],
)
def test_a_single_sample_is_one(sample):
    assert samples_in(sample) == 1


@dataclasses.dataclass(slots=True)
class Slotted:
    image: Any


class Shaped:
    def shape(self):
        return "round"


class Secretive:
    @property
    def shape(self):
        raise RuntimeError("it has none")


class Lettered:
    shape = ("n", 3)


@pytest.mark.parametrize(
    "element",
    [Shaped(), Pair, [Shaped()], Secretive(), (Secretive(), Secretive()), Lettered(), object.__new__(Pair)],
    ids=lambda element: type(element).__name__,
)
def test_what_only_looks_like_a_batch_is_one_sample(element):
    assert samples_in(element) == 1


def test_a_dataclass_with_slots_is_a_batch_too():
    assert samples_in(Slotted(IMAGES)) == 5


def test_columns_of_unequal_length_are_those_of_a_sample():
    assert samples_in((np.zeros(3), np.zeros(4))) == 1


@pytest.mark.parametrize(
    ("dataset", "counted"),
    [
        (DataPipeline([IMAGES]), 1),
        (DataPipeline([IMAGES]).map(abs), 1),
        (DataPipeline([IMAGES]).batched(5), 5),
        (DataPipeline([IMAGES]).batched(5).map(abs).shuffle(3), 5),
        (DataPipeline([IMAGES]).batched(5).unbatched(), 1),
        (WebDataset("x.tar"), 1),
        (DataPipeline(DataPipeline([IMAGES]).with_epoch(3)), 1),
        (DataPipeline(RoundRobin([DataPipeline([IMAGES])])), 5),
        (lambda: iter([IMAGES]), 5),
    ],
)
def test_a_pipeline_knows_what_it_yields(dataset, counted):
    assert sample_counter(dataset)(IMAGES) == counted
