import io
import mmap
import re
import struct
import subprocess
import sys
import warnings

import ml_dtypes
import numpy as np
import pytest
import tensorcom.tenbin
import torch
import webdataset.tenbin
import zmq
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpwds import tenbin
from mpwds.errors import TenbinError
from tests.memory import allocating_below

THEIR_DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u8"]
DTYPES = [*THEIR_DTYPES, "u4", "?", "c8", "c16"]
THEIRS = [webdataset.tenbin, tensorcom.tenbin]
both = pytest.mark.parametrize("theirs", THEIRS, ids=lambda module: module.__name__.split(".")[0])

names = st.text("abcXYZ019_ /", max_size=8)
shapes = hnp.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=4)


@st.composite
def arrays(draw, dtypes=DTYPES, shapes=shapes):
    """Arrays of every dtype, byte order, and memory layout."""
    dtype = np.dtype(draw(st.sampled_from(dtypes))).newbyteorder(draw(st.sampled_from("<>")))
    array = draw(hnp.arrays(dtype, draw(shapes)))
    change = draw(st.sampled_from(["none", "transpose", "reverse", "every second", "broadcast", "read-only"]))
    if change == "transpose":
        return array.T
    if change == "reverse" and array.ndim:
        return array[::-1]
    if change == "every second" and array.ndim:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    if change == "broadcast":
        return np.broadcast_to(array, (2, *array.shape))
    if change == "read-only":
        array.flags.writeable = False
    return array


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype.newbyteorder("<")
        assert a.shape == b.shape
        assert a.tobytes() == b.astype(a.dtype).tobytes()


# ------------------------------------------------------------------------------------------- round trips


@given(st.lists(st.tuples(arrays(), names), max_size=4))
def test_arrays_and_names_come_back_from_buffers_streams_and_frames(pairs):
    sent, infos = [a for a, _ in pairs], [name for _, name in pairs]
    buffer = tenbin.encode_buffer(sent, infos)
    assert len(buffer) == tenbin.encoded_nbytes(sent)
    received, received_names = tenbin.decode_buffer(buffer, infos=True)
    assert_same(received, sent)
    assert received_names == infos
    stream = io.BytesIO()
    tenbin.write(stream, sent, infos)
    assert stream.getvalue() == buffer
    stream.seek(0)
    assert_same(tenbin.read(stream, infos=infos), sent)
    assert_same(tenbin.decode_list(tenbin.encode_list(sent, infos), infos=tuple(infos)), sent)


@given(arrays(), st.integers(0, 3))
def test_one_array_can_be_written_at_any_offset(array, sixteenths):
    offset = 16 * sixteenths
    buffer = bytearray(b"\xff" * (offset + tenbin.array_nbytes(array) + 5))
    end = tenbin.write_array(buffer, offset, array, "x")
    assert end == offset + tenbin.array_nbytes(array)
    assert buffer[:offset] == b"\xff" * offset
    assert buffer[end:] == b"\xff" * 5
    header = tenbin.parse_array(buffer, offset)
    assert (header.name, header.shape, header.end) == ("x", array.shape, end)
    assert header.data_offset == offset + tenbin.data_offset(array.ndim)
    assert_same([tenbin.view_array(buffer, header)], [array])
    assert buffer[offset:end] == tenbin.encode_buffer([array], ["x"])
    assert not any(buffer[header.data_offset + header.nbytes : end])


@given(arrays())
def test_tensors_come_back_as_tensors(array):
    tensor = torch.from_numpy(np.array(array, array.dtype.newbyteorder("=")))
    (received,) = tenbin.decode_buffer(tenbin.encode_buffer([tensor]), output="torch")
    assert received.dtype == tensor.dtype
    assert received.shape == tensor.shape
    assert received.numpy().tobytes() == tensor.numpy().tobytes()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T,
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.zeros(0, 3, dtype=torch.bfloat16),
        torch.arange(8.0)[::2],
        torch.arange(3.0).expand(2, 3),
        torch.ones(3, requires_grad=True),
        torch.ones(3, dtype=torch.bfloat16, requires_grad=True),
        torch.nn.Parameter(torch.ones(3)),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
        torch.zeros([1] * 32),
    ],
    ids=str,
)
def test_every_dense_cpu_tensor_can_be_sent(tensor):
    (received,) = tenbin.decode_buffer(tenbin.encode_buffer([tensor]), output="torch")
    assert received.dtype == tensor.dtype
    assert received.shape == tensor.shape
    assert torch.equal(received, tensor)


def test_bfloat16_is_the_same_for_numpy_and_torch():
    tensor = torch.tensor([[1.5, -2.0], [3.0, torch.inf]], dtype=torch.bfloat16)
    (array,) = tenbin.decode_buffer(tenbin.encode_buffer([tensor]))
    assert array.dtype == ml_dtypes.bfloat16
    assert array.astype("f4").tolist() == tensor.tolist()
    assert tenbin.encode_buffer([array.T]) == tenbin.encode_buffer([tensor.T])


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "|b1", ml_dtypes.bfloat16], ids=str)
def test_deferred_arrays_are_written_in_their_place(dtype):
    class Deferred:
        shape = (2, 3)

        def write_into(self, out):
            assert out.dtype == self.dtype
            assert out.flags.c_contiguous
            out[...] = [[0, 1, 1], [1, 0, 0]]

    deferred = Deferred()
    deferred.dtype = np.dtype(dtype)
    array = np.array([[0, 1, 1], [1, 0, 0]], dtype)
    expected = tenbin.encode_buffer([array])
    assert tenbin.encode_buffer([deferred]) == expected
    assert [bytes(frame) for frame in tenbin.encode_list([deferred])] == [
        bytes(frame) for frame in tenbin.encode_list([array])
    ]


def test_data_is_not_copied_between_buffer_and_arrays():
    buffer = tenbin.encode_buffer([np.zeros(3, "u1"), np.zeros((2, 2))])
    small, large = tenbin.decode_buffer(buffer)
    tensor = tenbin.decode_buffer(buffer, output="torch")[1]
    small[:] = 7
    large[1, 1] = 8
    assert tensor[1, 1] == 8
    assert tenbin.decode_buffer(buffer)[0].tolist() == [7, 7, 7]


def test_a_view_keeps_its_mapping_open():
    mapping = mmap.mmap(-1, 4096)
    end = tenbin.write_array(mapping, 0, np.arange(5))
    view = tenbin.view_array(mapping, tenbin.parse_array(mapping, 0))
    with pytest.raises(BufferError):
        mapping.close()
    assert end == 160
    assert view.tolist() == [0, 1, 2, 3, 4]


def test_read_only_buffers_give_read_only_arrays_and_private_tensors():
    data = bytes(tenbin.encode_buffer([np.arange(3), np.arange(2)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        array, _ = tenbin.decode_buffer(data)
        tensor, _ = tenbin.decode_buffer(data, output="torch")
        single = tenbin.view_array(data, tenbin.parse_array(data, 0), "torch")
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    tensor[0] = single[0] = 9
    assert array.tolist() == [0, 1, 2]


def test_frames_are_views_of_contiguous_arrays():
    array = np.zeros((2, 3), "f4")
    frame = tenbin.encode_list([array])[1]
    array[0, 0] = 1
    assert struct.unpack_from("<f", frame) == (1.0,)


# --------------------------------------------------------------------------------- webdataset and tensorcom

their_shapes = hnp.array_shapes(min_dims=1, max_dims=6, min_side=0, max_side=4)


@both
@given(data=st.data())
def test_they_decode_what_we_encode(theirs, data):
    pairs = data.draw(st.lists(st.tuples(arrays(THEIR_DTYPES, their_shapes), names), min_size=1, max_size=3))
    sent, infos = [a for a, _ in pairs], [name for _, name in pairs]
    received, received_names = theirs.decode_buffer(tenbin.encode_buffer(sent, infos), infos=True)
    assert_same(received, sent)
    assert received_names == infos
    frames = [bytes(frame) for frame in tenbin.encode_list(sent, infos)]
    assert_same(theirs.decode_list(frames), sent)


@both
@given(data=st.data())
def test_we_decode_what_they_encode(theirs, data):
    own = arrays(THEIR_DTYPES, their_shapes).map(lambda a: np.ascontiguousarray(a, a.dtype.newbyteorder("<")))
    pairs = data.draw(st.lists(st.tuples(own, names), min_size=1, max_size=3))
    sent, infos = [a for a, _ in pairs], [name for _, name in pairs]
    stream = io.BytesIO()
    theirs.write(stream, sent, infos)
    assert stream.getvalue() == tenbin.encode_buffer(sent, infos)
    received, received_names = tenbin.decode_buffer(stream.getvalue(), infos=True)
    assert_same(received, sent)
    assert received_names == infos
    assert_same(tenbin.decode_list(theirs.encode_list(sent, infos)), sent)


@both
def test_files_are_exchanged_both_ways(theirs, tmp_path):
    sent = [np.arange(5), np.zeros((2, 2), "f4")]
    theirs.save(str(tmp_path / "theirs.ten"), *sent, infos=["a", "b"])
    tenbin.save(tmp_path / "ours.ten", *sent, infos=["a", "b"])
    assert (tmp_path / "theirs.ten").read_bytes() == (tmp_path / "ours.ten").read_bytes()
    assert_same(tenbin.load(tmp_path / "theirs.ten", infos=["a", "b"]), sent)
    assert_same(theirs.load(str(tmp_path / "ours.ten")), sent)


@pytest.fixture
def sockets():
    context = zmq.Context()
    left, right = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    left.bind("inproc://tenbin")
    right.connect("inproc://tenbin")
    yield left, right
    context.destroy(linger=0)


@both
@pytest.mark.parametrize(
    "array", [np.zeros((2, 3), "uint8"), np.zeros((), "float64"), np.zeros((0, 4), "i2")]
)
def test_headers_and_names_are_those_of_the_peers(theirs, array):
    head = tenbin.encode_header(array, "images")
    assert head == bytes(theirs.encode_header(array, "images"))
    assert tenbin.decode_header(head) == theirs.decode_header(head) == (array.shape, array.dtype, "images")
    for name in ("", "f4", "~TenBin~"):
        assert tenbin.str64(name) == theirs.str64(name)
        assert tenbin.unstr64(theirs.str64(name)) == name
    with pytest.raises(TenbinError, match="needs 24 bytes"):
        tenbin.decode_header(head[:20])


@pytest.mark.parametrize("kind", ["single", "multipart"])
@pytest.mark.parametrize("sender", [tenbin, tensorcom.tenbin], ids=["we-send", "they-send"])
@pytest.mark.parametrize("receiver", [tenbin, tensorcom.tenbin], ids=["we-receive", "they-receive"])
def test_zmq_messages_are_exchanged_both_ways(sockets, kind, sender, receiver):
    sent = [np.arange(5), np.zeros((200, 200), "f4"), np.zeros((0, 3), "u1")]
    getattr(sender, f"zsend_{kind}")(sockets[0], sent, infos=["a", "", "c"])
    received, infos = getattr(receiver, f"zrecv_{kind}")(sockets[1], infos=True)
    assert_same(received, sent)
    assert infos == ["a", "", "c"]


def test_zmq_tensors_are_received_without_a_warning(sockets):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tenbin.zsend_multipart(sockets[0], [torch.ones(3)])
        assert tenbin.zrecv_multipart(sockets[1], output="torch")[0].tolist() == [1, 1, 1]
        tenbin.zsend_single(sockets[0], [torch.ones(3)])
        assert tenbin.zrecv_single(sockets[1], output="torch")[0].tolist() == [1, 1, 1]


# ----------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array(["a"]), "no code for arrays of dtype <U1"),
        (np.array([None]), "no code for arrays of dtype object"),
        (np.array(["2020-01-01"], "M8[D]"), "no code for arrays of dtype datetime64"),
        (np.zeros(2, [("a", "f4")]), "no code for arrays of dtype"),
        (np.zeros(2, "longdouble"), "no code for arrays of dtype"),
        (np.ma.masked_array([1, 2], [True, False]), "mask"),
        ([1, 2], "expected an array or a tensor, got list"),
        (3, "expected an array or a tensor, got int"),
        (torch.zeros(2).to(torch.float8_e5m2), "no code for tensors of dtype torch.float8_e5m2"),
        (torch.zeros(2, 2).to_sparse(), "not dense"),
        (torch.zeros(2, device="meta"), "device meta"),
        (torch.zeros([1] * 33), "33 dimensions"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_tenbin_cannot_hold_is_refused_by_name(array, message):
    assert not tenbin.holds(array)
    with pytest.raises(TenbinError, match=re.escape(message)):
        tenbin.encode_buffer([array])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused():
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    assert not tenbin.holds(nested)
    with pytest.raises(TenbinError, match="not dense"):
        tenbin.encode_list([nested])


TWO = [np.zeros(2), np.zeros(2)]
FRAMES = tenbin.encode_list(TWO)
MISUSES = {
    "a bare array": (lambda: tenbin.encode_buffer(np.zeros((2, 3))), "list or tuple"),
    "a name of nine characters": (
        lambda: tenbin.encode_buffer(TWO, ["a", "ninechars"]),
        "8 ASCII characters",
    ),
    "a name with an umlaut": (lambda: tenbin.encode_buffer(TWO, ["a", "ä"]), "8 ASCII characters"),
    "a name with a zero": (lambda: tenbin.encode_buffer(TWO, ["a", "a\0"]), "8 ASCII characters"),
    "a number as a name": (lambda: tenbin.encode_buffer(TWO, ["a", 7]), "8 ASCII characters"),
    "no name": (lambda: tenbin.encode_buffer(TWO, ["a", None]), "8 ASCII characters"),
    "names in a text": (lambda: tenbin.encode_buffer(TWO, "ab"), "infos must be a list"),
    "a switch for names": (lambda: tenbin.encode_buffer(TWO, True), "infos must be a list"),
    "a dict of names": (lambda: tenbin.encode_buffer(TWO, {"a": 1, "b": 2}), "infos must be a list"),
    "too few names": (lambda: tenbin.encode_buffer(TWO, ["a"]), "1 names for 2 arrays"),
    "a read-only buffer": (lambda: tenbin.encode_into(bytes(1000), TWO), "read-only"),
    "a buffer with gaps": (lambda: tenbin.decode_buffer(np.zeros(320, "u1")[::2]), "contiguous"),
    "a message without an array": (lambda: tenbin.zsend_multipart(None, []), "at least one"),
    "a frame too few": (lambda: tenbin.decode_list(FRAMES[:-1]), "one is missing"),
    "a short frame": (lambda: tenbin.decode_list([FRAMES[0], bytes(15)]), "frame 1 has 15 bytes"),
    "a long frame": (lambda: tenbin.decode_list([FRAMES[0], bytes(17)]), "frame 1 has 17 bytes"),
}


@pytest.mark.parametrize(("call", "words"), MISUSES.values(), ids=MISUSES)
def test_misuse_is_an_error_that_says_what_is_wrong(call, words):
    with pytest.raises(TenbinError, match=words):
        call()


@pytest.mark.parametrize("dtype", ["f8", "i8", "u8", "c16"])
def test_64_bit_types_need_allow64_and_others_do_not(dtype):
    small = [np.zeros(2, smaller) for smaller in ("f4", "i4", "u4", "c8", "?")]
    tenbin.check_acceptable_input_type(small, allow64=False)
    tenbin.check_acceptable_input_type([np.zeros(2, dtype)], allow64=True)
    with pytest.raises(TenbinError, match="allow64"):
        tenbin.check_acceptable_input_type([*small, np.zeros(2, dtype)], allow64=False)
    with pytest.raises(TenbinError, match="allow64"):
        tenbin.encode_buffer([np.zeros(2, dtype)], allow64=False)


@pytest.mark.parametrize("required", [["a"], ["a", "c"], ["a", "b", "c"], ()])
def test_other_names_than_required_are_refused(required):
    buffer = tenbin.encode_buffer([np.zeros(2), np.zeros(2)], ["a", "b"])
    assert len(tenbin.decode_buffer(buffer, infos=("a", "b"))) == 2
    with pytest.raises(TenbinError, match=re.escape("named ['a', 'b'], required are")):
        tenbin.decode_buffer(buffer, infos=required)


def test_nothing_is_written_to_a_buffer_that_is_too_small():
    arrays = [np.ones(3), np.ones(3)]
    buffer = bytearray(tenbin.encoded_nbytes(arrays) - 1)
    with pytest.raises(TenbinError, match="320 bytes encoded and the buffer has 319"):
        tenbin.encode_into(buffer, arrays)
    with pytest.raises(TenbinError, match="needs the buffer up to 320"):
        tenbin.write_array(buffer, 160, arrays[0])
    assert not any(buffer)


def test_nothing_is_written_when_the_last_array_or_name_is_refused():
    buffer = bytearray(1000)
    with pytest.raises(TenbinError):
        tenbin.encode_into(buffer, [np.ones(3), np.array([None])])
    with pytest.raises(TenbinError):
        tenbin.encode_into(buffer, [np.ones(3), np.ones(3)], ["a", "much too long"])
    assert not any(buffer)


def test_file_names_end_in_ten_unless_told_otherwise(tmp_path):
    with pytest.raises(ValueError, match=r"should end in \.ten"):
        tenbin.save(tmp_path / "x.bin", np.zeros(2))
    with pytest.raises(ValueError, match=r"should end in \.ten"):
        tenbin.load(tmp_path / "x.bin")
    tenbin.save(tmp_path / "x.bin", np.zeros(2), nocheck=True)
    assert tenbin.load(str(tmp_path / "x.bin"), nocheck=True)[0].tolist() == [0, 0]


def test_a_file_is_left_alone_when_the_arrays_cannot_be_saved(tmp_path):
    tenbin.save(tmp_path / "x.ten", np.arange(3))
    with pytest.raises(TenbinError):
        tenbin.save(tmp_path / "x.ten", np.arange(3), np.array([None]))
    assert tenbin.load(tmp_path / "x.ten")[0].tolist() == [0, 1, 2]


def test_an_unknown_output_is_refused():
    with pytest.raises(ValueError, match="'jax'"):
        tenbin.decode_buffer(tenbin.encode_buffer([np.zeros(2)]), output="jax")


# ---------------------------------------------------------------------------------------------- streams


class Trickle(io.RawIOBase):
    """A raw stream that gives and takes little at a time."""

    def __init__(self, data=b""):
        self.data = bytearray(data)

    def readable(self):
        return True

    def writable(self):
        return True

    def readinto(self, buffer):
        size = min(7, len(buffer), len(self.data))
        buffer[:size] = self.data[:size]
        del self.data[:size]
        return size

    def write(self, data):
        self.data += data[:11]
        return min(11, len(data))


def test_streams_may_give_and_take_less_than_asked():
    stream = Trickle()
    tenbin.write(stream, [np.arange(50), np.zeros((2, 2))])
    assert bytes(stream.data) == tenbin.encode_buffer([np.arange(50), np.zeros((2, 2))])
    assert_same(tenbin.read(stream), [np.arange(50), np.zeros((2, 2))])


def test_read_takes_n_arrays_and_leaves_the_rest():
    stream = io.BytesIO(tenbin.encode_buffer([np.arange(n) for n in range(4)]))
    assert_same(tenbin.read(stream, n=1), [np.arange(0)])
    assert_same(tenbin.read(stream, n=2), [np.arange(1), np.arange(2)])
    assert_same(tenbin.read(stream, n=2), [np.arange(3)])
    assert tenbin.read(stream) == []


def test_what_is_no_tenbin_is_not_read_to_its_end():
    stream = io.BytesIO(b"a text of any length, " * 1000)
    with pytest.raises(TenbinError, match="tenbin at offset 0 has"):
        tenbin.read(stream)
    assert stream.tell() == 16


def test_arrays_larger_than_a_piece_are_read_whole():
    array = np.arange(1_000_000, dtype="i4")
    assert_same(tenbin.read(io.BytesIO(tenbin.encode_buffer([array]))), [array])


# ----------------------------------------------------------------------------------------- hostile input


def decoders(data):
    yield lambda: tenbin.decode_buffer(data)
    yield lambda: tenbin.decode_buffer(data, output="torch")
    yield lambda: tenbin.decode_buffer(bytearray(data), infos=True)
    yield lambda: tenbin.read(io.BytesIO(data))
    yield lambda: tenbin.decode_list([data[16:64], data[96:]])


def assert_decodes_or_refuses(data):
    for decode in decoders(data):
        try:
            decode()
        except TenbinError as error:
            offset = error.offset
        else:
            offset = 0
        assert 0 <= offset <= len(data)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    assert_decodes_or_refuses(data)


@given(arrays(), names, st.data())
def test_flipped_bytes_are_refused_or_decoded(array, name, data):
    buffer = tenbin.encode_buffer([array, array], [name, "b"])
    for _ in range(data.draw(st.integers(1, 3))):
        buffer[data.draw(st.integers(0, len(buffer) - 1))] = data.draw(st.integers(0, 255))
    assert_decodes_or_refuses(bytes(buffer))


@given(st.sampled_from(DTYPES), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), st.data())
def test_any_dimensions_are_refused_or_decoded(dtype, dims, data):
    dims = [*dims, *data.draw(st.lists(st.sampled_from([0, 1, 2, 2**31, 2**62, -1]), max_size=3))]
    dims = data.draw(st.permutations(dims))
    buffer = tenbin.encode_buffer([np.zeros([0] * len(dims), dtype)])
    struct.pack_into(f"<{len(dims)}q", buffer, 40, *dims)
    assert_decodes_or_refuses(bytes(buffer))


@pytest.mark.parametrize("dims", [(2**62, 0, 2**62), (0, -1), (2**63 - 1, 0)])
def test_absurd_dimensions_of_an_empty_array_are_refused(dims):
    buffer = tenbin.encode_buffer([np.zeros([0] * len(dims), "f8")])
    struct.pack_into(f"<{len(dims)}q", buffer, 40, *dims)
    with pytest.raises(TenbinError, match="larger than any memory") as caught:
        tenbin.decode_buffer(buffer)
    assert caught.value.offset == 40


@given(arrays(), st.data())
def test_truncation_anywhere_is_refused(array, data):
    buffer = tenbin.encode_buffer([array, array])
    stop = data.draw(st.integers(1, len(buffer) - 1).filter(lambda n: n != len(buffer) // 2))
    for decode in (tenbin.decode_buffer, lambda part: tenbin.read(io.BytesIO(part))):
        with pytest.raises(TenbinError, match="truncated") as caught:
            decode(bytes(buffer[:stop]))
        assert caught.value.offset <= stop


# False values of the field at an offset; a third number is where the fault shows, if it is another field.
FALSE = {
    (0,): [b"~TenBix~"],
    (8,): [-1, 23, 2**62],
    (8, 32): [48],
    (16,): [b"f4\0x", b"f16"],
    (24,): [b"\xff"],
    (32,): [-1, 2, 2**62],
    (40, 88): [4, -3],
    (80,): [b"nonsense"],
    (88,): [2**62, -12, 11],
}


@pytest.mark.parametrize(
    ("at", "value", "offset"), [(at[0], value, at[-1]) for at, values in FALSE.items() for value in values]
)
def test_a_false_field_is_refused_with_its_offset(at, value, offset):
    buffer = tenbin.encode_buffer([np.zeros(2, "u1"), np.zeros(3, "f4")])
    struct.pack_into("<q" if isinstance(value, int) else "<8s", buffer, 160 + at, value)
    for decode in (tenbin.decode_buffer, lambda data: tenbin.read(io.BytesIO(data))):
        with pytest.raises(TenbinError) as caught:
            decode(buffer)
        assert caught.value.offset == 160 + offset
        assert str(160 + offset) in str(caught.value)


@pytest.mark.parametrize("nbytes", [2**20, 2**40, 2**62])
def test_a_false_length_costs_no_memory(nbytes):
    buffer = tenbin.encode_buffer([np.zeros(0, "u1")])
    struct.pack_into("<q", buffer, 40, nbytes)
    struct.pack_into("<q", buffer, 88, nbytes)
    data = bytes(buffer) + bytes(1000)
    for decode in decoders(data):
        with allocating_below(len(data) + 50_000), pytest.raises(TenbinError):
            decode()


def test_a_false_length_costs_no_memory_where_the_stream_makes_room_for_it():
    buffer = tenbin.encode_buffer([np.zeros(0, "u1")])
    struct.pack_into("<q", buffer, 40, 2**32)
    struct.pack_into("<q", buffer, 88, 2**32)
    with allocating_below(4_000_000), pytest.raises(TenbinError, match="truncated"):
        tenbin.read(Trickle(bytes(buffer) + bytes(1000)))


@given(st.lists(st.sampled_from([0, 1, 2, 255]), min_size=1, max_size=20))
def test_bools_are_0_or_1(values):
    buffer = tenbin.encode_buffer([np.zeros(len(values), "?")])
    buffer[96 : 96 + len(values)] = bytes(values)
    wrong = [index for index, value in enumerate(values) if value > 1]
    for decode in (tenbin.decode_buffer, lambda data: tenbin.read(io.BytesIO(data))):
        if not wrong:
            assert decode(buffer)[0].tolist() == values
            continue
        with pytest.raises(TenbinError, match="a bool of value") as caught:
            decode(buffer)
        assert caught.value.offset == 96 + wrong[0]


def test_torch_is_not_imported_for_numpy_arrays():
    program = (
        "import sys, numpy as np; from mpwds import tenbin, nest\n"
        "tenbin.decode_buffer(tenbin.encode_buffer([np.zeros(2)]))\n"
        "nest.unflatten(*nest.flatten({'a': np.zeros(2), 'b': [1, (2.0, None)]}))\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.slow
def test_missing_ml_dtypes_is_an_error_that_names_the_extra():
    program = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import torch; from mpwds import tenbin\n"
        "data = tenbin.encode_buffer([torch.ones(2, dtype=torch.bfloat16)])\n"
        "assert tenbin.decode_buffer(data, output='torch')[0].tolist() == [1, 1]\n"
        "try: tenbin.decode_buffer(data)\n"
        "except ImportError as error: assert \"pip install 'mpwds[bfloat16]'\" in str(error)\n"
        "else: sys.exit('no error')"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_head_that_was_seen_before_is_checked_against_this_buffer():
    buffer = bytearray(192)
    tenbin.write_array(buffer, 0, np.arange(5, dtype="int16"))
    assert tenbin.parse_array(buffer, 0) == tenbin.parse_array(buffer, 0)
    with pytest.raises(TenbinError, match="truncated"):
        tenbin.parse_array(buffer[:150], 0)
    with pytest.raises(TenbinError):
        tenbin.parse_array(buffer, 96)
