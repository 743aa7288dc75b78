"""Measures reading shards of object storage, at a server process that imitates S3.

    python tools/bench/object_store.py            # eleven minutes
    python tools/bench/object_store.py --quick    # two places, one worker, a minute
    python tools/bench/object_store.py --busy 50 --reset 50   # every 50th answer is a 503, another breaks off

The server waits for ``latency`` milliseconds before each answer, and sends at most ``rate`` MB/s over a
connection (0: no limit). It sends files that are in memory by ``sendfile``, so it needs less of the processor
than a real server, and it shares this machine's cores with the readers.

A reader is a process that reads shards from start to end; ``workers`` are as many processes with shards of
their own. ``one GET`` is ``read_ahead=0``; ``ahead`` is the default of ``s3://``. MosaicML Streaming and
litdata read the same samples from their own formats, with their defaults. Readers run in turn.
Figures are medians of the rounds, but for other packages, which read once. ``cpu`` is processor seconds for
a GB, with those of programs that a reader starts; ``gap`` is the mean milliseconds between the last sample of
a shard and the first of the next; ``requests`` those for a shard; ``MB`` the peak memory of a worker. The
ramp of reading ahead counts.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import re
import resource
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loading import formats

import mpwds

_SAMPLE_BYTES = 100_000
_SLICE_BYTES = 256 * 1024
_RANGE = re.compile(rb"^range: *bytes=(\d+)-(\d*)", re.IGNORECASE | re.MULTILINE)
_ANSWER = (
    "HTTP/1.1 {status}\r\nETag: {etag}\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n"
    "Accept-Ranges: bytes\r\nContent-Length: {length}\r\n{more}\r\n"
)

Samples = Iterator[tuple[str, int]]
"""A sample's shard and size."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of reading object storage")
    parser.add_argument("--quick", action="store_true", help="two places, one worker, one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shards", type=int, default=6, help="shards that each worker reads")
    parser.add_argument("--megabytes", type=int, default=61, help="size of a shard")
    parser.add_argument("--latency", type=int, nargs="+", default=[5, 30, 100], help="milliseconds")
    parser.add_argument("--rate", type=int, nargs="+", default=[0, 60], help="MB/s over a connection")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--busy", type=int, default=0, help="every n-th answer is a 503")
    parser.add_argument("--reset", type=int, default=0, help="every n-th answer breaks off half way")
    arguments = parser.parse_args()
    places = [(latency, rate) for rate in arguments.rate for latency in arguments.latency]
    workers, rounds = arguments.workers, arguments.rounds
    if arguments.quick:
        places, workers, rounds = [(5, 0), (30, 60)], [1], 1
    readers = [name for name in READERS if _is_installed(name)]
    print(f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores; medians of {rounds} rounds, others once")
    header = (
        f"{'reader':<24}{'workers':>8}{'MB/s':>8}{'ratio':>8}{'cpu':>8}{'gap':>8}{'requests':>10}{'MB':>6}"
    )
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        shard = _make_shard(folder, arguments.megabytes)
        formats.in_a_fork(_write_formats, folder, arguments.megabytes, arguments.shards, readers)
        for latency, rate in places:
            print(f"\n{latency} ms to the first byte, {rate or 'any'} MB/s a connection\n{header}")
            for count in workers:
                running = [name for name in readers if count == 1 or name not in _ALONE]
                found: dict[str, list[Figures]] = {name: [] for name in running}
                for turn in range(rounds):
                    for name in running if turn == 0 else [name for name in running if name in _OURS]:
                        server = [shard, latency / 1000, rate * 1e6, arguments.busy, arguments.reset]
                        found[name].append(_measure(name, server, count, arguments.shards))
                _print(found, count)


Figures = dict[str, float]


def _print(found: dict[str, list[Figures]], workers: int) -> None:
    base = statistics.median(each["rate"] for each in found["one GET"])
    for name, rounds in found.items():
        middle = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
        print(
            f"{name:<24}{workers:>8}{middle['rate']:>8.0f}{middle['rate'] / base:>8.1f}{middle['cpu']:>8.2f}"
            f"{middle['gap']:>8.1f}{middle['requests']:>10.1f}{middle['memory']:>6.0f}"
        )


def _make_shard(folder: str, megabytes: int) -> str:
    noise = os.urandom(_SAMPLE_BYTES)
    with mpwds.ShardWriter(f"{folder}/%d.tar", maxcount=1e9, verbose=False) as shards:
        for number in range(megabytes * 1_000_000 // _SAMPLE_BYTES):
            shards.write({"__key__": f"{number:06}", "bin": noise})
    return f"{folder}/0.tar"


def _write_formats(folder: str, megabytes: int, shards: int, readers: list[str]) -> None:
    """The same samples for other packages, in as many shards of the same size."""
    samples = [{"bin": os.urandom(_SAMPLE_BYTES)}] * (megabytes * 1_000_000 // _SAMPLE_BYTES)
    if "MosaicML Streaming" in readers:
        formats.write_mds(Path(folder, "mds"), {"bin": "bytes"}, samples, shards)
    if "litdata" in readers:
        formats.write_litdata(Path(folder, "litdata"), samples, shards)


def _measure(reader: str, server: list[Any], workers: int, shards: int) -> Figures:
    """Starts a server, and processes that read from it; returns what they say."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        port = listener.getsockname()[1]
        arguments = [__file__, "serve", str(listener.fileno()), *map(str, server)]
        process = subprocess.Popen([sys.executable, *arguments], pass_fds=[listener.fileno()])
    environment = {
        **os.environ,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "S3_ENDPOINT_URL": f"http://127.0.0.1:{port}",  # for MosaicML Streaming
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    try:
        began = time.perf_counter()
        running = [
            subprocess.Popen(
                [sys.executable, __file__, "read", reader, str(worker), str(shards)],
                env=environment,
                stdout=subprocess.PIPE,
            )
            for worker in range(workers)
        ]
        told = [json.loads(each.communicate()[0]) for each in running]
        requests = _requests(port)
    finally:
        process.kill()
        process.wait()
    seconds = max(each["ended"] for each in told) - min(each["began"] for each in told)
    assert seconds <= time.perf_counter() - began
    size = sum(each["bytes"] for each in told)
    return {
        "rate": size / 1e6 / seconds,
        "cpu": sum(each["cpu"] for each in told) / (size / 1e9),
        "gap": statistics.mean(each["gap"] for each in told) * 1000,
        "requests": requests / (workers * shards),
        "memory": max(each["memory"] for each in told),
    }


def _requests(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /requests HTTP/1.1\r\n\r\n")
        return int(connection.recv(1000).rpartition(b"\r\n")[2])


def _read(reader: str, worker: int, shards: int) -> None:
    """A worker: reads shards, and prints what that took."""
    names = [f"bucket/{worker}-{number:06}.tar" for number in range(shards)]
    package, read = READERS[reader]
    # Imports are not counted.
    if read is _of_streaming:
        formats.import_streaming()
    for module in _IMPORTED if reader in _OURS else [package]:
        importlib.import_module(module)
    samples = read(names)
    began, usage = time.perf_counter(), _processor_s()
    size, last, url, gaps = 0, 0.0, "", []
    for found, length in samples:
        now = time.perf_counter()
        if found != url:
            gaps += [now - last] if url else []
            url = found
        size, last = size + length, now
    told = {
        "began": began,
        "ended": time.perf_counter(),
        "bytes": size,
        "cpu": _processor_s() - usage,
        "gap": statistics.mean(gaps),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(told))


def _processor_s() -> float:
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _of_mpwds(scheme: str, **options: Any) -> Callable[[list[str]], Samples]:
    def read(names: list[str]) -> Samples:
        base = f"{os.environ['AWS_ENDPOINT_URL']}/" if scheme == "http" else "s3://"
        for sample in mpwds.WebDataset([base + name for name in names], **options):
            yield sample["__url__"], len(sample["bin"])

    return read


def _of_webdataset(names: list[str]) -> Samples:
    import webdataset

    urls = [f"pipe:curl -s {os.environ['AWS_ENDPOINT_URL']}/{name}" for name in names]
    for sample in webdataset.WebDataset(urls, shardshuffle=False):
        yield sample["__url__"], len(sample["bin"])


def _of_s3fs(names: list[str]) -> Samples:
    import s3fs

    storage = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    for name in names:
        with storage.open(name) as file:
            while block := file.read(_SAMPLE_BYTES):
                yield name, len(block)


def _of_streaming(names: list[str]) -> Samples:
    streaming = formats.import_streaming()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        dataset = streaming.StreamingDataset(
            remote="s3://bucket/mds", local=folder, shuffle=False, batch_size=1
        )
        yield from _numbered(dataset, len(names))


def _of_litdata(names: list[str]) -> Samples:
    import litdata
    from litdata.streaming import downloader

    # Our server has no certificate.
    downloader._OBSTORE_CLIENT_OPTIONS = {**downloader._OBSTORE_CLIENT_OPTIONS, "allow_http": True}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        dataset = litdata.StreamingDataset(
            "s3://bucket/litdata",
            cache_dir=folder,
            storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
        )
        yield from _numbered(dataset, len(names))


def _numbered(dataset: Any, shards: int) -> Samples:
    each = len(dataset) // shards
    for number, sample in enumerate(dataset):
        yield str(number // each), len(sample["bin"])


READERS: dict[str, tuple[str, Callable[[list[str]], Samples]]] = {
    "one GET": ("obstore", _of_mpwds("s3", read_ahead=0)),
    "ahead": ("obstore", _of_mpwds("s3")),
    "http, one GET": ("urllib3", _of_mpwds("http")),
    "http, read_ahead=8": ("urllib3", _of_mpwds("http", read_ahead=8)),
    "webdataset, pipe:curl": ("webdataset", _of_webdataset),
    "s3fs": ("s3fs", _of_s3fs),
    "MosaicML Streaming": ("boto3", _of_streaming),
    "litdata": ("litdata", _of_litdata),
}
"""Readers by name: the package that each needs, and a function of the shards' names."""
_OURS = list(READERS)[:4]
_IMPORTED = "mpwds.pipeline.sources.webdataset", "mpwds.storage.streams.cloud", "mpwds.storage.streams.http"
_ALONE = {"MosaicML Streaming"}
"""Readers of which a machine runs one: several would use the same names of shared memory."""


def _is_installed(reader: str) -> bool:
    package = READERS[reader][0]
    there = importlib.util.find_spec(package) is not None
    if not there:
        print(f"{reader}: {package} is not installed")
    return there


class Server:
    """A server for GET and HEAD: of the files beside the shard by their names, and else of the shard."""

    def __init__(self, path: str, latency_s: float, rate: float, busy: int, reset: int) -> None:
        self._shard = Path(path)
        self._files: dict[Path, int] = {}
        self._latency_s, self._rate, self._busy, self._reset = latency_s, rate, busy, reset
        self._lock = threading.Lock()
        self._requests = 0

    def serve(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        pending = b""
        with connection:
            try:
                while True:
                    while b"\r\n\r\n" not in pending:
                        if not (data := connection.recv(65536)):
                            return
                        pending += data
                    head, _, pending = pending.partition(b"\r\n\r\n")
                    self._answer(connection, head)
            except ConnectionError:
                pass

    def _answer(self, connection: socket.socket, head: bytes) -> None:
        method, path, _ = head.partition(b"\r\n")[0].decode().split(" ")
        if path == "/requests":
            connection.sendall(f"HTTP/1.1 200 OK\r\n\r\n{self._requests}".encode())
            return
        with self._lock:
            self._requests += 1
            number = self._requests
            file = self._file_of(path)
        time.sleep(self._latency_s)
        size = os.fstat(file).st_size
        asked = _RANGE.search(head)
        start = int(asked[1]) if asked else 0
        stop = min(size, int(asked[2]) + 1) if asked and asked[2] else size
        more = f"Content-Range: bytes {start}-{stop - 1}/{size}\r\n" if asked else ""
        status = "206 Partial Content" if asked else "200 OK"
        if self._busy and number % self._busy == 0:
            start, stop, more, status = 0, 0, "Retry-After: 1\r\n", "503 Slow Down"
        etag = f'"{path.partition("?")[0]}"'
        connection.sendall(_ANSWER.format(status=status, etag=etag, length=stop - start, more=more).encode())
        if method == "HEAD":
            return
        if self._reset and number % self._reset == 0:
            self._send(connection, file, start, (start + stop) // 2)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise ConnectionError
        self._send(connection, file, start, stop)

    def _file_of(self, path: str) -> int:
        file = self._shard.parent / path.partition("?")[0].removeprefix("/bucket/")
        if not file.is_file():
            file = self._shard
        if file not in self._files:
            self._files[file] = os.open(file, os.O_RDONLY)
        return self._files[file]

    def _send(self, connection: socket.socket, file: int, start: int, stop: int) -> None:
        began, first = time.monotonic(), start
        while start < stop:
            size = min(_SLICE_BYTES, stop - start) if self._rate else stop - start
            start += os.sendfile(connection.fileno(), file, start, size)
            if self._rate:
                time.sleep(max(0.0, began + (start - first) / self._rate - time.monotonic()))


def _serve(descriptor: str, path: str, latency_s: str, rate: str, busy: str, reset: str) -> None:
    Server(path, float(latency_s), float(rate), int(busy), int(reset)).serve(
        socket.socket(fileno=int(descriptor))
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        _serve(*sys.argv[2:])
    elif sys.argv[1:2] == ["read"]:
        _read(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
