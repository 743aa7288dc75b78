"""tree_map: one kind of object exchanged, everything around it of its own class."""

import collections
import dataclasses
from collections import Counter

from mpwds.trees import fields_of, tree_map

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Point:
    x: float
    name: str
    tags: list = dataclasses.field(default_factory=list)
    norm: float = dataclasses.field(init=False)


class Names(list):
    pass


def doubled(item):
    return tree_map(item, float, lambda number: number * 2)


def test_containers_keep_their_class_and_order():
    item = collections.OrderedDict(b=[1.5, 2], a=(0.5, Pair(1.0, "x")))
    changed = doubled(item)
    assert changed == collections.OrderedDict(b=[3.0, 2], a=(1.0, Pair(2.0, "x")))
    assert (type(changed), type(changed["a"][1])) == (collections.OrderedDict, Pair)


def test_subclasses_keep_what_is_their_own():
    names = Names([1.5])
    names.source = "file"
    counts = collections.defaultdict(int, a=1.5)
    changed = doubled([names, counts])
    assert (type(changed[0]), changed[0].source, changed[0]) == (Names, "file", [3.0])
    assert (changed[1]["a"], changed[1]["missing"]) == (3.0, 0)


class Encoding(collections.UserDict):
    """As transformers' ``BatchEncoding``."""

    def __init__(self, data, encodings):
        super().__init__(data)
        self.encodings = encodings


def test_other_mappings_keep_what_is_their_own():
    encoding = Encoding({"ids": [1.5]}, "kept")
    changed = doubled(encoding)
    assert (type(changed), changed.data, changed.encodings) == (Encoding, {"ids": [3.0]}, "kept")
    assert encoding.data == {"ids": [1.5]}


def test_counts_of_a_counter_are_replaced_and_not_counted():
    counted = tree_map(Counter(a=1, b=2), int, lambda number: 10 * number)
    assert (type(counted), counted) == (Counter, {"a": 10, "b": 20})


def test_dataclasses_are_copied_with_fields_that_are_not_set_left_unset():
    point = Point(1.5, "p", [2.5])
    changed = doubled(point)
    assert (changed.x, changed.name, changed.tags, hasattr(changed, "norm")) == (3.0, "p", [5.0], False)
    assert (point.x, point.tags) == (1.5, [2.5])


def test_keys_and_all_else_are_left_alone():
    item = {1.5: "text", "set": {2.5}, "class": Point}
    assert doubled(item) == item


def test_what_holds_no_such_object_stays_the_same_object():
    class Version(tuple):
        def __new__(cls, major, minor):
            return super().__new__(cls, (major, minor))

    item = {"version": Version(1, 2), "meta": {"names": ["a"]}, "x": 1.5}
    changed = doubled(item)
    assert changed == {**item, "x": 3.0}
    assert changed["version"] is item["version"]
    assert changed["meta"] is item["meta"]


def test_a_dataclass_that_is_more_than_its_fields_is_a_leaf():
    @dataclasses.dataclass
    class Number(int):
        unit: str = "m"

    class Sub(Point):
        pass

    class Guarded(Point):
        def __del__(self):
            pass

    @dataclasses.dataclass
    class Computed:
        x: int

        @property
        def y(self):
            return 1

        @y.setter
        def y(self, value):
            pass

        y: int

    assert [fields_of(kind) for kind in (Number, Sub, Guarded, Computed, tuple, int)] == [None] * 6
    assert (fields_of(Point), fields_of(Pair)) == (["x", "name", "tags", "norm"], ["left", "right"])
