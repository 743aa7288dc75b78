"""The package tensorcom sends to and receives from ours: all roles, framings and dtypes."""

import numpy as np
import pytest
from tensorcom import zcom as their_zcom

from mpwds.tensorcom import zcom
from tests.compat.conftest import a_batch, exchanged, ours, theirs
from tests.feed.serving import free_port

ROLES = [("zpush", "zpull"), ("zpub", "zsub"), ("zrpush", "zrpull"), ("zrpub", "zrsub")]
DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u8"]


@pytest.fixture(params=[(ours, theirs), (theirs, ours)], ids=["we-send", "they-send"])
def ends(request):
    return request.param


def same(received, sent):
    return [(a.dtype, a.tolist()) for a in received] == [(a.dtype, a.tolist()) for a in sent]


@pytest.mark.parametrize("multipart", [True, False], ids=["multipart", "single"])
@pytest.mark.parametrize("roles", ROLES, ids="-".join)
def test_a_batch_arrives(folder, ends, roles, multipart):
    urls = [f"{role}+ipc://{folder}/socket" for role in roles]
    with (
        ends[0](urls[0], multipart=multipart) as sender,
        ends[1](urls[1], multipart=multipart) as receiver,
    ):
        assert same(exchanged(sender, receiver, a_batch()), a_batch())


@pytest.mark.parametrize("roles", ROLES, ids="-".join)
def test_a_batch_arrives_by_tcp_whoever_starts_first(ends, roles):
    port = free_port()
    sender_url, receiver_url = [f"{role}://127.0.0.1:{port}" for role in roles]
    with ends[1](receiver_url) as receiver, ends[0](sender_url) as sender:
        assert same(exchanged(sender, receiver, a_batch()), a_batch())


def test_all_dtypes_of_tensorcom_arrive(folder, ends):
    arrays = [np.array([[0, 1], [2, 3]], dtype) for dtype in DTYPES]
    with ends[0](f"zpush+ipc://{folder}/s") as sender, ends[1](f"zpull+ipc://{folder}/s") as receiver:
        sender.send(arrays, allow64=True)
        assert same(receiver.recv(), arrays)


def test_names_arrive_and_are_required(folder, ends):
    names = ["image", "label"]
    with (
        ends[0](f"zpush+ipc://{folder}/s", infos=names) as sender,
        ends[1](f"zpull+ipc://{folder}/s", infos=names) as receiver,
    ):
        sender.send(a_batch())
        assert same(receiver.recv(), a_batch())


def test_one_receiver_gets_from_all_urls_of_braces(folder):
    with (
        ours(f"zsub+ipc://{folder}/{{a,b,c}}") as receiver,
        theirs(f"zpub+ipc://{folder}/a") as first,
        theirs(f"zpub+ipc://{folder}/b") as second,
        theirs(f"zpub+ipc://{folder}/c") as third,
    ):
        for number, sender in enumerate([first, second, third]):
            batch = [np.full(2, number, "uint8")]
            while not same(exchanged(sender, receiver, batch), batch):
                pass  # an earlier sender's repetition


def test_one_sender_binds_all_urls_of_braces(folder):
    with (
        ours(f"zpub+ipc://{folder}/{{0..1}}") as sender,
        theirs(f"zsub+ipc://{folder}/0") as first,
        theirs(f"zsub+ipc://{folder}/1") as second,
    ):
        assert same(exchanged(sender, first, a_batch()), a_batch())
        assert same(exchanged(sender, second, a_batch()), a_batch())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int16", "uint16", "int64"])
@pytest.mark.parametrize("shape", [(2, 5, 5, 3), (5, 5, 4), (2, 7)], ids=str)
def test_totorch_makes_the_same_tensors(dtype, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    mine, his = zcom.totorch()(array), their_zcom.totorch()(array)
    assert mine.dtype == his.dtype
    assert mine.tolist() == his.tolist()


@pytest.mark.parametrize("shape", [(3, 5, 6), (2, 7), (9, 5, 6)], ids=str)
def test_tonumpy_makes_the_same_arrays(shape):
    import torch

    tensor = torch.arange(int(np.prod(shape))).reshape(shape)
    mine, his = zcom.tonumpy()(tensor), their_zcom.tonumpy()(tensor)
    assert mine.shape == his.shape
    assert (mine == his).all()


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # tensorcom's
def test_functions_are_applied_as_theirs(folder):
    options = {"batch_transforms": [lambda x: x / 2, None], "converters": "torch"}
    outcomes = []
    for end in (ours, theirs):
        with (
            ours(f"zpush+ipc://{folder}/s") as sender,
            end(f"zpull+ipc://{folder}/s", **options) as receiver,
        ):
            sender.send(a_batch())
            outcomes.append([(a.dtype, a.tolist()) for a in receiver.recv()])
    assert outcomes[0] == outcomes[1]


def test_the_module_has_what_theirs_makes():
    made = {
        name
        for name, value in vars(their_zcom).items()
        if getattr(value, "__module__", "tensorcom.zcom") == "tensorcom.zcom" and name[0] != "_"
    }
    assert {"Connection", "Statistics", "schemes"} <= made
    assert {name for name in made if not hasattr(zcom, name)} <= {"collections", "time", "zmq"} | {
        "braceexpand",
        "logging",
        "tenbin",
    }
    assert {scheme: zcom.schemes[scheme] for scheme in their_zcom.schemes} == their_zcom.schemes
