"""How many samples an element counts as, and how many elements stages make."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import mpwds
from mpwds.pipeline.coercion import as_source, as_stage
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.filter import rows_in
from mpwds.pipeline.stream import Count, LengthUnknown, Source


@dataclasses.dataclass
class Pair:
    image: Any
    label: Any


IMAGES, LABELS = np.zeros((5, 2, 2)), list(range(5))


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


BATCHES = [
    IMAGES,
    LABELS,
    (IMAGES, LABELS),
    [IMAGES, LABELS],
    {"image": IMAGES, "label": LABELS},
    {"image": {"left": IMAGES, "right": IMAGES}, "label": LABELS},
    (IMAGES, None),
    Pair(IMAGES, LABELS),
    Slotted(IMAGES),
    [(np.zeros(3), 1)] * 5,
    [{"__key__": "a"}] * 5,
    ["a"] * 5,
]
SAMPLES = [
    *(7, "text", b"bytes", None, np.float32(1), (), {}),
    *((IMAGES, 7), {"__key__": "a", "image": IMAGES}, (np.zeros(3), np.zeros(4))),
    *(Shaped(), Pair, [Shaped()], Secretive(), (Secretive(), Secretive()), Lettered(), object.__new__(Pair)),
]


@pytest.mark.parametrize("element", BATCHES, ids=lambda element: type(element).__name__)
def test_a_batch_counts_its_rows(element):
    assert rows_in(element) == 5


@pytest.mark.parametrize("element", SAMPLES, ids=lambda element: type(element).__name__)
def test_a_sample_is_one_also_if_it_looks_like_a_batch(element):
    assert rows_in(element) == 1


class Silent:
    def stream(self, source, context=None):
        return source


LENIENT = mpwds.ignore_and_continue


@pytest.mark.parametrize(
    "stage",
    [
        *(Silent(), mpwds.map(abs), mpwds.select(bool), mpwds.map_tuple(abs, handler=LENIENT)),
        *(mpwds.batched(2, handler=LENIENT), mpwds.unbatched(handler=LENIENT)),
    ],
)
def test_a_stage_that_does_not_tell_how_many_elements_it_makes_leaves_that_unknown(stage):
    with pytest.raises(LengthUnknown, match="may drop or add elements"):
        as_stage(stage).count_of(Count(3))


def test_rows_are_known_as_long_as_elements_are_only_moved():
    batches = mpwds.batched(4).count_of(Count(10))
    assert mpwds.shuffle(3).count_of(batches) == batches == Count(3, 10)
    assert mpwds.decode().count_of(batches) == Count(3)


class Counted:
    """A user's source that says how many elements it has, and that workers never lack one."""

    def __init__(self, never_empty=False):
        self.never_empty = never_empty

    def stream(self, context=None):
        return Source(range(7))

    def count_in(self, context):
        return 7


def test_a_users_source_answers_for_itself():
    assert DataPipeline(Counted()).batched(2).count_in(Context()) == Count(4, 7)
    assert list(DataPipeline(Counted()).batched(4, collation_fn=None)) == [[0, 1, 2, 3], [4, 5, 6]]
    endless = DataPipeline(Counted(never_empty=True)).select(bool).with_epoch(100)
    assert endless.count_in(Context()) == Count(100)
    with pytest.raises(LengthUnknown, match="may drop or add elements"):
        DataPipeline(Counted()).select(bool).with_epoch(100).count_in(Context())
    with pytest.raises(LengthUnknown, match="Silent does not tell how many elements it has"):
        DataPipeline(as_source(Silent())).count_in(Context())
    assert LengthUnknown("x has no end").reason == "x has no end"
