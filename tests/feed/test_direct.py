"""Arrays over a connection of their own: where no keys are used, and the server's port can be reached."""

import contextlib
import resource
import signal
import socket
import struct

import pytest

import mpwds
from mpwds.feed import direct, keys, wire
from mpwds.feed.lobby import Lobby
from mpwds.feed.trainer import links
from mpwds.feed.trainer.servers import Servers
from tests.feed.faults.checking import at, delivered, rows, undisturbed, warned
from tests.feed.serving import ServerProcess, epoch_of, large, locally, plain, served
from tests.loader.faults.processes import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")


def loader_of(server, **options):
    return mpwds.RemoteLoader(server.url, output="numpy", shared_memory=False, **options)


def ways(loader):
    """Which links of a loader have such a connection."""
    servers = loader._remote.servers
    assert isinstance(servers, Servers)
    return [link.direct is not None for link in servers.links]


def test_arrays_come_over_it():
    with served(large()) as server, loader_of(server) as loader:
        assert ways(loader) == [True]
        assert [epoch_of(loader) for _ in range(2)] == locally(large(), 2, epochs=2)


def test_not_with_keys_nor_in_shared_memory(tmp_path):
    keys.generate(tmp_path)
    with served(large(), keys=tmp_path) as server, loader_of(server, keys=tmp_path) as loader:
        assert ways(loader) == [False]
        assert epoch_of(loader) == locally(large(), 2)[0]
    with served(large()) as server, mpwds.RemoteLoader(server.url, output="numpy") as loader:
        assert ways(loader) == [False]


def test_a_trainer_that_cannot_reach_the_port_gets_parts(monkeypatch):
    def refuse(*arguments):
        raise ConnectionRefusedError("a firewall")

    monkeypatch.setattr(direct.socket, "create_connection", refuse)
    with served(large()) as server, loader_of(server) as loader:
        assert ways(loader) == [False]
        assert epoch_of(loader) == locally(large(), 2)[0]


@pytest.mark.slow
def test_a_connection_that_breaks_loses_nothing():
    dataset = large(length=800)
    with ServerProcess(dataset, workers=2) as server, loader_of(server, heartbeat_timeout=5) as loader:
        batches = []
        for number, batch in enumerate(loader):
            batches.append(batch)
            if number in (20, 90):
                [link] = loader._remote.servers.links
                link.direct._socket.shutdown(socket.SHUT_RDWR)
        assert [plain(batch) for batch in batches] == locally(dataset, 2)[0]


def test_a_port_that_a_firewall_keeps_is_tried_once(monkeypatch):
    tried = []

    def walled(*arguments):
        tried.append(arguments)
        raise TimeoutError

    monkeypatch.setattr(links, "DirectReceiver", walled)
    with served(large()) as server, loader_of(server) as loader:
        first = epoch_of(loader)
        loader._remote.servers.links[0].lose("for a test")
        assert [first, epoch_of(loader)] == locally(large(), 2, epochs=2)
    assert len(tried) == 1


def test_a_trainer_may_give_up_on_arrays_that_stop_coming():
    head, asked = wire.Head(0, 1, 0, 100), []

    def give_up(progresses):
        asked.append(progresses)
        raise mpwds.ServerLost("it does not answer")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        receiver = direct.DirectReceiver(*listener.getsockname(), b"t" * 16)
        server, _ = listener.accept()
        with server, contextlib.closing(receiver):
            server.sendall(struct.pack("<QQQQ", *head) + bytes(50))
            with pytest.raises(mpwds.ServerLost):
                receiver.receive(head, memoryview(bytearray(100)), give_up)
    assert asked == [False]


@pytest.mark.slow
def test_a_server_that_hangs_amid_arrays_does_not_part_the_trainer_from_others():
    silence_s, dataset = 4.0, rows(batches=24, size=1 << 20)
    options = {"workers": 1, "client_timeout": silence_s, "shared_memory": False}
    with ServerProcess(dataset, **options) as hung, ServerProcess(dataset, **options) as other:
        options = {"output": "numpy", "heartbeat_timeout": silence_s, "shared_memory": False}
        with mpwds.RemoteLoader([hung.url, other.url], **options) as loader, warned() as texts:

            def hang():
                hung.signal(signal.SIGSTOP)
                wait_until(lambda: not loader._remote.servers.links[0].is_up, "the trainer to miss it")
                hung.signal(signal.SIGCONT)

            assert delivered(loader, at({10: hang})) == undisturbed(2, dataset)[0]
        assert not any(other.url in text for text in texts)
        assert "is silent" not in other.log


def test_a_trainer_that_leaves_at_once_does_no_harm():
    with served(large()) as server:
        for _ in range(20):
            with loader_of(server) as loader:
                link = loader._remote.servers.links[0]
                link.direct.close()
        with loader_of(server) as loader:
            assert epoch_of(loader) == locally(large(), 2)[0]


def test_strangers_at_the_port_get_nothing_and_disturb_nobody():
    with served(large()) as server:
        port = server._direct.port
        with socket.create_connection(("127.0.0.1", port)) as silent:
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(b"x" * 16)
                with loader_of(server) as loader:
                    assert epoch_of(loader) == locally(large(), 2)[0]
                stranger.settimeout(60)
                assert stranger.recv(1) == b""
            silent.settimeout(0.1)
            with pytest.raises(TimeoutError):
                silent.recv(1)


JUNK = [b"GET / HTTP/1.1\r\n\r\n", b"?", b"\1cut off"]


def test_junk_at_the_port_is_counted_and_its_connections_are_closed():
    with served(large()) as server:
        for junk in JUNK:
            with socket.create_connection(("127.0.0.1", server._direct.port)) as stranger:
                stranger.sendall(junk)
                stranger.shutdown(socket.SHUT_WR)
                stranger.settimeout(60)
                with contextlib.suppress(ConnectionResetError):
                    assert stranger.recv(1) == b""
        wait_until(lambda: server.status()["dropped"] == {"malformed": len(JUNK)}, "all to be counted")


def test_junk_is_closed_at_once_though_its_sender_stays(caplog):
    with served(large()) as server:
        with socket.create_connection(("127.0.0.1", server._direct.port)) as stranger:
            stranger.sendall(b"?")
            stranger.settimeout(60)
            assert stranger.recv(1) == b""
        wait_until(lambda: server.status()["dropped"], "it to be counted")
    assert "(malformed): a connection beside ZeroMQ's that begins with no trainer's identity" in caplog.text
    assert "(from 127.0.0.1)" in caplog.text


def test_connections_that_say_nothing_or_are_of_trainers_that_left_are_not_counted():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        lobby = Lobby(listener, pytest.fail)
        for said in (b"", b"\1" + bytes(15)):
            with socket.create_connection(listener.getsockname()) as trainer:
                trainer.sendall(said)
        wait_until(lambda: [*lobby.arrivals(set())] == [] and not lobby._strangers, "them to be gone")
        lobby.close()


def test_a_trainer_is_accepted_later_if_no_descriptor_is_left_for_it():
    listener = socket.create_server(("127.0.0.1", 0))
    lobby = Lobby(listener, pytest.fail)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection(listener.getsockname()) as trainer:
        trainer.sendall(b"t" * 16)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            assert list(lobby.arrivals({b"t" * 16})) == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        [(identity, connection)] = lobby.arrivals({b"t" * 16})
        assert identity == b"t" * 16
        connection.close()
    lobby.close()
