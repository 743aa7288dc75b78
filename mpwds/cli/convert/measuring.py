"""Measurements of ``mpwds bench``: a dataset with some number of workers, storage alone, and memory."""

from __future__ import annotations

import os
import time
import timeit
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpwds.loader.multi_loader import MultiLoader
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.sources.webdataset import WebDataset
from mpwds.stats.diagnosis import diagnose_workers, idle_share
from mpwds.stats.report import LoaderStats
from mpwds.storage.streams.gopen import gopen
from mpwds.storage.streams.urls import is_local, local_path

_PIECE_BYTES = 1 << 20
_COPIED_BYTES = 256 << 20
_SAMPLES_IN_BATCH = 64


@dataclass(frozen=True)
class Run:
    """Measured rates of a dataset with a number of workers, from the second batch of each to the end."""

    workers: int
    seconds: float
    samples_per_s: float
    bytes_per_s: float
    batches_per_s: float  # or single elements
    first_batch_s: float
    stats: LoaderStats
    complete: bool  # Ctrl-C did not end it

    def verdict(self, more_help: bool = True) -> str:
        """Says what bounds it, and without ``more_help`` not that more workers would be faster."""
        return diagnose_workers(self.stats, idle_share(self.stats), more_help=more_help)

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "verdict": self.verdict(), "stats": self.stats.as_dict()}


def of_shards(urls: Sequence[str]) -> DataPipeline:
    """A dataset that reads tar shards and does nothing with their samples."""
    return WebDataset(urls, empty_check=False).batched(_SAMPLES_IN_BATCH, collation_fn=_in_one_array)


def shards_of(dataset: Any) -> list[str]:
    """The shards that a dataset reads; none if it does not say."""
    source = dataset
    while isinstance(source, DataPipeline):
        source = source.pipeline[0] if source.pipeline else None
    return list(getattr(source, "urls", ()))


def run(dataset: Any, workers: int, seconds: float, start_method: str | None) -> Run | None:
    """Takes what ``workers`` deliver for some seconds, or until Ctrl-C. ``None`` if there was too little.

    Counts from the moment at which each worker has made two batches. A training loop that does nothing shows
    the most that workers can deliver.
    """
    complete, began, first_batch_s = True, 0.0, 0.0
    with _Measured(dataset, workers, output="numpy", start_method=start_method) as loader:
        try:
            loader.warm_up()
            made = _epochs(loader)
            for _ in range(2 * workers):  # a worker writes down the times of a batch with its next one
                next(made)
            first_batch_s = loader.stats("start").first_batch_s
            loader.leave_out_first_use()
            began = time.monotonic()
            for _ in made:
                if time.monotonic() > began + seconds:
                    break
        except KeyboardInterrupt:
            complete = False
        if not began:
            return None
        took, stats = time.monotonic() - began, loader.stats("start")
        samples, nbytes, batches = (each / took for each in (stats.samples, stats.nbytes, stats.batches))
        return Run(workers, took, samples, nbytes, batches, first_batch_s, stats, complete)


class _Measured(MultiLoader):
    def leave_out_first_use(self) -> None:
        """Begins the statistics again: stages have imported and built by now what they need once."""
        self._statistics.restart()


def _epochs(loader: MultiLoader) -> Iterator[Any]:
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise ValueError("the dataset is empty: there is nothing to measure")


def storage_rate(urls: Sequence[str], seconds: float) -> float:
    """Bytes a second of reading shards one after the other, as a whole, in one process.

    Local files are put out of the page cache first, where the system does that, so this is the disk's rate.
    """
    nbytes = 0
    began = time.monotonic()
    for url in urls:
        _forget(url)
        with gopen(url) as stream:
            while piece := stream.read(_PIECE_BYTES):
                nbytes += len(piece)
                if time.monotonic() > began + seconds:
                    return nbytes / (time.monotonic() - began)
    return nbytes / (time.monotonic() - began)


def memory_rate() -> float:
    """Bytes a second that one process copies from memory to memory."""
    source = np.ones(_COPIED_BYTES, np.uint8)
    target = np.zeros_like(source)
    return _COPIED_BYTES / min(timeit.repeat(lambda: np.copyto(target, source), number=1, repeat=3))


def _in_one_array(samples: list[dict[str, Any]]) -> Any:
    """All bytes of samples, in as many rows as there are samples: loaders count rows."""
    data = b"".join(value for sample in samples for value in sample.values() if isinstance(value, bytes))
    return np.frombuffer(data + bytes(-len(data) % len(samples)), np.uint8).reshape(len(samples), -1)


def _forget(url: str) -> None:
    if not is_local(url):
        return
    with open(local_path(url), "rb") as file:
        if file.seekable():
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
