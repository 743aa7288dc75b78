"""zreq and zrep: batches on request, queries and answers, batches that are acknowledged."""

import contextlib
import threading

import numpy as np
import pytest

from mpwds.tensorcom import Connection
from tests.compat.conftest import a_batch, meanwhile, ours


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
    with meanwhile(server.serve, numbers(5)):
        assert values(client) == [0, 1, 2, 3, 4]


def test_a_query_is_answered(ends):
    client, server = ends

    def answer():
        for _ in range(3):
            (query,) = server.recv()
            server.send([query * 10])

    with meanwhile(answer):
        for batch in numbers(3):
            client.send(batch)
            assert client.recv()[0][0] == batch[0][0] * 10


def test_batches_that_are_sent_are_acknowledged(ends):
    client, server = ends
    received = []
    with meanwhile(lambda: received.extend(values(server))):
        client.serve(numbers(5))
    assert received == [0, 1, 2, 3, 4]


def test_several_clients_share_a_servers_batches(folder):
    with (
        ours(f"zrep+ipc://{folder}/s") as server,
        meanwhile(server.serve, numbers(6)),
        ours(f"zreq+ipc://{folder}/s") as first,
        ours(f"zreq+ipc://{folder}/s") as second,
    ):
        assert values(client.recv() for client in [first, second] * 3) == [0, 1, 2, 3, 4, 5]


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
        with Connection(f"zrep+ipc://{folder}/s", timeout=0.05) as server, meanwhile(serve, server):
            assert [len(client.recv()) for _ in range(3)] == [2, 2, 2]
            done.set()
