"""TensorcomDataset in pipelines and loaders, and send_batches, which feeds tensorcom's consumers."""

import contextlib
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import zmq

import mpwds
from mpwds.errors import TenbinError
from mpwds.tensorcom import TensorcomDataset, send_batches
from tests.compat.conftest import PATIENCE_S, a_batch, meanwhile, ours, theirs


def numbers(first, count):
    return [[np.full((2, 3), n, "uint8"), np.array([n, n], "int32")] for n in range(first, first + count)]


def labels(batches):
    return [int(ys[0]) for _, ys in batches]


@pytest.fixture
def sender(folder):
    with ours(f"zpush+ipc://{folder}/s") as connection:
        yield connection


@contextlib.contextmanager
def sending(url):
    """Sends numbered batches meanwhile, as a server does: without end, whoever takes them."""
    done = threading.Event()

    def send():
        number = 0
        while not done.is_set():
            with contextlib.suppress(TimeoutError):
                connection.send([np.zeros((2, 3), "uint8"), np.array([number, number], "int32")])
                number += 1

    with ours(url, hwm=2, timeout=0.01) as connection, meanwhile(send):
        try:
            yield
        finally:
            done.set()


def test_epochs_have_a_length_and_continue(folder, sender):
    sender.serve(numbers(0, 6))
    with mpwds.TensorcomDataset(f"zpull+ipc://{folder}/s", length=3) as dataset:
        assert len(dataset) == 3
        assert labels(dataset) == [0, 1, 2]
        assert labels(dataset) == [3, 4, 5]


def test_stages_process_its_batches(folder, sender):
    sender.serve(numbers(0, 6))
    with TensorcomDataset(f"zpull+ipc://{folder}/s", length=6) as dataset:
        with pytest.raises(TypeError, match="has no len"):
            len(dataset.unbatched())
        rows = dataset.unbatched().shuffle(4).map(lambda row: int(row[1])).batched(3)
        assert sorted(n for batch in rows for n in batch.tolist()) == sorted([*range(6)] * 2)


def test_options_are_the_connections(folder, sender):
    sender.serve(numbers(0, 1))
    with TensorcomDataset(f"zpull+ipc://{folder}/s", length=1, converters="torch") as dataset:
        ((images, labels),) = dataset
    assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)


def test_an_epoch_ends_when_nothing_arrives(folder, sender):
    sender.serve(numbers(0, 2))
    with TensorcomDataset(f"zpull+ipc://{folder}/s", length=5, timeout=PATIENCE_S) as dataset:
        batches = iter(dataset)
        assert labels([next(batches), next(batches)]) == [0, 1]
        dataset.parts[0]._connection.timeout = 0.05  # however slow this machine is, both have arrived
        with pytest.warns(RuntimeWarning, match="the epoch ends after 2 of 5 batches: nothing arrived"):
            assert list(batches) == []
        with pytest.raises(TimeoutError, match="nothing arrived for 0.05 s"):
            list(dataset)


def test_a_dataset_that_was_iterated_can_be_sent_to_another_process(folder, sender):
    sender.serve(numbers(0, 1))
    with TensorcomDataset(f"zpull+ipc://{folder}/s", length=1) as dataset:
        list(dataset)
        assert repr(pickle.loads(pickle.dumps(dataset))) == repr(dataset)
        assert repr(dataset) == f"TensorcomDataset('zpull+ipc://{folder}/s', length=1)"


@pytest.mark.parametrize("kind", ["torch", "mpwds"])
def test_workers_share_the_batches_of_a_sender(folder, kind):
    with sending(f"zrpush+ipc://{folder}/s"), contextlib.ExitStack() as stack:
        dataset = TensorcomDataset(f"zrpull+ipc://{folder}/s", length=8, timeout=PATIENCE_S)
        if kind == "mpwds":
            loader = stack.enter_context(mpwds.MultiLoader(dataset, workers=2, start_method="fork"))
        else:
            options = {"num_workers": 2, "multiprocessing_context": "fork"}
            loader = torch.utils.data.DataLoader(dataset, batch_size=None, **options)
        assert len(loader) == len(set(labels(loader))) == 8


def test_workers_divide_the_urls_of_publishers(folder):
    urls = f"zsub+ipc://{folder}/{{0..2}}"
    dataset = TensorcomDataset(urls, length=10)
    source = dataset.parts[0]
    shares = [source._share(mpwds.pipeline.context.Context(worker=n, workers=2)) for n in range(2)]
    assert [(len(urls), count) for urls, count in shares] == [(2, 5), (1, 5)]
    shares = [source._share(mpwds.pipeline.context.Context(worker=n, workers=5)) for n in range(5)]
    assert [(len(urls), count) for urls, count in shares] == [(1, 4), (1, 3), (1, 3), (0, 0), (0, 0)]


def test_one_of_several_workers_binds(folder, sender):
    sender.serve(numbers(0, 4))
    dataset = TensorcomDataset(f"zpull+ipc://{folder}/s", length=4, timeout=PATIENCE_S)
    with mpwds.MultiLoader(dataset, workers=2, start_method="fork") as loader:
        assert labels(loader) == [0, 1, 2, 3]
    os.unlink(f"{folder}/s")  # which workers leave


# ------------------------------------------------------------------------------------------- send_batches


def test_the_package_tensorcom_receives_what_is_sent(folder):
    received = []
    with theirs(f"zpull+ipc://{folder}/s", infos=["image", "label"]) as consumer:
        batches = [{"image": torch.zeros(2, 3), "label": np.arange(2)}] * 3
        with meanwhile(lambda: received.extend(consumer.recv() for _ in batches)):
            assert send_batches(f"zpush+ipc://{folder}/s", iter(batches)) == 3
    assert [(xs.dtype, ys.tolist()) for xs, ys in received] == [(np.float32, [0, 1])] * 3


@pytest.mark.parametrize(("options", "frames"), [({}, 4), ({"multipart": False}, 1)])
def test_each_array_is_two_frames_unless_all_are_to_be_one(folder, options, frames):
    with zmq.Context() as context, context.socket(zmq.PULL) as consumer:
        consumer.bind(f"ipc://{folder}/s")
        with ThreadPoolExecutor() as pool:
            sent = pool.submit(send_batches, f"zpush+ipc://{folder}/s", [a_batch()], **options)
            assert len(consumer.recv_multipart()) == frames
            assert sent.result() == 1
        os.unlink(f"{folder}/s")


def test_an_epoch_may_have_no_batches(folder):
    with TensorcomDataset(f"zpull+ipc://{folder}/s", length=0) as dataset:
        assert (len(dataset), list(dataset)) == (0, [])


def test_a_loader_is_sent(folder):
    loader = mpwds.DataPipeline(range(6)).map(lambda n: (np.full(2, n, "f4"), n)).batched(3)
    with ours(f"zpull+ipc://{folder}/s", total=6) as consumer:
        assert send_batches(f"zpush+ipc://{folder}/s", loader) == 2
        assert [ys.tolist() for _, ys in consumer] == [[0, 1, 2], [3, 4, 5]]


def test_it_returns_when_all_batches_have_left(folder):
    large = [[np.zeros(1 << 22, "uint8")]] * 10  # more than the system's buffers hold
    returned = threading.Event()

    def send():
        send_batches(f"zpush+ipc://{folder}/s", large)
        returned.set()

    url = f"zpull+ipc://{folder}/s"
    with ours(url, total=10, batch_count=False, hwm=1) as consumer, meanwhile(send):
        first = consumer.recv()
        assert not returned.wait(0.2)
        assert len([first, *(consumer.recv() for _ in range(9))]) == 10


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((np.zeros(2, "f4"), ["a", "b"]), "element 1 of a batch: expected an array or a tensor, got list"),
        ({"image": np.zeros(2, "f4"), "__key__": "a"}, "element '__key__' of a batch: .* got str"),
        ((np.zeros(2, bool),), "element 0 of a batch is bool, which tensorcom cannot receive"),
        ({"mask": torch.zeros(2, dtype=torch.bfloat16)}, "element 'mask' of a batch is bfloat16"),
    ],
)
def test_what_tensorcom_cannot_receive_is_an_error(folder, batch, message):
    with pytest.raises(TenbinError, match=message):
        send_batches(f"zpush+ipc://{folder}/s", [batch])
