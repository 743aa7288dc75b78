"""Requests to web servers: redirects, credentials, connections, forks, writing, proxies, certificates."""

import contextlib
import pickle
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mpwds.errors import StreamError, StreamNotFound
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.http import open_http, pools
from mpwds.storage.streams.resuming import Retries
from tests.forks import raised_in_fork
from tests.storage.streams.served import CONTENT, read


@pytest.fixture(autouse=True)
def shard(web):
    web.files["/x.tar"] = CONTENT


def test_errors_keep_credentials_to_themselves(web):
    url = f"http://me:secret@127.0.0.1:{web.port}/no.tar?token=secret"
    with pytest.raises(StreamNotFound) as caught:
        open_http(url)
    assert "secret" not in str(caught.value)
    assert "/no.tar" in str(caught.value)


def test_credentials_in_the_url_become_basic_authorization(web):
    with open_http(f"http://me:p%40ss@127.0.0.1:{web.port}/x.tar") as stream:
        stream.read()
    assert web.asked("Authorization") == ["Basic bWU6cEBzcw=="]


def test_a_path_with_spaces_and_letters_of_any_alphabet_is_escaped(web):
    web.files["/a%20b/%C3%A9.tar"] = b"content"
    with gopen(web.url("/a b/é.tar")) as stream:
        assert stream.read() == b"content"


def test_asks_for_no_encoding(web):
    read(web)
    assert web.asked("Accept-Encoding") == ["identity"]


@pytest.mark.parametrize("encoding", ["gzip", "br", "nonsense"])
def test_an_encoding_that_comes_all_the_same_is_not_undone(web, encoding):
    web.plan = [{"headers": {"Content-Encoding": encoding}}]
    assert read(web) == CONTENT


def test_redirects_are_followed_also_when_reading_goes_on(web, quick):
    there = {"status": 302, "headers": {"Location": "/y.tar"}}
    web.files["/y.tar"] = CONTENT
    web.plan = [there, {"cut": 100_000}, there]
    assert read(web, retries=quick) == CONTENT
    assert [path for _, path, _ in web.requests] == ["/x.tar", "/y.tar"] * 2


def test_a_redirect_to_another_server_takes_no_credentials_along(web, make_web):
    other = make_web()
    other.files["/y.tar"] = CONTENT
    web.plan = [{"status": 307, "headers": {"Location": other.url("/y.tar")}}]
    url = f"http://me:secret@127.0.0.1:{web.port}/x.tar"
    with open_http(url, headers={"X-Api-Key": "secret"}, offset=10) as stream:
        assert stream.read() == CONTENT[10:]
    assert (web.asked("X-Api-Key"), other.asked("X-Api-Key")) == (["secret"], [None])
    assert (other.asked("Authorization"), other.asked("Range")) == ([None], ["bytes=10-"])


def test_redirects_that_go_round_in_circles_end(web):
    web.plan = [{"status": 302, "headers": {"Location": "/x.tar"}}] * 20
    with pytest.raises(StreamError, match="more than 10 redirects"):
        open_http(web.url())


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_redirects_lead_to_web_servers_only(web, target):
    web.plan = [{"status": 302, "headers": {"Location": target}}]
    with pytest.raises(StreamError, match="not a URL of a web server, http: or https:"):
        open_http(web.url())


def test_one_connection_serves_one_shard_after_the_other(web):
    for _ in range(5):
        read(web)
    assert len(web.connections) == 1


def test_a_kept_connection_that_the_server_closed_is_replaced_without_a_failure(web):
    web.plan = [{"hangs_up": True}]
    read(web)
    web.wait_until_a_connection_is_closed()
    assert read(web, retries=Retries(tries=1)) == CONTENT
    assert len(web.connections) == 2


def test_a_stream_left_early_closes_its_connection(web, nothing_left):
    with open_http(web.url()) as stream:
        stream.read(10)
    pools.cache_clear()


def test_threads_share_no_connection(web):
    with ThreadPoolExecutor(8) as threads:
        assert all(content == CONTENT for content in threads.map(lambda _: read(web), range(8)))


def test_a_fork_reads_on_by_a_connection_of_its_own(web):
    def read_on():
        with open_http(web.url()) as own:
            assert stream.read() == CONTENT[1000:]
            assert own.read() == CONTENT

    with open_http(web.url(), bufsize=1) as stream:
        head = stream.read(1000)
        read(web)  # leaves a connection that the fork must not use
        assert raised_in_fork(read_on) == ""
        assert head + stream.read() == CONTENT
    assert len(web.connections) == 4


def test_writing_sends_all_at_close(web):
    with gopen(web.url("/new.tar"), "wb") as stream:
        stream.write(CONTENT[:100])
        stream.write(memoryview(CONTENT)[100:])
        assert web.requests == []
    assert web.files["/new.tar"] == CONTENT


def test_writing_is_tried_again(web, quick):
    web.plan = [{"status": 503, "unread": True}, {"status": 500, "unread": True}]
    with open_http(web.url("/new.tar"), "wb", retries=quick) as stream:
        stream.write(CONTENT)
    assert web.files["/new.tar"] == CONTENT


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_writing_follows_redirects_with_the_body(web, make_web, status):
    other = make_web()
    web.plan = [{"status": status, "headers": {"Location": other.url("/there.tar")}}]
    with open_http(web.url("/new.tar"), "wb") as stream:
        stream.write(CONTENT * 30)
    assert other.files["/there.tar"] == CONTENT * 30


@pytest.mark.parametrize("page", [{"/sign-in": b"welcome"}, {}])
def test_writing_that_is_answered_by_another_page_is_an_error(web, page):
    web.files |= page
    web.plan = [{"status": 303, "headers": {"Location": "/sign-in?token=secret"}}]
    stream = open_http(web.url("/new.tar"), "wb")
    stream.write(b"data")
    with pytest.raises(StreamError, match=r"303 See Other.*/sign-in\?token=\*\*\* was read") as error:
        stream.close()
    assert not isinstance(error.value, FileNotFoundError)


def test_writing_that_is_refused_is_an_error_from_close(web):
    web.plan = [{"status": 405, "unread": True}]
    stream = open_http(web.url("/new.tar"), "wb")
    stream.write(b"data")
    with pytest.raises(StreamError, match="405 Method Not Allowed: does the server take PUT requests"):
        stream.close()
    assert stream.closed


def test_what_a_failed_block_wrote_is_not_sent(web):
    with pytest.raises(KeyError), open_http(web.url("/new.tar"), "wb") as stream:
        stream.write(b"half")
        raise KeyError
    assert web.requests == []


def test_what_was_never_closed_is_not_sent(web):
    stream = open_http(web.url("/new.tar"), "wb")
    stream.write(b"half")
    with pytest.warns(ResourceWarning, match="never closed"):
        del stream
    assert web.requests == []


def test_a_fork_sends_nothing(web):
    stream = open_http(web.url("/new.tar"), "wb")
    stream.write(b"half")
    assert (raised_in_fork(stream.close), web.requests) == ("", [])
    stream.close()
    assert web.files["/new.tar"] == b"half"


def test_errors_survive_pickling(web):
    with pytest.raises(StreamNotFound) as caught:
        open_http(web.url("/no.tar"))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), copy.url) == (StreamNotFound, str(caught.value), caught.value.url)


def test_a_proxy_from_the_environment_is_asked(web, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://me:pass@127.0.0.1:{web.port}")
    with open_http("http://nowhere.invalid/x.tar") as stream:
        assert stream.read() == CONTENT
    assert web.requests[0][1] == "http://nowhere.invalid/x.tar"
    assert web.asked("Proxy-Authorization") == ["Basic bWU6cGFzcw=="]


@pytest.mark.parametrize("exception", ["*", "127.0.0.1", "example.org, 127.0.0.1", ".0.0.1"])
def test_no_proxy_is_heeded(web, monkeypatch, exception):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", exception)
    assert read(web, retries=Retries(tries=1)) == CONTENT


def test_a_proxy_of_another_kind_is_a_clear_error(web, monkeypatch):
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(StreamError, match="proxy .*cannot be used: .*socks5"):
        open_http(web.url())


@pytest.fixture
def tls_web(web, tmp_path, monkeypatch):
    """The server behind TLS, with a certificate that is its own authority."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl program to make a certificate")
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    names = "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1,DNS:localhost"
    command = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 {names}"
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    web._server.socket = context.wrap_socket(web._server.socket, server_side=True)
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    return web, certificate


def test_https_reads_on_and_keeps_its_connection(tls_web, quick, monkeypatch):
    web, certificate = tls_web
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    web.plan = [{"cut": 100_000}]
    for _ in range(2):
        with open_http(web.url().replace("http:", "https:"), retries=quick) as stream:
            assert stream.read() == CONTENT
    assert len(web.connections) == 2


def test_a_certificate_of_nobody_is_an_error_at_once(tls_web):
    web, _ = tls_web
    with pytest.raises(StreamError, match=r"certificate is not valid: self.signed.*SSL_CERT_FILE"):
        open_http(web.url().replace("http:", "https:"))


class Tunnel(socketserver.StreamRequestHandler):
    """A proxy that lets one connection through, if it is asked politely."""

    def handle(self):
        self.server.said.append(self.rfile.readline().decode().strip())
        while (line := self.rfile.readline().decode().strip()) != "":
            self.server.said.append(line)
        with socket.create_connection(("127.0.0.1", self.server.target)) as there:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=self.copy, args=(there, self.connection))
            back.start()
            self.copy(self.connection, there)
            back.join()

    @staticmethod
    def copy(source, target):
        with contextlib.suppress(OSError):
            while block := source.recv(65536):
                target.sendall(block)
            target.shutdown(socket.SHUT_WR)


def test_https_goes_through_a_proxys_tunnel(tls_web, monkeypatch):
    web, certificate = tls_web
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Tunnel) as proxy:
        proxy.said, proxy.target = [], web.port
        threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("https_proxy", f"http://me:pass@127.0.0.1:{proxy.server_address[1]}")
        with open_http("https://localhost:7/x.tar") as stream:
            assert stream.read() == CONTENT
        assert proxy.said[0].startswith("CONNECT localhost:7 HTTP/1.")
        assert "Proxy-Authorization: Basic bWU6cGFzcw==" in proxy.said
        assert web.asked("Proxy-Authorization") == [None]
        pools.cache_clear()
        proxy.shutdown()
