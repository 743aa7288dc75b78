"""Contestants that bring batches which are there already from workers to the training loop."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import zmq

import mpwds
from loading.contest import Contest, Contestant
from loading.formats import import_grain

WORKERS = 2
Shape = tuple[int, ...]
SHAPES: dict[str, Shape] = {
    "77 MB": (128, 3, 224, 224),
    "38 MB": (64, 3, 224, 224),
    "9.6 MB": (16, 3, 224, 224),
    "512 B": (128,),
}
"""Of float32. A row counts as a sample."""


class ReadyBatches:
    """Yields one float32 array for ever, a little changed each time."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        batch = np.ones(self._shape, np.float32)
        for number in range(1_000_000_000):
            batch.flat[number % batch.size] = number % 100
            yield batch


def contest(name: str) -> Contest:
    """Who brings batches of such a size, of which the training loop reads every byte."""
    shape = SHAPES[name]
    contestants = [
        Contestant("mpwds.MultiLoader", partial(_ours, shape)),
        Contestant("torch DataLoader, fork", partial(_torch, shape, "fork"), package="torch"),
        Contestant("torch DataLoader, forkserver", partial(_torch, shape, "forkserver"), package="torch"),
        Contestant("torch DataLoader, spawn", partial(_torch, shape, "spawn"), package="torch"),
        Contestant("SPDL, SharedMemorySegmentPool", partial(_spdl, shape), 1.0, package="spdl"),
        Contestant("grain, mp_prefetch", partial(_grain, shape), package="grain"),
        Contestant("tensorcom", partial(_tensorcom, shape), package="tensorcom"),
        Contestant("a copy in the training process", partial(_copies, shape)),
    ]
    return Contest(f"ready batches of {name}, read", contestants, shape[0], WORKERS, warm_up=20, reads=True)


def _ours(shape: Shape) -> Iterable[Any]:
    return mpwds.MultiLoader(ReadyBatches(shape), workers=WORKERS)


def _torch(shape: Shape, method: str) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    from loading.torch_ready import TorchReadyBatches

    return DataLoader(
        TorchReadyBatches(shape), batch_size=None, num_workers=WORKERS, multiprocessing_context=method
    )


class Numbered(ReadyBatches):
    """The same by number, as grain's sources are."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self._iterator: Iterator[Any] | None = None

    def __len__(self) -> int:
        return 1_000_000_000

    def __getitem__(self, number: int) -> Any:
        self._iterator = self._iterator or iter(self)
        return next(self._iterator)


def _grain(shape: Shape) -> Iterator[Any]:
    grain = import_grain()
    batches = grain.MapDataset.source(Numbered(shape)).to_iter_dataset(grain.ReadOptions(num_threads=0))
    options = grain.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=2)
    iterator: Iterator[Any] = iter(batches.mp_prefetch(options))
    return iterator


def _spdl(shape: Shape) -> Iterator[Any]:
    from loading.spdl_pool import merged

    return merged([partial(ReadyBatches, shape)] * WORKERS, 4 * int(np.prod(shape)) + 4096)


def _tensorcom(shape: Shape) -> Iterator[Any]:
    import tensorcom

    with zmq.Context() as context, context.socket(zmq.PULL) as probe:
        port = probe.bind_to_random_port("tcp://127.0.0.1")
    receiver = tensorcom.Connection(f"zpull://127.0.0.1:{port}")
    arguments = shape, f"zpush://127.0.0.1:{port}"
    workers = [multiprocessing.Process(target=_push, args=arguments, daemon=True) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    try:
        while True:
            yield receiver.recv()[0]
    finally:
        for worker in workers:
            worker.kill()


def _push(shape: Shape, url: str) -> None:
    import tensorcom

    sender = tensorcom.Connection(url)
    for batch in ReadyBatches(shape):
        sender.send([batch])


def _copies(shape: Shape) -> Iterator[Any]:
    """The least that a transport can do which copies once, without workers."""
    copy = np.empty(shape, np.float32)
    for batch in ReadyBatches(shape):
        np.copyto(copy, batch)
        yield copy
