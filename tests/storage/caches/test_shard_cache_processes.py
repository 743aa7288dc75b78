"""The shard cache among processes: one fetches, all read, and any of them may die at any time."""

import contextlib
import hashlib
import http.server
import io
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading

import pytest

from mpwds.storage.caches import fill as cache_fill
from mpwds.storage.caches import reader as cache_reader
from mpwds.storage.caches.files import lock_path, partials, shards
from mpwds.storage.caches.locks import exclusively
from mpwds.storage.caches.shard_cache import ShardCache
from mpwds.storage.streams.http import pools

SIZE = 3 << 20

READER = """if True:
    import hashlib, os, sys
    from mpwds.storage.caches.shard_cache import ShardCache

    url, directory, first, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    with ShardCache(directory, size).open(url) as stream:
        digest = hashlib.sha256(stream.read(first))
        print("reading", flush=True)
        count = first
        while block := stream.read(100_000):
            digest.update(block)
            count += len(block)
    print(digest.hexdigest(), count)
"""


class Server(http.server.ThreadingHTTPServer):
    """Serves one shard under every path; counts, and stops half way while its gate is closed."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            info = tarfile.TarInfo("000.bin")
            info.size = SIZE
            archive.addfile(info, io.BytesIO(random.Random(0).randbytes(SIZE)))
        self.body = stream.getvalue()
        self.requests = []
        self.gate = threading.Event()
        self.gate.set()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def digest(self):
        return f"{hashlib.sha256(self.body).hexdigest()} {len(self.body)}"

    def url(self, name="a"):
        return f"http://127.0.0.1:{self.server_port}/{name}.tar"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server = self.server
        server.requests.append(self.path)
        body = server.body
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()[:8]}"')
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body[: len(body) // 2])
            if not server.gate.wait(30):
                self.close_connection = True
                return
            self.wfile.write(body[len(body) // 2 :])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(cache_fill, "_warned", set())
    with Server() as server:
        yield server
        server.gate.set()
        server.shutdown()
    pools.cache_clear()


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "cache")


@pytest.fixture
def start(server, directory):
    """Starts a process that reads the shard; call ``communicate`` for its digest."""
    processes = []

    def start(name="a", first=0, size=-1):
        arguments = [sys.executable, "-c", READER, server.url(name), directory, str(first), str(size)]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def finish(process):
    output = process.communicate(timeout=30)[0].split("\n")
    assert process.returncode == 0
    return output[-2]


def contents(directory):
    names = os.listdir(directory)
    left = [name for name in os.listdir(os.path.join(directory, ".mpwds")) if name.endswith(".partial")]
    return sorted(name for name in names if name != ".mpwds"), left


def test_many_processes_that_want_a_shard_make_one_request(server, directory, start):
    server.gate.clear()
    processes = [start(first=1000) for _ in range(4)]
    for process in processes:
        assert process.stdout.readline() == "reading\n"
    server.gate.set()
    assert [finish(process) for process in processes] == [server.digest] * 4
    assert server.requests == ["/a.tar"]
    assert contents(directory) == (["a.tar"], [])


def test_when_the_one_who_fetches_is_killed_a_reader_takes_over_without_losing_a_byte(
    server, directory, start
):
    server.gate.clear()
    fetching = start(first=1000)
    assert fetching.stdout.readline() == "reading\n"
    followers = [start(first=len(server.body) // 4) for _ in range(2)]
    for follower in followers:
        assert follower.stdout.readline() == "reading\n"
    assert server.requests == ["/a.tar"]
    fetching.send_signal(signal.SIGKILL)
    fetching.wait()
    server.gate.set()
    assert [finish(follower) for follower in followers] == [server.digest] * 2
    assert server.requests == ["/a.tar"] * 2
    assert contents(directory) == (["a.tar"], [])


def test_what_a_killed_process_left_is_never_served(server, directory, start):
    server.gate.clear()
    fetching = start(first=1000)
    assert fetching.stdout.readline() == "reading\n"
    fetching.send_signal(signal.SIGKILL)
    fetching.wait()
    assert contents(directory)[0] == []
    assert len(contents(directory)[1]) == 1
    server.gate.set()
    assert finish(start()) == server.digest
    assert contents(directory) == (["a.tar"], [])


def test_a_shard_that_changes_between_two_fetchers_is_an_error_not_a_mixture(server, directory, start):
    server.gate.clear()
    fetching = start(first=1000)
    assert fetching.stdout.readline() == "reading\n"
    with ShardCache(directory).open(server.url()) as stream:
        stream.read(10_000)
        server.body = server.body[:5000] + b"another" + server.body[5007:]
        fetching.send_signal(signal.SIGKILL)
        fetching.wait()
        server.gate.set()
        with pytest.raises(OSError, match="it changed while it was read"):
            stream.read()


def test_a_process_that_ends_half_way_leaves_no_partial_file(server, directory):
    server.gate.clear()
    program = "\n".join(READER.split("\n")[:8]) + '\n        print("reading")'
    arguments = [sys.executable, "-c", program, server.url(), directory, "1000", "-1"]
    subprocess.run(arguments, check=True, timeout=30)
    assert contents(directory) == ([], [])


def test_one_that_is_stopped_is_not_waited_for_for_ever(server, directory, start, monkeypatch):
    monkeypatch.setattr(cache_reader, "patience_s", 0.2)
    server.gate.clear()
    fetching = start(first=1000)
    assert fetching.stdout.readline() == "reading\n"
    fetching.send_signal(signal.SIGSTOP)
    server.gate.set()
    with (
        pytest.warns(RuntimeWarning, match="is read from its URL"),
        ShardCache(directory).open(server.url()) as stream,
    ):
        assert stream.read() == server.body
    fetching.send_signal(signal.SIGCONT)
    assert finish(fetching) == server.digest


def test_processes_together_keep_the_size_and_read_everything(server, directory, start):
    limit = 2.5 * len(server.body)
    processes = [start(name, size=limit) for name in "abcdef"]
    sizes = []
    while any(process.poll() is None for process in processes):
        sizes.append(_size(directory))
    assert [finish(process) for process in processes] == [server.digest] * 6
    assert max(*sizes, _size(directory)) <= limit
    assert contents(directory)[1] == []


def _size(directory):
    """Bytes of all shards and partial files, at one moment: nothing is removed or named meanwhile."""
    os.makedirs(os.path.join(directory, ".mpwds"), exist_ok=True)
    with exclusively(lock_path(directory)):
        files = [*shards(directory), *partials(directory)]
        return sum(status.st_size for _, status in files)


def test_a_fork_follows_what_its_parent_fetches(server, directory):
    server.gate.clear()
    cache = ShardCache(directory)
    with cache.open(server.url()) as stream:
        stream.read(1000)
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        child = context.Process(target=_read_both, args=(stream, cache, server.url(), there))
        child.start()
        assert here.recv() == "reading"
        server.gate.set()
        rest, whole = here.recv()
        child.join()
        assert stream.read() == server.body[1000:]
    assert rest == hashlib.sha256(server.body[1000:]).hexdigest()
    assert whole == hashlib.sha256(server.body).hexdigest()
    assert server.requests == ["/a.tar"]


def _read_both(stream, cache, url, connection):
    with cache.open(url) as own:
        head = own.read(1000)
        connection.send("reading")
        rest = stream.read()
        connection.send([hashlib.sha256(rest).hexdigest(), hashlib.sha256(head + own.read()).hexdigest()])


@pytest.mark.filterwarnings("error")  # it would give up after a while, and say so
def test_a_fork_that_lives_on_does_not_keep_the_lock_of_its_dead_parent(server, directory, monkeypatch):
    monkeypatch.setattr(cache_reader, "patience_s", 5.0)
    server.gate.clear()
    program = """if True:
        import os, sys, time
        from mpwds.storage.caches.shard_cache import ShardCache
        stream = ShardCache(sys.argv[2]).open(sys.argv[1])
        stream.read(1000)
        child = os.fork()
        if child == 0:
            time.sleep(60)
        print(child, flush=True)
        os.kill(os.getpid(), 9)
    """
    arguments = [sys.executable, "-c", program, server.url(), directory]
    parent = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.wait()
    parent.stdout.close()
    try:
        server.gate.set()
        with ShardCache(directory).open(server.url()) as stream:
            assert stream.read() == server.body
    finally:
        os.kill(child, signal.SIGKILL)
    assert server.requests == ["/a.tar"] * 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_it_goes_to_worker_processes(server, directory, method):
    with multiprocessing.get_context(method).Pool(2) as pool:
        digests = pool.starmap(_digest, [(ShardCache(directory), server.url())] * 4)
    assert digests == [hashlib.sha256(server.body).hexdigest()] * 4
    assert server.requests == ["/a.tar"]


def _digest(cache, url):
    with cache.open(url) as stream:
        return hashlib.sha256(stream.read()).hexdigest()
