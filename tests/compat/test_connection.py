"""What a Connection does beyond what tensorcom's tests can tell: order of start, errors, options."""

import os
import threading

import numpy as np
import pytest
import torch

import mpwds
from mpwds import tensorcom
from mpwds.errors import StreamError, TenbinError
from mpwds.storage.streams.patterns import Names
from tests.compat.conftest import a_batch, meanwhile, ours, run_python
from tests.feed.serving import free_port


@pytest.fixture
def pair(folder):
    """Makes a connected sender and receiver; options go to both or, with ``receiver_``, to the receiver."""
    opened = []

    def make(sender="zpush", receiver="zpull", **options):
        own = {name.removeprefix("receiver_"): options.pop(name) for name in [*options] if "_" in name[:9]}
        for url, more in ((sender, options), (receiver, own)):
            opened.append(ours(f"{url}+ipc://{folder}/socket", **more))
        return [each.__enter__() for each in opened]

    yield make
    for each in opened:
        each.__exit__(None, None, None)


def test_a_program_changes_one_import(folder):
    with tensorcom.Connection(f"zpush+ipc://{folder}/s") as sender:
        receiver = tensorcom.Connection(f"zpull+ipc://{folder}/s", epoch=7, total=8)
        sender.serve([a_batch()] * 2)
        assert [xs.shape for xs, ys in receiver] == [(4, 2, 2, 3)] * 2
        assert len(receiver) == 7
        receiver.close()
    assert mpwds.Connection is tensorcom.Connection is tensorcom.zcom.Connection


@pytest.mark.parametrize("begin", [mpwds.DataPipeline, lambda c: mpwds.Processor(c, mpwds.utils.identity)])
def test_a_dataset_or_a_processor_begins_at_a_connection(pair, begin):
    sender, receiver = pair(receiver_total=8)
    sender.serve([a_batch()] * 2)
    rows = begin(receiver).unbatched().shuffle(5).batched(4)
    assert sorted(label for _, labels in rows for label in labels.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_batches_of_one_sender_arrive_in_order(pair):
    sender, receiver = pair(receiver_total=50, receiver_batch_count=False)
    sender.serve([np.array([n], "int32")] for n in range(50))
    assert [int(batch[0][0]) for batch in receiver] == [*range(50)]


@pytest.mark.parametrize("kinds", [("zpush", "zpull"), ("zpull", "zpush")], ids=["receiver", "sender"])
def test_either_end_may_be_restarted(folder, kinds):
    stays, restarted = (f"{kind}+ipc://{folder}/s" for kind in kinds)
    with ours(stays) as one:
        for number in range(3):
            with ours(restarted) as other:
                sender, receiver = (one, other) if kinds[0] == "zpush" else (other, one)
                sender.send([np.array([number], "int32")])
                assert receiver.recv()[0][0] == number


def test_a_connection_can_be_opened_again(folder):
    with ours() as sender, ours(f"zpull+ipc://{folder}/s") as receiver:
        for _ in range(2):
            sender.connect(f"zpush+ipc://{folder}/s")
            sender.send(a_batch())
            assert len(receiver.recv()) == 2
            sender.close()


def test_what_was_sent_arrives_though_the_sender_ends(folder):
    program = f"""
        import numpy as np, mpwds
        sender = mpwds.Connection("zpush+ipc://{folder}/s")
        sender.serve([np.full(1000, n, "uint8")] for n in range(100))
    """
    with ours(f"zpull+ipc://{folder}/s", total=100, batch_count=False) as receiver:
        run_python(program)
        assert [int(batch[0][0]) for batch in receiver] == [*range(100)]


def test_an_end_that_is_not_closed_leaves_no_file_and_imports_no_torch(folder):
    program = f"""
        import mpwds, sys
        receiver = mpwds.tensorcom.Connection("zpull+ipc://{folder}/s")
        assert "torch" not in sys.modules
    """
    run_python(program)
    assert os.listdir(folder) == []


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_an_address_that_is_taken_is_an_error(folder, transport):
    url = f"zpull+ipc://{folder}/s" if transport == "ipc" else f"zpull://127.0.0.1:{free_port()}"
    with ours(url), pytest.raises(StreamError, match="cannot bind .*in use.*: another program"):
        ours(url).__enter__()


def test_closing_in_a_fork_leaves_the_file_to_its_parent(folder):
    program = f"""
        import mpwds, os, signal
        receiver = mpwds.Connection("zpull+ipc://{folder}/s")
        if (child := os.fork()) == 0:
            signal.alarm(60)
            receiver.close(0)
            os._exit(0)
        print(os.waitpid(child, 0)[1], os.listdir("{folder}"))
    """
    assert run_python(program) == "0 ['s']\n"


def test_limits_are_those_of_the_socket(folder):
    with ours(f"zpull+ipc://{folder}/s", hwm=7, max_message_bytes=1000) as receiver:
        limits = [getattr(receiver.socket, name) for name in ("sndhwm", "rcvhwm", "maxmsgsize")]
        assert limits == [7, 7, 2000]


def test_a_request_that_was_lost_is_sent_again(folder):
    url = f"+ipc://{folder}/s"
    with ours("zreq" + url, timeout=0.5) as receiver:
        with ours("zrep" + url), pytest.raises(TimeoutError):  # takes the request and ends
            receiver.recv()
        receiver.timeout = 60
        with ours("zrep" + url, timeout=60) as sender, meanwhile(sender.send, a_batch()):
            assert len(receiver.recv()) == 2


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("zpusch://localhost:1", "not a tensorcom URL.*zpush"),
        ("tcp://localhost:1", "not a tensorcom URL"),
        ("zpush+udp://localhost:1", "neither tcp nor ipc"),
        ("zpush://", "has no host and port"),
        ("zpush://localhost", "has no host and port"),
        ("zpush+ipc://", "has no path"),
        ("zpush://localhost:{1", "braces"),
        ("zpush://localhost:1#topic", "a topic is for zsub"),
        (["zpush://localhost:1", "zpull://127.0.0.1:*"], "of another kind than zpush://localhost:1"),
    ],
)
def test_a_wrong_url_is_an_error(url, message):
    connection = tensorcom.Connection()
    with connection, pytest.raises(ValueError, match=message):
        urls = [url] if isinstance(url, str) else url
        connection.connect(Names(*urls))


def test_a_connection_only_sends_or_only_receives(pair):
    sender, receiver = pair()
    with pytest.raises(ValueError, match="only sends"):
        sender.recv()
    with pytest.raises(ValueError, match="only receives"):
        receiver.send(a_batch())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tensorcom.Connection().recv(), "call connect"),
        (
            lambda: tensorcom.Connection(converters="tensorflow"),
            "'tensorflow', expected functions or 'torch', 'torch_cuda', 'numpy'",
        ),
        (lambda: tensorcom.Connection(max_message_bytes=0), "max_message_bytes must be at least 1, got 0"),
        (lambda: tensorcom.Connection(hwm=0), "hwm must be at least 1, got 0"),
        (lambda: tensorcom.TensorcomDataset("zsubb://host:1"), "'zsubb://host:1' is not a tensorcom URL"),
        (lambda: tensorcom.TensorcomDataset("zsub://host:1", length=-1), "length must not be negative"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_topic_is_the_beginning_of_a_message(folder):
    with (
        ours(f"zpub+ipc://{folder}/s") as sender,
        ours(f"zsub+ipc://{folder}/s#u1") as receiver,
    ):
        arrived = threading.Event()

        def send():
            while not arrived.wait(0.01):
                sender.send([np.zeros(1, "float32")])
                sender.send([np.zeros(1, "uint8")])

        with meanwhile(send):
            kinds = {str(receiver.recv()[0].dtype) for _ in range(5)}
            arrived.set()
    assert kinds == {"uint8"}


# ------------------------------------------------------------------------------------------------ sending


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([np.zeros(1), "cat"], "element 1 of a batch: expected an array or a tensor, got str"),
        ({"image": np.zeros(1), "label": 7}, "element 'label' of a batch: .* got int"),
        ([[np.zeros(1)]], "element 0 of a batch: .* got list"),
        ([np.array(["cat"])], "element 0 of a batch: tenbin has no code"),
        (np.zeros(3), "must be a list, a tuple or a dict of arrays, got ndarray"),
        ([], "at least one array"),
        ([np.zeros(1)], "array 0 is float64, and 64-bit types need allow64=True"),
        ({"segmentation": np.zeros(1, "uint8")}, "'segmentation' is not up to 8 ASCII characters"),
    ],
)
def test_what_cannot_be_sent_is_an_error(pair, batch, message):
    sender, _ = pair()
    with pytest.raises(TenbinError, match=message):
        sender.send(batch)


def test_tensors_and_dicts_are_sent(pair):
    sender, receiver = pair(receiver_infos=True)
    sender.send({"image": torch.ones(2, dtype=torch.float16), "label": np.arange(2, dtype="i4")})
    arrays, names = receiver.recv()
    assert names == ["image", "label"]
    assert [(str(a.dtype), a.tolist()) for a in arrays] == [("float16", [1, 1]), ("int32", [0, 1])]


def test_64_bit_types_are_sent_on_request(pair):
    sender, receiver = pair(allow64=True)
    sender.write([np.arange(2)])
    assert receiver.recv()[0].dtype == np.int64


def test_an_array_may_change_after_it_was_sent(pair):
    sender, receiver = pair()
    array = np.zeros(1_000_000, "uint8")
    sender.send([array])
    array[:] = 1
    assert not receiver.recv()[0].any()


# ---------------------------------------------------------------------------------------------- receiving


def test_raw_delivers_the_frames(pair):
    sender, receiver = pair(receiver_raw=True)
    sender.send(a_batch())
    frames = receiver.recv()
    assert [frame.nbytes for frame in frames] == [56, 48, 32, 16]
    assert bytes(frames[3]) == a_batch()[1].tobytes()


def test_a_device_makes_tensors(pair):
    sender, receiver = pair(receiver_device="cpu")
    sender.send(a_batch())
    assert [type(a) for a in receiver.recv()] == [torch.Tensor] * 2


def test_more_functions_than_arrays_are_an_error(pair):
    sender, receiver = pair(receiver_batch_transforms=[None] * 3)
    sender.send(a_batch())
    with pytest.raises(ValueError, match="3 functions for a batch of 2 arrays"):
        receiver.recv()


def test_iteration_ends_after_the_total(pair):
    sender, receiver = pair(receiver_total=10)
    sender.serve([a_batch(4)] * 5)
    assert [len(ys) for _, ys in receiver] == [4, 4, 4]
    assert receiver.count == 12
    assert list(receiver) == []


def test_reports_are_printed(pair, capsys):
    sender, receiver = pair(report=8, receiver_total=16)
    sender.serve([a_batch(4)] * 4)
    assert len(list(receiver.items(report=4))) == 4
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["count", f"{n}"] for n in (0, 8, 0, 4, 8, 12)]
    assert all("msg/s throughput" in line for line in lines)


def test_both_ends_have_statistics(pair):
    sender, receiver = pair(receiver_total=8)
    sender.serve([a_batch(4)] * 2)
    list(receiver)
    for stats in (sender.stats, receiver.stats):
        assert (stats.count, stats.total) == (2, 2 * (56 + 48 + 32 + 16))
        assert min(stats.rate(), stats.throughput(), stats.recent_rate(), stats.recent_throughput()) > 0


def test_a_new_connection_has_no_rates():
    stats = tensorcom.zcom.Statistics()
    assert stats.rate() == stats.throughput() == stats.recent_rate() == stats.recent_throughput() == 0


@pytest.mark.parametrize(
    ("url", "use", "message"),
    [
        ("zpull", lambda connection: connection.recv(), "nothing arrived for 0.05 s over zpull"),
        ("zrpush", lambda connection: connection.send(a_batch()), "nobody took a batch for 0.05 s"),
    ],
)
def test_a_silent_peer_is_a_timeout(folder, url, use, message):
    with (
        tensorcom.Connection(f"{url}+ipc://{folder}/s", timeout=0.05) as connection,
        pytest.raises(TimeoutError, match=message),
    ):
        use(connection)
