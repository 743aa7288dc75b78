"""Measures what a RemoteLoader takes the place of: getting ready batches from another process over a socket.

    python tools/bench/feed.py                       # all, about ten minutes
    python tools/bench/feed.py --quick               # some minutes, less exact
    python tools/bench/feed.py --only 77 --workers 2 --json feed.json

One process makes batches: the same array again and again, one element of it changed each time. In turn they
travel by plain pyzmq (PUSH to PULL, ``copy=False``, one message a batch), by bare TCP sockets (received into
the same memory each time), by tensorcom, by a MultiLoader with one worker, and by a server with one worker to
a RemoteLoader: over TCP on the loopback address and over ``ipc``, which leave batches in shared memory; over
TCP with ``shared_memory=False``, as between machines; and so with CURVE keys. A figure is the median over the
rounds; ratios are to plain pyzmq, or to MultiLoader, in this run. Then a consumer stalls, and memory is read
on both sides.

Two services are measured where they are installed. Ray Data: ``map_batches`` makes the batches, and
``streaming_split(1)`` feeds ``iter_batches`` (NumPy, four ahead) through Ray's object store, which is shared
memory here; a block is one batch, or 1 MB of small ones. tf.data service: a dispatcher and a worker,
``distribute`` without compression, ``prefetch(AUTOTUNE)``, ``as_numpy_iterator``; the worker cannot run
Python, so TensorFlow changes the element, which copies the array.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zmq

sys.path.insert(0, str(Path(__file__).parent))  # benchmarks import each other
from transport import copy_rate_gb_s, numpy_batches, pss_mb

import mpwds
from mpwds.feed import keys as feed_keys

WARM_UP_BATCHES = 10
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Case:
    """A size of batch, and the ratios that are aimed at."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    over_raw: float | None = None
    over_tensorcom: float | None = None

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


CASES = [
    Case("77 MB", (256, 3, 224, 224), "float16", over_raw=2.3, over_tensorcom=5),
    Case("9.6 MB", (64, 224, 224, 3), "uint8", over_raw=1.5),
    Case("512 B", (128,), "int32"),  # tensorcom sends no int64
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(function: Callable[..., None], *arguments: Any) -> Iterator[Any]:
    """A process that runs a function, until the block ends."""
    process = _SPAWN.Process(target=function, args=arguments)
    process.start()
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid or 0, signal.SIGTERM)
        process.join()


def push(url: str, case: Case) -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as sender:
        sender.sndhwm = 4
        sender.connect(url)
        for array in numpy_batches(case.shape, case.dtype)():
            sender.send(array, copy=False)


@contextlib.contextmanager
def raw_zmq(case: Case, _: int) -> Iterator[Iterator[Any]]:
    url = f"tcp://127.0.0.1:{free_port()}"
    with zmq.Context() as context, context.socket(zmq.PULL) as receiver:
        receiver.rcvhwm = 4
        receiver.bind(url)
        with running(push, url, case):
            yield (
                np.frombuffer(receiver.recv(copy=False).buffer, case.dtype).reshape(case.shape)
                for _ in iter(int, 1)
            )


def send_bare(port: int, case: Case) -> None:
    with socket.create_connection(("127.0.0.1", port)) as sender, contextlib.suppress(OSError):
        for array in numpy_batches(case.shape, case.dtype)():
            sender.sendall(memoryview(array).cast("B"))


@contextlib.contextmanager
def bare_sockets(case: Case, _: int) -> Iterator[Iterator[Any]]:
    memory = np.empty(case.shape, case.dtype)

    def receive(connection: socket.socket) -> Any:
        rest = memoryview(memory).cast("B")
        while rest:
            rest = rest[connection.recv_into(rest) :]
        return memory

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        running(send_bare, listener.getsockname()[1], case),
        listener.accept()[0] as connection,
    ):
        yield (receive(connection) for _ in iter(int, 1))


def push_tensorcom(url: str, case: Case) -> None:
    import tensorcom

    sender = tensorcom.Connection(url)
    for array in numpy_batches(case.shape, case.dtype)():
        sender.send([array])


@contextlib.contextmanager
def tensorcom_feed(case: Case, _: int) -> Iterator[Iterator[Any]]:
    import tensorcom

    port = free_port()
    receiver = tensorcom.Connection(f"zpull://127.0.0.1:{port}")
    with running(push_tensorcom, f"zpush://127.0.0.1:{port}", case):
        yield (receiver.recv()[0] for _ in iter(int, 1))


@contextlib.contextmanager
def multi_loader(case: Case, workers: int) -> Iterator[Iterator[Any]]:
    batches = numpy_batches(case.shape, case.dtype)
    with mpwds.MultiLoader(batches, workers=workers, output="numpy") as loader:
        yield iter(loader)


def serve(url: str, case: Case, workers: int, folder: str | None) -> None:
    batches = numpy_batches(case.shape, case.dtype)
    with mpwds.Server(batches, url, workers=workers, keys=folder) as server:
        signal.signal(signal.SIGTERM, lambda *_: server.stop())
        server.serve()


@contextlib.contextmanager
def remote_loader(
    case: Case, workers: int, *, ipc: bool = False, curve: bool = False, sent: bool = False
) -> Iterator[Iterator[Any]]:
    with tempfile.TemporaryDirectory() as folder:
        keys = folder if curve else None
        if curve:
            feed_keys.generate(folder)
        url = f"ipc://{folder}/feed" if ipc else f"tcp://127.0.0.1:{free_port()}"
        with (
            running(serve, url, case, workers, keys),
            mpwds.RemoteLoader(url, output="numpy", keys=keys, shared_memory=not sent) as loader,
        ):
            yield iter(loader)


@contextlib.contextmanager
def ray_data(case: Case, workers: int) -> Iterator[Iterator[Any]]:
    import ray.data

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=workers + 1, include_dashboard=False, log_to_driver=False, object_store_memory=1 << 31)
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.target_max_block_size = max(case.nbytes, 1 << 20)  # large batches are not cut
        batches = numpy_batches(case.shape, case.dtype)
        dataset = ray.data.range(workers, override_num_blocks=workers).map_batches(
            lambda _: ({"x": batch} for batch in batches()), batch_size=1
        )
        (shard,) = dataset.streaming_split(1)
        rows = {"batch_size": case.shape[0], "batch_format": "numpy", "prefetch_batches": 4}
        with contextlib.closing(iter(shard.iter_batches(**rows))) as received:  # or it starts Ray again
            yield (batch["x"] for batch in received)
    finally:
        ray.shutdown()


def serve_tf_data(port: int, dispatcher: str | None) -> None:
    from tensorflow.data.experimental import service

    if dispatcher is None:
        service.DispatchServer(service.DispatcherConfig(port=port)).join()
    else:
        service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher, port=port)).join()


@contextlib.contextmanager
def tf_data_service(case: Case, workers: int) -> Iterator[Iterator[Any]]:
    import tensorflow as tf

    size, port = int(np.prod(case.shape)), free_port()

    def changed(array: Any, number: Any) -> Any:
        flat = tf.tensor_scatter_nd_update(array, [[number % size]], [tf.cast(number % 100, case.dtype)])
        return tf.reshape(flat, case.shape)

    arrays = tf.data.Dataset.range(1).map(lambda _: tf.ones([size], case.dtype)).cache().repeat()
    dataset = tf.data.Dataset.zip(arrays, tf.data.Dataset.counter()).map(changed, tf.data.AUTOTUNE)
    service = tf.data.experimental.service
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(serve_tf_data, port, None))
        for _ in range(workers):
            stack.enter_context(running(serve_tf_data, free_port(), f"127.0.0.1:{port}"))
        sent = service.distribute(service.ShardingPolicy.OFF, f"grpc://127.0.0.1:{port}", compression=None)
        yield dataset.apply(sent).prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


CONTENDERS: dict[str, Callable[..., Any]] = {
    "pyzmq": raw_zmq,
    "bare sockets": bare_sockets,
    "tensorcom": tensorcom_feed,
    "Ray Data": ray_data,
    "tf.data service": tf_data_service,
    "MultiLoader": multi_loader,
    "ipc": lambda case, workers: remote_loader(case, workers, ipc=True),
    "tcp": lambda case, workers: remote_loader(case, workers),
    "tcp, sent": lambda case, workers: remote_loader(case, workers, sent=True),
    "tcp, sent, CURVE": lambda case, workers: remote_loader(case, workers, sent=True, curve=True),
}
APART = "Ray Data", "tf.data service"  # these start threads, and log much: each has a process of its own


def measured(name: str, case: Case, seconds: float, workers: int) -> float:
    with CONTENDERS[name](case, workers) as feed:
        return batches_per_second(feed, case, seconds)


def measured_apart(name: str, case: Case, seconds: float, workers: int) -> float:
    with futures.ProcessPoolExecutor(1, _SPAWN, initializer=be_silent) as pool:
        return pool.submit(measured, name, case, seconds, workers).result()


def be_silent() -> None:
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())


def batches_per_second(feed: Iterator[Any], case: Case, seconds: float) -> float:
    for _ in range(WARM_UP_BATCHES):
        check(next(feed), case)
    count = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        check(next(feed), case)
        count += 1
    return count / elapsed


def check(batch: Any, case: Case) -> None:
    if batch.nbytes != case.nbytes:
        raise SystemExit(f"expected {case.nbytes} bytes, got {batch.nbytes}")


def contest(case: Case, rounds: int, seconds: float, workers: int) -> dict[str, float]:
    rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(rounds):
        for name in CONTENDERS:
            try:
                measure = measured_apart if name in APART else measured
                rates[name].append(measure(name, case, seconds, workers))
            except ImportError as error:
                print(f"{name} is left out: {error}")
    return {name: statistics.median(values) for name, values in rates.items() if values}


def show(case: Case, rates: dict[str, float]) -> None:
    raw, local = rates["pyzmq"], rates["MultiLoader"]
    print(f"\n{case.name} a batch: {case.dtype} {list(case.shape)}")
    for name, rate in rates.items():
        print(
            f"  {name:20} {rate:12,.1f} batches/s {rate * case.nbytes / 1e9:7.2f} GB/s"
            f" {rate / raw:7.2f} of pyzmq {rate / local:7.2f} of MultiLoader"
        )
    for name in ("tcp", "tcp, sent"):
        tcp = rates[name]
        if case.over_raw:
            print(f"  goal: {name} at least {case.over_raw} of pyzmq: {tcp / raw:.2f}")
        else:
            print(f"  goal: {name} at least {min(60_000, local / 2):,.0f} batches/s: {tcp:,.0f}")
        if case.over_tensorcom and "tensorcom" in rates:
            over = tcp / rates["tensorcom"]
            print(f"  goal: {name} at least {case.over_tensorcom} of tensorcom: {over:.2f}")
    print(f"  goal: ipc at least 0.8 of MultiLoader: {rates['ipc'] / local:.2f}")


def stall(case: Case) -> None:
    """A consumer stops reading: prints how much memory both sides take meanwhile."""
    with remote_loader(case, 1, sent=True) as feed:
        for _ in range(WARM_UP_BATCHES):
            next(feed)
        children = [int(pid) for pid in _children(os.getpid())]
        everyone = [os.getpid(), *children, *(int(pid) for child in children for pid in _children(child))]
        before = sum(map(pss_mb, everyone))
        time.sleep(3)
        after = sum(map(pss_mb, everyone))
        print(f"  a consumer that stalls for 3 s: {before:.0f} MB, then {after:.0f} MB on both sides")


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round of half a second")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--json", help="write the rates to this file")
    arguments = parser.parse_args()
    rounds, seconds = (1, 0.5) if arguments.quick else (arguments.rounds, arguments.seconds)
    print(f"memcpy: {copy_rate_gb_s(1):.1f} GB/s by one process, {copy_rate_gb_s(2):.1f} by two together")
    results = {}
    for case in CASES:
        if arguments.only and arguments.only not in case.name:
            continue
        results[case.name] = contest(case, rounds, seconds, arguments.workers)
        show(case, results[case.name])
        if case.nbytes > 1 << 20:
            stall(case)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
