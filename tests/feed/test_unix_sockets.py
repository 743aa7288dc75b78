"""Servers at paths: which files they take, and which they leave."""

import contextlib
import errno
import os
import socket

import pytest
import zmq

import mpwds
from mpwds.compat.tensorcom.zcom import Connection
from mpwds.errors import MpwdsError, StreamError
from tests.feed.serving import free_port, numbers, served
from tests.loader.faults.processes import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")


def a_file(path):
    path.write_text("precious")
    return contextlib.nullcontext()


def a_link_to_a_file(path):
    path.with_name("elsewhere").write_text("precious")
    path.symlink_to("elsewhere")
    return contextlib.nullcontext()


def a_folder(path):
    path.mkdir()
    return contextlib.nullcontext()


def a_socket_in_use(kind):
    def make(path):
        other = socket.socket(socket.AF_UNIX, kind)
        other.bind(str(path))
        if kind != socket.SOCK_DGRAM:
            other.listen()
        return other

    return make


TAKEN = {
    "file": a_file,
    "link": a_link_to_a_file,
    "folder": a_folder,
    "stream": a_socket_in_use(socket.SOCK_STREAM),
    "packets": a_socket_in_use(socket.SOCK_SEQPACKET),
    "datagrams": a_socket_in_use(socket.SOCK_DGRAM),
}


@pytest.mark.parametrize("suffix", ["", ".memory"])
@pytest.mark.parametrize("what", TAKEN)
def test_a_server_takes_no_path_that_another_program_uses(tmp_path, what, suffix):
    path = tmp_path / f"feed{suffix}"
    with TAKEN[what](path):
        before = os.lstat(path).st_ino
        with pytest.raises(MpwdsError, match="is not a socket: remove it|another server is running there"):
            mpwds.Server(numbers(), f"ipc://{tmp_path}/feed")
        assert os.lstat(path).st_ino == before


@pytest.mark.parametrize("what", TAKEN)
def test_a_tensorcom_socket_takes_no_path_that_another_program_uses(tmp_path, what):
    with TAKEN[what](tmp_path / "feed"):
        before = os.lstat(tmp_path / "feed").st_ino
        with pytest.raises(StreamError, match="cannot bind"):
            Connection(f"zpub+ipc://{tmp_path}/feed")
        assert os.lstat(tmp_path / "feed").st_ino == before


def test_a_server_at_a_relative_path_serves_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with served(numbers(), "ipc://feed") as server, mpwds.RemoteLoader(server.url, output="numpy") as loader:
        assert sum(len(batch["number"]) for batch in loader) == 96
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "make", [lambda url: mpwds.Server(numbers(), url), lambda url: Connection(f"zpub+{url}")]
)
def test_a_path_that_another_program_has_taken_meanwhile_stays_its_own(tmp_path, make):
    with contextlib.closing(make(f"ipc://{tmp_path}/feed")):
        os.unlink(tmp_path / "feed")
        with a_socket_in_use(socket.SOCK_STREAM)(tmp_path / "feed"):
            pass
    assert os.listdir(tmp_path) == ["feed"]


def test_a_tensorcom_socket_at_a_path_is_bound_to_a_port_as_well(tmp_path):
    port = free_port()
    with Connection([f"zpub+ipc://{tmp_path}/feed", f"zpub://127.0.0.1:{port}"]):
        with socket.socket() as probe, pytest.raises(OSError, match="in use"):
            probe.bind(("127.0.0.1", port))
    assert os.listdir(tmp_path) == []


def binds(router, name):
    """Whether a name is free: a process that another thread forks holds it until its program runs."""
    try:
        router.bind(name)
    except zmq.ZMQError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def test_a_name_without_a_file_serves_one_server_alone():
    name = f"ipc://@mpwds-test-{os.getpid()}"
    with served(numbers(), name), pytest.raises(MpwdsError, match="another server is running there"):
        mpwds.Server(numbers(), name)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as free:
        wait_until(lambda: binds(free, name), "the name to be free")
