"""The shard cache among processes: one fetches, the others wait, and any of them may die at any time."""

import contextlib
import hashlib
import importlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from mpwds.storage.caches import fetch as cache_fetch
from mpwds.storage.caches.directory import CacheEntry, files_in, locked_usage
from mpwds.storage.caches.shard_cache import ShardCache
from tests.storage.members import archive_of

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


class Server:
    """A shard under six names, at a web server that stops half way while its gate is closed."""

    def __init__(self, web):
        self._web = web
        self.gate = web.gate
        self.serve(archive_of([("000.bin", random.Random(0).randbytes(SIZE))]))

    def serve(self, body):
        self.body = body
        self._web.files = {f"/{name}.tar": body for name in "abcdef"}

    @property
    def requests(self):
        return [path for _, path, _ in self._web.requests]

    @property
    def digest(self):
        return f"{hashlib.sha256(self.body).hexdigest()} {len(self.body)}"

    def url(self, name="a"):
        return self._web.url(f"/{name}.tar")


@pytest.fixture
def server(web, monkeypatch):
    monkeypatch.setattr(cache_fetch, "_warned", set())
    return Server(web)


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
    output = process.communicate(timeout=600)[0].split("\n")
    assert process.returncode == 0
    return output[-2]


def contents(directory):
    names = os.listdir(directory)
    return sorted(name for name in names if name != ".mpwds"), partials(directory)


def partials(directory):
    try:
        return os.listdir(os.path.join(directory, ".mpwds", "partial"))
    except FileNotFoundError:
        return []


def until(condition):
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def waits(process):
    """Whether a process has a partial file open: it waits for another one that fetches it."""
    folder = f"/proc/{process.pid}/fd"
    with contextlib.suppress(FileNotFoundError):
        return any(os.readlink(f"{folder}/{name}").endswith(".partial") for name in os.listdir(folder))
    return False


def begin_fetching(server, start):
    """Starts a process that has begun to fetch and gets no further until the server's gate is opened."""
    server.gate.clear()
    fetching = start(first=1000)
    assert fetching.stdout.readline() == "reading\n"
    return fetching


def test_many_processes_that_want_a_shard_make_one_request(server, directory, start):
    processes = [begin_fetching(server, start), *(start() for _ in range(3))]
    until(lambda: all(map(waits, processes)))
    server.gate.set()
    assert [finish(process) for process in processes] == [server.digest] * 4
    assert server.requests == ["/a.tar"]
    assert contents(directory) == (["a.tar"], [])


def test_when_the_one_who_fetches_is_killed_one_that_waits_takes_over(server, directory, start):
    fetching = begin_fetching(server, start)
    waiting = [start() for _ in range(2)]
    until(lambda: all(map(waits, waiting)))
    fetching.send_signal(signal.SIGKILL)
    fetching.wait()
    server.gate.set()
    assert [finish(process) for process in waiting] == [server.digest] * 2
    assert server.requests == ["/a.tar"] * 2
    assert contents(directory) == (["a.tar"], [])


def _fetch_and_be_killed(url, directory, module, function, when):
    module = importlib.import_module(module)
    call = getattr(module, function)

    def killed(*arguments, **options):
        if when == "after":
            call(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    ShardCache(directory, 1e9).prefetch(url + "?first")  # notes the directory's usage
    while len(os.listdir(directory)) < 2:
        pass
    setattr(module, function, killed)
    with ShardCache(directory, 1e9).open(url) as stream:
        stream.read()
        time.sleep(60)


POINTS = [
    ("os", "preadv", "before"),  # while it fetches
    ("os", "fsync", "before"),  # the shard is complete
    ("os", "fsync", "after"),
    ("os", "replace", "before"),  # the mark gets its name
    ("os", "replace", "after"),
    ("os", "rename", "before"),  # the shard gets its name
    ("os", "rename", "after"),
    ("os", "ftruncate", "before"),  # the usage is noted
    ("os", "close", "before"),
]


@pytest.mark.parametrize(("module", "function", "when"), POINTS)
def test_wherever_the_fetching_process_is_killed_the_next_finds_all_in_order(
    server, directory, module, function, when
):
    arguments = (server.url(), directory, module, function, when)
    process = multiprocessing.get_context("fork").Process(target=_fetch_and_be_killed, args=arguments)
    process.start()
    process.join(600)
    assert process.exitcode == -signal.SIGKILL
    limit = 3.5 * len(server.body)
    for name in "ab":
        with ShardCache(directory, limit).open(server.url(name)) as stream:
            assert stream.read() == server.body
        settle(directory)
    assert partials(directory) == []
    for name in "cd":
        with ShardCache(directory, limit).open(server.url(name)) as stream:
            assert stream.read() == server.body
        settle(directory)
    shards = contents(directory)[0]
    assert len(shards) == 3
    assert {"c.tar", "d.tar"} <= set(shards)
    for name in shards:
        with open(os.path.join(directory, name), "rb") as file:
            assert file.read() == server.body


def settle(directory):
    until(lambda: all(each.entry.directory != directory for each in list(cache_fetch._running.values())))


def test_one_that_waits_streams_the_shard_when_the_directory_becomes_unusable(server, directory, start):
    fetching = begin_fetching(server, start)
    waiting = start()
    until(lambda: waits(waiting))
    partial = os.path.join(directory, ".mpwds", "partial")
    os.rename(partial, partial + "-gone")
    with open(partial, "w"):
        pass
    server.gate.set()
    assert finish(waiting) == server.digest
    assert finish(fetching) == server.digest


def test_a_directory_under_another_path_is_the_same_cache(server, directory, start, tmp_path):
    fetching = begin_fetching(server, start)
    (tmp_path / "elsewhere").symlink_to(directory)
    arguments = [sys.executable, "-c", READER, server.url(), str(tmp_path / "elsewhere"), "0", "1e9"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    until(lambda: waits(process))
    server.gate.set()
    assert finish(process) == finish(fetching) == server.digest
    assert server.requests == ["/a.tar"]


def test_a_process_that_ends_half_way_leaves_no_partial_file(server, directory):
    server.gate.clear()
    program = "\n".join(READER.split("\n")[:8]) + '\n        print("reading")'
    arguments = [sys.executable, "-c", program, server.url(), directory, "1000", "-1"]
    subprocess.run(arguments, check=True, timeout=600)
    assert contents(directory) == ([], [])


def test_one_that_is_stopped_is_not_waited_for_for_ever(server, directory, start, monkeypatch):
    monkeypatch.setattr(cache_fetch, "patience_s", 0.2)
    fetching = begin_fetching(server, start)
    fetching.send_signal(signal.SIGSTOP)
    server.gate.set()
    with (
        pytest.warns(RuntimeWarning, match="is streamed, but not kept .* has written nothing for"),
        ShardCache(directory).open(server.url()) as stream,
    ):
        assert stream.read() == server.body
    fetching.send_signal(signal.SIGCONT)
    assert finish(fetching) == server.digest


@pytest.mark.filterwarnings("error")
def test_one_that_goes_on_slowly_is_waited_for(server, directory, start, monkeypatch):
    fetching = begin_fetching(server, start)
    entry = CacheEntry.of(directory, server.url())

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            if self.now < 5 * cache_fetch.patience_s:
                self.now += 0.9 * cache_fetch.patience_s
                os.utime(entry.partial, (self.now, self.now))  # as if some bytes had come
            else:
                server.gate.set()
                time.sleep(seconds)

    monkeypatch.setattr(cache_fetch, "time", Clock())
    with ShardCache(directory).open(server.url()) as stream:
        assert stream.read() == server.body
    assert finish(fetching) == server.digest
    assert server.requests == ["/a.tar"]


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
    partial = os.path.join(directory, ".mpwds", "partial")
    os.makedirs(partial, exist_ok=True)
    with locked_usage(directory):
        files = [*files_in(directory), *files_in(partial)]
        return sum(status.st_size for _, status in files)


def test_a_fork_reads_on_what_its_parent_fetches(server, directory):
    server.gate.clear()
    cache = ShardCache(directory)
    with cache.open(server.url()) as stream:
        stream.read(1000)
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        child = context.Process(target=_read_both, args=(stream, cache, server.url(), there))
        child.start()
        until(lambda: waits(child))
        server.gate.set()
        whole, rest = here.recv()
        child.join()
        assert stream.read() == server.body[1000:]
    assert rest == hashlib.sha256(server.body[1000:]).hexdigest()
    assert whole == hashlib.sha256(server.body).hexdigest()
    assert server.requests == ["/a.tar"] * 2


def _read_both(stream, cache, url, connection):
    connection.send([_digest(cache, url), hashlib.sha256(stream.read()).hexdigest()])


@pytest.mark.filterwarnings("error")  # it would give up after a while, and say so
def test_a_fork_that_lives_on_does_not_keep_the_lock_of_its_dead_parent(server, directory):
    server.gate.clear()
    program = """if True:
        import os, sys, time
        from mpwds.storage.caches.shard_cache import ShardCache
        stream = ShardCache(sys.argv[2]).open(sys.argv[1])
        stream.read(1000)
        child = os.fork()
        if child == 0:
            time.sleep(600)
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


REFUSED = """if True:
    import sys, warnings
    from mpwds.storage.caches.shard_cache import ShardCache

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ShardCache(sys.argv[2]).open(sys.argv[1]) as stream:
            if sys.argv[3] == "fetch":
                print("reading", stream.read(10), flush=True)
            stream.seek(5) if stream.seekable() else None
            data = stream.read()
            print("read", len(data))
            while sys.argv[3] == "fetch" and not caught:
                pass
    print(*(str(each.message) for each in caught))
"""


def test_a_shard_that_the_validator_refuses_is_not_fetched_again_by_those_who_waited(server, directory):
    server.serve(server.body[: len(server.body) // 2])
    server.gate.clear()
    processes = []
    for role in ("fetch", "wait", "wait"):
        arguments = [sys.executable, "-c", REFUSED, server.url(), directory, role]
        processes.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True))
        if role == "fetch":
            assert processes[0].stdout.readline().startswith("reading")
    until(lambda: all(map(waits, processes)))
    server.gate.set()
    read = [process.communicate(timeout=600)[0].split("\n") for process in processes]
    assert [size for size, *_ in read] == [f"read {len(server.body) - skipped}" for skipped in (10, 5, 5)]
    assert all("not kept in the cache" in said and "not a whole shard" in said for _, said, _ in read)
    assert server.requests == ["/a.tar"]
    assert contents(directory) == ([], [])
