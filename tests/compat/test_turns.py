"""zreq and zrep: batches on request, queries and answers, batches that are acknowledged."""

import contextlib
import threading

import numpy as np
import pytest

from mpwds.tensorcom import Connection
from tests.compat.conftest import a_batch, ours


@pytest.fixture(params=[("zreq", "zrep"), ("zrreq", "zrrep")], ids="-".join)
def ends(folder, request):
    asking, answering = request.param
    with (
        ours(f"{asking}+ipc://{folder}/s", total=5, batch_count=False) as client,
        ours(f"{answering}+ipc://{folder}/s", total=5, batch_count=False) as server,
    ):
        yield client, server


def numbers(count):
    return ([np.array([number], "int32")] for number in range(count))


def values(batches):
    return [int(batch[0][0]) for batch in batches]


def test_a_batch_is_sent_on_request(ends):
    client, server = ends
    thread = threading.Thread(target=server.serve, args=(numbers(5),))
    thread.start()
    assert values(client) == [0, 1, 2, 3, 4]
    thread.join()


def test_a_query_is_answered(ends):
    client, server = ends

    def answer():
        for _ in range(3):
            (query,) = server.recv()
            server.send([query * 10])

    thread = threading.Thread(target=answer)
    thread.start()
    for batch in numbers(3):
        client.send(batch)
        assert client.recv()[0][0] == batch[0][0] * 10
    thread.join()


def test_batches_that_are_sent_are_acknowledged(ends):
    client, server = ends
    received = []
    thread = threading.Thread(target=lambda: received.extend(values(server)))
    thread.start()
    client.serve(numbers(5))
    thread.join()
    assert received == [0, 1, 2, 3, 4]


def test_several_clients_share_a_servers_batches(folder):
    with ours(f"zrep+ipc://{folder}/s") as server:
        thread = threading.Thread(target=server.serve, args=(numbers(6),))
        thread.start()
        with ours(f"zreq+ipc://{folder}/s") as first, ours(f"zreq+ipc://{folder}/s") as second:
            assert values(client.recv() for client in [first, second] * 3) == [0, 1, 2, 3, 4, 5]
        thread.join()


def test_a_client_asks_again_after_a_timeout(folder):
    done = threading.Event()

    def serve(server):
        while not done.is_set():
            with contextlib.suppress(TimeoutError):
                server.send(a_batch())

    with Connection(f"zreq+ipc://{folder}/s", timeout=0.05) as client:
        with pytest.raises(TimeoutError):
            client.recv()
        client.timeout = 60
        with Connection(f"zrep+ipc://{folder}/s", timeout=0.05) as server:
            thread = threading.Thread(target=serve, args=(server,))
            thread.start()
            assert [len(client.recv()) for _ in range(3)] == [2, 2, 2]
            done.set()
            thread.join()
