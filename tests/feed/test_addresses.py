"""Addresses of servers: those that stand for themselves, and those that are looked up."""

import contextlib
import functools
import re
import socket

import pytest
import zmq

import mpwds
from mpwds.errors import SecurityError
from mpwds.feed import keys
from mpwds.feed.client.addresses import ServerAddresses
from tests.feed.faults.checking import warned
from tests.feed.serving import served

checked = functools.partial(keys.check_url, keys=None, insecure=True)


def test_urls_stand_for_themselves():
    found = ServerAddresses(["tcp://cpu{1..2}:7880", "ipc:///run/feed"], checked)
    assert not found.is_followed
    assert found.look_up() == ["tcp://cpu1:7880", "tcp://cpu2:7880", "ipc:///run/feed"]


def test_a_file_has_a_url_in_each_line(tmp_path):
    path = tmp_path / "servers.txt"
    path.write_text("# feeders\ntcp://a:1  # old\n\ntcp://b{1..2}:1\n")
    found = ServerAddresses(f"file:{path}", checked)
    assert found.is_followed
    assert found.look_up() == ["tcp://a:1", "tcp://b1:1", "tcp://b2:1"]
    path.write_text("tcp://c:1\n")
    assert found.look_up() == ["tcp://c:1"]


def test_a_folder_has_such_files(tmp_path):
    (tmp_path / "one").write_text("tcp://b:1\n")
    (tmp_path / "another").write_text("tcp://a:1\n")
    (tmp_path / ".one.swp").write_text("nothing\n")
    assert ServerAddresses(f"file:{tmp_path}", checked).look_up() == ["tcp://a:1", "tcp://b:1"]


def test_a_name_is_all_of_its_addresses(monkeypatch):
    def resolve(host, port, **_):
        assert (host, port) == ("feeders", 7880)
        records = [(socket.AF_INET, "10.0.0.2"), (socket.AF_INET6, "fd00::1"), (socket.AF_INET, "10.0.0.1")]
        return [(family, socket.SOCK_STREAM, 6, "", (address, port)) for family, address in records]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    found = ServerAddresses("dns+tcp://feeders:7880", checked).look_up()
    assert found == ["tcp://10.0.0.1:7880", "tcp://10.0.0.2:7880", "tcp://[fd00::1]:7880"]


def test_a_function_returns_urls():
    urls = ["tcp://a:1"]
    found = ServerAddresses(lambda: urls, checked)
    assert found.look_up() == ["tcp://a:1"]
    urls.append("tcp://b:1")
    assert found.look_up() == ["tcp://a:1", "tcp://b:1"]


def test_what_cannot_be_looked_up_counts_as_it_was_last(tmp_path):
    path = tmp_path / "servers.txt"
    path.write_text("tcp://a:1\n")
    found = ServerAddresses([f"file:{path}", "tcp://b:1"], checked)
    assert found.look_up() == ["tcp://a:1", "tcp://b:1"]
    assert found.why == ""
    path.unlink()
    assert found.look_up() == ["tcp://a:1", "tcp://b:1"]
    assert "FileNotFoundError" in found.why


@pytest.mark.parametrize(("bad", "shown"), [(b"b:1", "b:1"), (b"\xff" * 999, "\ufffd{90,99}$")])
def test_each_bad_address_is_left_out_with_one_warning(tmp_path, bad, shown):
    path = tmp_path / "servers.txt"
    path.write_bytes(b"# of the rack\ntcp://a:1\n%b\nc:1\n" % bad)
    left_out = rf"an address of file:.*servers.txt, line 3, is left out: .* got '{shown}"
    with warned() as texts:
        found = ServerAddresses(f"file:{path}", checked)
        assert [found.look_up() for _ in range(3)] == [["tcp://a:1"]] * 3
    assert len(texts) == 2
    assert re.match(left_out, texts[0])


def test_a_server_that_cannot_be_connected_to_is_left_out_and_others_are_used(tmp_path, monkeypatch):
    client_socket = keys.client_socket

    def refusing(context, url, *rest):
        if url.endswith(":1"):
            raise OSError(5, "its key cannot be read")
        return client_socket(context, url, *rest)

    monkeypatch.setattr(keys, "client_socket", refusing)
    dataset = mpwds.DataPipeline(range(6))
    with served(dataset) as server:
        (tmp_path / "servers.txt").write_text(f"tcp://127.0.0.1:1\n{server.url}\n")
        with pytest.warns(RuntimeWarning, match="the server tcp://127.0.0.1:1 is left out: .*its key cannot"):
            with mpwds.RemoteLoader(f"file:{tmp_path}/servers.txt", output="numpy") as loader:
                assert sorted(map(int, loader)) == list(range(6))


@pytest.mark.parametrize(
    ("families", "is_ipv6"),
    [(["AF_INET"], False), (["AF_INET6", "AF_INET"], False), (["AF_INET6"], True), ([], False)],
)
def test_a_name_that_has_an_address_of_ipv4_is_reached_by_that(monkeypatch, families, is_ipv6):
    found = [(getattr(socket, family), 1, 6, "", ()) for family in families]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    for url, expected in (("tcp://cpu:1", is_ipv6), ("tcp://[::1]:1", True), ("ipc:///run/feed", False)):
        context = zmq.Context()
        with contextlib.closing(keys.client_socket(context, url, None, 1000)) as client:
            assert bool(client.ipv6) == expected
        context.term()


def test_other_machines_need_keys(tmp_path):
    with pytest.raises(SecurityError, match="tcp://feeders:1 can be reached from other machines"):
        mpwds.RemoteLoader("dns+tcp://feeders:1")
    path = tmp_path / "servers.txt"
    path.write_text("tcp://feeders:1\n")
    with pytest.raises(SecurityError, match="tcp://feeders:1 can be reached from other machines"):
        mpwds.RemoteLoader(f"file:{path}")


@pytest.mark.parametrize(
    "urls",
    [
        *([], [3], "http://a:1", "file:", "tcp://a:1/", "tcp://a:1?x", "tcp://me@a:1", "tcp://\xe4:1"),
        f"ipc://{108 * 'a'}",
    ],
)
def test_bad_urls_are_refused(urls):
    with pytest.raises(ValueError, match="RemoteLoader: |a server's URL is "):
        mpwds.RemoteLoader(urls)


def test_the_error_of_a_loader_without_servers_says_why(tmp_path):
    with pytest.raises(
        mpwds.ServerLost, match=r"servers.txt \(FileNotFoundError: .* after 0.3 s: give its address"
    ):
        mpwds.RemoteLoader(f"file:{tmp_path}/servers.txt", server_timeout=0.3)
