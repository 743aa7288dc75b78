import collections
import contextlib
import dataclasses
import enum
import math
import subprocess
import sys
import textwrap
import threading
import types
import typing

import cloudpickle
import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mpwds import nest, tenbin
from mpwds.errors import EnvelopeError
from mpwds.nest import DATACLASS, DICT, LIST, NAMEDTUPLE, TUPLE
from mpwds.trees import fields_of
from tests.memory import allocating_below

# Classes are found by module and name: give them a module that is imported under its name.
home = types.ModuleType("home_of_test_classes")
sys.modules["home_of_test_classes"] = home


def at_home(kind):
    kind.__module__ = home.__name__
    setattr(home, kind.__name__, kind)
    return kind


@at_home
class Box(typing.NamedTuple):
    corner: object
    size: object = 1


@at_home
@dataclasses.dataclass
class Sample:
    image: object
    label: object = None
    made: object = dataclasses.field(init=False, default=0)

    def __post_init__(self):
        self.made = "by __post_init__"


@at_home
@dataclasses.dataclass(frozen=True)
class Frozen:
    value: object


@at_home
@dataclasses.dataclass(frozen=True)
class Slotted:
    __slots__ = ("value",)
    value: object


def travel(batch, allow_pickle=False, output="numpy"):
    """Send a batch all the way: structure by envelope, arrays by tenbin."""
    structure, arrays = nest.flatten(batch, allow_pickle=allow_pickle)
    structure = nest.unpack(nest.pack({"structure": structure}))["structure"]
    arrays = tenbin.decode_buffer(tenbin.encode_buffer(arrays), output=output)
    return nest.unflatten(structure, arrays, allow_pickle=allow_pickle)


def same(a, b):
    """Equality of value and type all the way down, of order too, NaN included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a):
        names = [field.name for field in dataclasses.fields(a)]
        return all(same(getattr(a, name), getattr(b, name)) for name in names)
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return a == b


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.complex_numbers(allow_nan=False),
    st.text(),
    st.text(st.characters(categories=["Cs", "Lu"]), max_size=3),
    st.binary(max_size=8),
    st.binary(max_size=8).map(bytearray),
)
numpy_scalars = st.sampled_from(
    [np.float32(1.5), np.int64(-3), np.bool_(True), np.complex64(1j), np.uint32(7)]
)
arrays = st.sampled_from(
    [np.arange(3), np.zeros((2, 0), "f4"), np.array(2.5), np.array([[True], [False]]), np.ones(2, "c16")]
)
keys = st.one_of(
    st.text(max_size=3),
    st.integers(),
    st.booleans(),
    st.none(),
    st.binary(max_size=2),
    st.floats(allow_nan=False),
    st.tuples(st.text(max_size=2), st.integers(0, 3)),
)


def containers(inner):
    dicts = st.dictionaries(keys, inner, max_size=4)
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        dicts,
        dicts.map(collections.OrderedDict),
        dicts.map(lambda items: collections.defaultdict(list, items)),
        st.builds(Box, inner, inner),
        st.builds(Sample, inner, inner),
        st.builds(Frozen, inner),
        st.builds(Slotted, inner),
    )


batches = st.recursive(scalars | numpy_scalars | arrays, containers, max_leaves=12)


# -------------------------------------------------------------------------------------------- round trips


@given(batches)
def test_any_nesting_comes_back_equal_and_of_the_same_types(batch):
    assert same(nest.unflatten(*nest.flatten(batch)), batch)
    assert same(travel(batch), batch)
    not_pickled, arrays = nest.flatten(batch, allow_pickle=True)
    assert same(nest.unflatten(not_pickled, arrays), batch)


INTEGERS = [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**400]
LONE_SURROGATES = {"__key__": ["caf\udce9.jpg", "plain"], "caf\udce9.jpg": 1}


@pytest.mark.parametrize(
    "batch",
    [*INTEGERS, [1, 2**64], [1, -(2**63) - 1], [], (), LONE_SURROGATES],
    ids=lambda batch: ascii(batch)[:20],
)
def test_what_msgpack_alone_lacks_and_empty_containers_come_back(batch):
    assert same(travel(batch), batch)


def test_arrays_are_returned_as_given_depth_first():
    class Later:
        dtype, shape = np.dtype("f4"), (2,)

        def write_into(self, out):
            out[:] = 1

    a, b, c, d = np.zeros(2, ">f4"), torch.zeros(3), np.zeros((4, 4)).T, Later()
    _, arrays = nest.flatten({"x": [a, {"y": b}], "z": (c, d)})
    assert all(x is y for x, y in zip(arrays, [a, b, c, d], strict=True))


def test_tensors_parameters_and_numpy_scalars_come_back_as_tensors():
    batch = [torch.arange(3), torch.nn.Parameter(torch.ones(2)), torch.ones(1).bfloat16(), np.float32(1.5)]
    received = travel(batch, output="torch")
    assert same(received, [torch.arange(3), torch.ones(2), torch.ones(1).bfloat16(), torch.tensor(1.5)])


def test_a_memory_map_is_an_array(tmp_path):
    mapped = np.memmap(tmp_path / "x.bin", "i4", "w+", shape=(3,))
    assert same(travel([mapped]), [np.zeros(3, "i4")])


def test_a_received_list_is_not_the_one_that_was_sent():
    batch = ["a", "b"]
    received = nest.unflatten(*nest.flatten(batch))
    received.append("c")
    assert batch == ["a", "b"]


@pytest.mark.parametrize("factory", [None, list, dict, int, set])
def test_a_defaultdict_keeps_a_builtin_factory(factory):
    received = travel(collections.defaultdict(factory, {"a": np.zeros(2)}))
    assert received.default_factory is factory


# ------------------------------------------------------------------------------------------------ classes


def test_instances_are_made_without_running_their_code():
    @at_home
    @dataclasses.dataclass
    class Careful:
        value: object

        def __post_init__(self):
            raise RuntimeError("ran")

        __setattr__ = __post_init__

    careful = object.__new__(Careful)
    object.__setattr__(careful, "value", 3)
    careful.__class__.__qualname__ = "Careful"
    received = travel(careful)
    assert type(received) is Careful
    assert received.value == 3


def test_no_instance_is_made_that_runs_code_when_it_is_dropped():
    dropped = []

    @at_home
    @dataclasses.dataclass
    class Cleaner:
        path: str

        def __del__(self):
            dropped.append(getattr(self, "path", None))

    Cleaner.__qualname__ = "Cleaner"
    with pytest.raises(TypeError, match="no dataclass of that name"):
        nest.unflatten([DATACLASS, ["/etc"], f"{home.__name__}:Cleaner", ["path"], None], [])
    assert dropped == []


@at_home
class Counted(typing.NamedTuple):
    value: object

    def __hash__(self):
        raise RuntimeError("ran")


@at_home
class Guarded(typing.NamedTuple):
    value: object

    def __iter__(self):
        raise RuntimeError("ran")


@at_home
@dataclasses.dataclass(frozen=True, eq=False)
class ByIdentity:
    value: object


def node_of(kind, values):
    tag = NAMEDTUPLE if issubclass(kind, tuple) else DATACLASS
    return [tag, values, f"{home.__name__}:{kind.__qualname__}", list(fields_of(kind)), None]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (node_of(Counted, [1]), "Counted"),
        (node_of(Frozen, [1]), "Frozen"),
        ([TUPLE, [0, node_of(Frozen, [1])]], "Frozen"),
        (node_of(Box, [0, node_of(Counted, [1])]), "Counted"),
    ],
)
def test_a_key_that_would_run_code_is_refused_where_unpickling_is_not_allowed(key, name):
    with pytest.raises(TypeError, match=f"a {name} in a dict's key, whose own __hash__ .*trust"):
        nest.unflatten([LIST, [[DICT, ["a", key], [1, 2]]]], [])


@pytest.mark.parametrize("key", [Frozen(1), (0, Frozen(1)), Box(0, (Frozen(1),))])
def test_a_key_that_would_run_code_travels_only_where_pickling_is_allowed(key):
    with pytest.raises(TypeError, match="batch's key .* is a Frozen, whose own __hash__"):
        nest.flatten({"a": 1, key: 2})
    assert travel({"a": 1, key: 2}, allow_pickle=True) == {"a": 1, key: 2}


def test_keys_that_run_no_code_travel():
    batch = {Box(1, (2, Box(3))): 4, "a": 5}
    assert travel(batch) == batch
    assert type(next(iter(travel(batch)))) is Box
    local = collections.namedtuple("Local", "a")
    assert travel({local(1): 2}) == {(1,): 2}
    (identical,) = travel({ByIdentity(1): 2})
    assert identical.value == 1
    (guarded,) = nest.unflatten([DICT, [node_of(Guarded, [1])], [2]], [])
    assert guarded.value == 1


def test_numbers_of_numpys_that_are_keys_are_found_by_what_they_equal():
    batch = {np.int64(3): 1, (np.float32(0.5), "a"): 2, np.bool_(False): {np.uint8(7): 3}}
    structure, arrays = nest.flatten(batch)
    assert arrays == []
    assert nest.unflatten(structure, arrays) == {3: 1, (0.5, "a"): 2, False: {7: 3}} == batch


def test_a_namedtuple_that_is_not_imported_comes_back_as_an_equivalent_one():
    point = collections.namedtuple("Point", ["x", "class"], rename=True)(np.zeros(2), "a")
    received = travel(point)
    assert (type(received).__name__, type(received).__module__) == ("Point", __name__)
    assert received._fields == ("x", "_1")
    assert isinstance(received, tuple)
    assert received.x.tolist() == [0, 0]
    assert type(travel(point)) is type(received)


def test_a_dataclass_that_is_not_imported_is_an_error_that_names_it(monkeypatch):
    structure, arrays = nest.flatten({"meta": [1, Frozen(2)]})
    monkeypatch.delitem(sys.modules, home.__name__)
    with pytest.raises(TypeError, match="a 'Frozen' of module 'home_of_test_classes'"):
        nest.unflatten(structure, arrays)


def test_a_dataclass_of_the_same_name_with_other_fields_is_not_taken_for_it(monkeypatch):
    structure, arrays = nest.flatten(Frozen(2))
    monkeypatch.setattr(home, "Frozen", dataclasses.make_dataclass("Frozen", ["values"]))
    with pytest.raises(TypeError, match=r"no dataclass of that name with the fields \['value'\]"):
        nest.unflatten(structure, arrays)


def test_receiving_imports_no_module():
    structure = [10, [1], "this:s", ["s"], None]
    sys.modules.pop("this", None)
    with pytest.raises(TypeError, match="import it before receiving"):
        nest.unflatten(structure, [])
    assert "this" not in sys.modules


def test_local_classes_travel_where_pickling_is_allowed():
    @dataclasses.dataclass
    class Local:
        value: object

    Pair = collections.namedtuple("Pair", "a b")
    received = travel([Local(np.arange(3)), Pair(1, 2), Local(1)], allow_pickle=True)
    assert [type(item) for item in received] == [Local, Pair, Local]
    assert received[0].value.tolist() == [0, 1, 2]


def test_a_local_dataclass_is_refused_where_pickling_is_not_allowed():
    @dataclasses.dataclass
    class Local:
        value: object

    with pytest.raises(TypeError, match=r"batch\[0\] is a .*Local, a dataclass that is local to a function"):
        nest.flatten([Local(1)])


def test_classes_of_main_reach_a_process_with_another_main(tmp_path):
    program = textwrap.dedent("""
        import dataclasses, sys, numpy as np
        from mpwds import nest
        @dataclasses.dataclass
        class Point:
            x: object
            def norm(self): return abs(self.x)
        structure, arrays = nest.flatten([Point(-2), Point(-3)], allow_pickle=True)
        sys.stdout.buffer.write(nest.pack({"structure": structure}))
    """)
    sent = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True).stdout
    received = nest.unflatten(nest.unpack(sent)["structure"], [], allow_pickle=True)
    assert [point.norm() for point in received] == [2, 3]
    assert type(received[0]) is type(received[1])


# ------------------------------------------------------------------------------------------ other objects


class Colour(enum.Enum):
    RED = 1


class Names(list):
    pass


@dataclasses.dataclass
class OwnState:
    value: int

    def __getstate__(self):
        return {"value": self.value + 1}


@dataclasses.dataclass
class WithProperty:
    value: int

    @property
    def value(self):
        return 3

    @value.setter
    def value(self, value):
        pass


def with_extra():
    sample = Sample(1)
    sample.extra = 2
    return sample


def float8_with_extra():
    tensor = torch.ones(2).to(torch.float8_e4m3fn)
    tensor.extra = 2
    return tensor


def without_field():
    sample = Sample(1)
    del sample.__dict__[dataclasses.fields(sample)[0].name]
    return sample


OTHERS = [
    {1, 2},
    range(3),
    Colour.RED,
    Names([1]),
    np.array(["a", "b"]),
    np.array([None, 1]),
    np.array(["2020-01-01"], "M8[D]"),
    np.zeros(2, [("a", "f4")]),
    np.ma.masked_array([1, 2], [True, False]),
    np.str_("a"),
    torch.zeros(2, 2).to_sparse(),
    torch.Size([1, 2]),
    collections.defaultdict(lambda: 3),
    OwnState(1),
    WithProperty(1),
    with_extra(),
    without_field(),
    float8_with_extra(),
    memoryview,
]


@pytest.mark.parametrize("item", OTHERS, ids=lambda item: type(item).__name__)
def test_other_objects_are_refused_with_their_path_and_pickled_where_that_is_allowed(item):
    refusal = r'batch\["meta"\]\[3\]\.corner is a .*which can only be sent pickled'
    with pytest.raises(TypeError, match=refusal):
        nest.flatten({"x": np.zeros(2), "meta": [1, 2, "a", Box(item)]})
    (received,) = travel([item], allow_pickle=True)
    assert type(received).__name__ == type(item).__name__
    assert getattr(received, "__dict__", {}).keys() == getattr(item, "__dict__", {}).keys()


def test_arrays_inside_a_pickled_object_are_correct():
    names = Names([np.arange(3), torch.arange(2)])
    (received,) = travel([names], allow_pickle=True)
    assert same(list(received), list(names))
    assert travel(with_extra(), allow_pickle=True).extra == 2


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        ({"meta": [0, {1}]}, "value"),
        ({"meta": Box(0, {1})}, "value"),
        ({"meta": {(1, 2): {1}}}, "value"),
        ([collections.namedtuple("Local", "a")(1)], "class"),
    ],
)
def test_a_pickle_is_refused_where_unpickling_is_not_allowed(batch, what):
    structure, arrays = nest.flatten(batch, allow_pickle=True)
    with pytest.raises(TypeError, match=f"a {what}, which is pickled"):
        nest.unflatten(structure, arrays)


def test_a_bad_key_is_refused_with_its_path():
    with pytest.raises(TypeError, match=r"batch\[0\]'s key frozenset\(\) is a frozenset"):
        nest.flatten([{frozenset(): 1}])


@pytest.mark.parametrize("error", [TypeError, ValueError, AttributeError, ZeroDivisionError])
def test_an_error_of_an_objects_own_pickling_is_one_with_its_path(error):
    class Unwilling:
        def __reduce__(self):
            raise error("not me")

    with pytest.raises(TypeError, match=r"batch\[.a.\] is a .*Unwilling, which cannot be pickled: not me"):
        nest.flatten({"a": Unwilling()}, allow_pickle=True)


def test_what_cannot_be_pickled_either_is_refused_with_its_path_beside_objects_held_many_times_too():
    level = [1]
    for _ in range(25):
        level = [level, level]
    pickled = collections.defaultdict(lambda: 3, level=level)
    for beside in (1, pickled):
        with pytest.raises(TypeError, match=r"batch\[1\] is a lock, which cannot be pickled: "):
            nest.flatten([beside, threading.Lock()], allow_pickle=True)


# -------------------------------------------------------------------------------------------------- depth


def nested(depth):
    batch = np.zeros(1)
    for index in range(depth):
        batch = [batch] if index % 2 else {"a": batch}
    return batch


def test_batches_may_be_nested_128_deep():
    assert same(travel(nested(nest.MAX_DEPTH)), nested(nest.MAX_DEPTH))


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_deeper_and_cyclic_batches_are_refused(allow_pickle):
    cyclic = {"a": np.zeros(1)}
    cyclic["self"] = [cyclic]
    for batch in (nested(nest.MAX_DEPTH + 1), cyclic):
        with pytest.raises(ValueError, match="more than 128 levels deep, or contains itself"):
            nest.flatten(batch, allow_pickle=allow_pickle)


def test_deeper_structures_are_refused():
    structure = 1
    for _ in range(nest.MAX_DEPTH + 1):
        structure = [2, [structure]]
    with pytest.raises(EnvelopeError, match="more than 128 levels deep"):
        nest.unflatten(structure, [])


# ----------------------------------------------------------------------------------- malformed structures


NO_NODES = [{}, (2, []), object(), [], [99], ["a"], [True], [[0]], [-1]]
INCOMPLETE = [[0], [1], [2], [2, 3], [2, [], []], [4, ["a"], []]]
FALSE_CONTENTS = [[7, [[0]]], [7, "abc"], [8, {}], [11, "12"], [12, "1", 2.0], [13, "abc"], [14, "abc"]]
BAD_DICTS = [[4, ["a", "a"], [1, 2]], [4, [[2, []]], [1]], [6, [], [], "object"], [6, [], [], ["list"]]]
BAD_INSTANCES = [
    [9, [1], "a:b", ["x", "y"], None],
    [9, [1, 2], "a:b", ["x", "x"], None],
    [9, [1], "a:b c", ["x"], None],
    [9, [1], "a:b", ["x y"], None],
    [9, [1], "a:b", [1], None],
    [9, [1], 3, ["x"], None],
    [9, [1], "a:b", ["x"], 3],
    [10, [1, 2], "home_of_test_classes:Frozen", ["value"], None],
]


@pytest.mark.parametrize(
    "structure",
    [*NO_NODES, *INCOMPLETE, *FALSE_CONTENTS, *BAD_DICTS, *BAD_INSTANCES],
    ids=lambda structure: repr(structure).partition(" at 0x")[0],
)
def test_a_malformed_structure_is_refused(structure):
    with pytest.raises(EnvelopeError):
        nest.unflatten(structure, [])


def test_structure_and_arrays_must_fit():
    structure, arrays = nest.flatten([np.zeros(2), np.float32(1)])
    with pytest.raises(EnvelopeError, match="more arrays than came"):
        nest.unflatten(structure, arrays[:1])
    with pytest.raises(EnvelopeError, match="fewer arrays than the 3"):
        nest.unflatten(structure, [*arrays, arrays[0]])
    with pytest.raises(EnvelopeError, match=r"scalar for an array of shape \(2,\)"):
        nest.unflatten(structure, arrays[::-1])


@pytest.mark.parametrize("pickled", [b"", b"nonsense", cloudpickle.dumps(3)])
def test_a_bad_pickle_is_refused(pickled):
    if pickled != cloudpickle.dumps(3):
        with pytest.raises(EnvelopeError, match="cannot be opened"):
            nest.unflatten([14, pickled], [], allow_pickle=True)
    with pytest.raises(EnvelopeError):
        nest.unflatten([9, [1], "a:b", ["x"], pickled], [], allow_pickle=True)


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3)
tags = st.integers(-1, 16)


@contextlib.contextmanager
def refused_or_read():
    try:
        yield
    except EnvelopeError:
        pass
    except TypeError as error:
        assert "is pickled" in str(error) or "import it before" in str(error)  # noqa: PT017  (either may be)


@given(
    st.recursive(
        plain | st.builds(lambda tag: [tag], tags),
        lambda inner: st.one_of(
            st.builds(lambda tag, rest: [tag, *rest], tags, st.lists(inner, max_size=4)),
            st.builds(lambda tag, rest: [tag, rest], tags, st.lists(inner, max_size=4)),
            st.builds(lambda tag, a, b: [tag, a, b], tags, st.lists(inner), st.lists(inner)),
            st.builds(lambda tag, a, b: [tag, a, "x:Y", b, None], tags, st.lists(inner), st.lists(inner)),
        ),
        max_leaves=20,
    )
)
def test_random_structures_are_refused_or_read(structure):
    for _ in range(2):
        with refused_or_read():
            nest.unflatten(structure, [np.zeros(()), np.zeros(2)])
        try:
            structure = nest.unpack(nest.pack({"structure": structure}))["structure"]
        except ValueError:
            return


# ----------------------------------------------------------------------------------------------- envelope


@given(st.dictionaries(st.text().filter(lambda name: name != "mpwds"), plain.filter(lambda x: x == x)))
def test_fields_come_back_from_an_envelope(fields):
    try:
        packed = nest.pack(fields)
    except ValueError:
        assert any(type(x) is int and not -(2**63) <= x < 2**64 for x in fields.values())
    else:
        assert same(nest.unpack(packed), fields)
        assert same(nest.unpack(memoryview(packed)), fields)


def test_another_version_is_refused_with_both_versions_named():
    with pytest.raises(EnvelopeError, match="version 7, this mpwds speaks version 1"):
        nest.unpack(msgpack.packb({"mpwds": 7, "x": 1}))


@pytest.mark.parametrize("fields", [{}, {"sequence": 7}, {"structure": [4, ["x"], [[7, ["text"] * 5000]]]}])
def test_an_envelope_of_a_trusted_process_holds_the_same(fields):
    assert nest.unpack(nest.pack(fields), trusted=True) == fields
    with pytest.raises(EnvelopeError, match="version"):
        nest.unpack(b"\x80", trusted=True)


@pytest.mark.parametrize(
    "message",
    [{}, {"x": 1}, {"mpwds": "1"}, {"mpwds": True}, {"mpwds": None}, [1], 1, None, {"mpwds": 1, 2: 3}],
    ids=repr,
)
def test_other_messages_are_no_envelopes(message):
    with pytest.raises(EnvelopeError):
        nest.unpack(msgpack.packb(message))


@pytest.mark.parametrize(
    "message", [b"", b"\xc1", b"\x81", b"\x81\x90\x01", b"\xdd\xff\xff\xff\xff", b"\x80\x80"]
)
def test_what_is_no_msgpack_is_no_envelope(message):
    with pytest.raises(EnvelopeError):
        nest.unpack(message)
    with pytest.raises(EnvelopeError):
        nest.unpack(message * 2000)


@given(st.binary(max_size=2000))
def test_random_bytes_are_no_envelope(data):
    with pytest.raises(EnvelopeError):
        nest.unpack(data)


@given(batches, st.data())
def test_damaged_envelopes_are_refused_or_read(batch, data):
    structure, arrays = nest.flatten(batch)
    packed = bytearray(nest.pack({"structure": structure}))
    if data.draw(st.booleans()):
        for _ in range(data.draw(st.integers(1, 3))):
            packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    else:
        del packed[data.draw(st.integers(0, len(packed) - 1)) :]
    with refused_or_read():
        structure = nest.unpack(bytes(packed)).get("structure")
        nest.unflatten(structure, arrays)


@pytest.mark.parametrize("size", [1000, 100_000])
@pytest.mark.parametrize("levels", [1, 30, 500])
def test_false_lengths_in_an_envelope_cost_no_memory(size, levels):
    claim = b"\xdd" + (size // 2).to_bytes(4, "big")
    data = b"\x82\xa5mpwds\x01\xa1x" + (claim * min(levels, size // 6))
    data += b"\xc0" * (size - len(data))
    with allocating_below(20 * size + 2_000_000), pytest.raises(EnvelopeError):
        nest.unpack(data)


def test_the_version_field_is_taken():
    with pytest.raises(ValueError, match="'mpwds' holds its version"):
        nest.pack({"mpwds": 1})


def test_values_that_msgpack_does_not_know_are_refused():
    with pytest.raises(TypeError):
        nest.pack({"x": {1, 2}})
    with pytest.raises(ValueError, match="cannot send"):
        nest.pack({"x": 2**64})
