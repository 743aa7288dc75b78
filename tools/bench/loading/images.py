"""Contestants that make batches of decoded JPEG images, all by the same decode function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import mpwds
from loading import jpegs
from loading.bare import BareProcesses
from loading.contest import Contest, Contestant
from loading.formats import import_grain

BATCH = 64
FOR_EVER = 100_000
"""How often the shards are read; no run gets that far."""


@dataclass(frozen=True)
class Images:
    """What is made of the shards' images.

    Args:
        shards: Their paths, a multiple of the workers.
        decode: Makes an array of an image.
        decode_in: Writes it into an array; without it nobody decodes in place.
        shape: The array's.
        dtype: The array's.
        workers: How many processes do the work.
    """

    shards: list[str]
    decode: jpegs.Decode
    decode_in: Callable[[np.ndarray[Any, Any], bytes], None] | None
    shape: tuple[int, ...]
    dtype: str
    workers: int = 2

    @property
    def batch_nbytes(self) -> int:
        return BATCH * int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


def float32(shards: list[str]) -> Images:
    shape = (3, jpegs.SIZE, jpegs.SIZE)
    return Images(shards, jpegs.to_float32, jpegs.to_float32_in, shape, "float32")


def uint8(shards: list[str]) -> Images:
    return Images(shards, jpegs.to_uint8, jpegs.to_uint8_in, (jpegs.SIZE, jpegs.SIZE, 3), "uint8")


def contest(images: Images, goals: dict[str, float], left_out: frozenset[str] = frozenset()) -> Contest:
    """All contestants.

    Args:
        images: The work.
        goals: Ratios aimed at, by names of contestants.
        left_out: Names of contestants who do not take part.
    """
    in_place = [("mpwds.MultiLoader, decoding in place", multi_loader_in_place, "mpwds")]
    ways: list[tuple[str, Callable[[Images], Iterable[Any]], str]] = [
        ("mpwds.MultiLoader", multi_loader, "mpwds"),
        *(in_place if images.decode_in else []),
        ("mpwds.WebLoader", our_web_loader, "mpwds"),
        ("mpwds.DataLoader, pipeline", our_data_loader, "mpwds"),
        ("mpwds.DataLoader, map-style", our_map_style, "mpwds"),
        ("webdataset + DataLoader", their_batches, "webdataset"),
        ("webdataset + DataLoader, default collate", their_samples, "webdataset"),
        ("webdataset.WebLoader", their_web_loader, "webdataset"),
        ("torch DataLoader, map-style", torch_map_style, "torch"),
        ("SPDL, SharedMemorySegmentPool", spdl_pool, "spdl"),
        ("grain, mp_prefetch", grain_prefetch, "grain"),
        ("bare processes", bare, "mpwds"),
    ]
    contestants = [
        Contestant(name, partial(way, images), goals.get(name), package)
        for name, way, package in ways
        if name not in left_out
    ]
    return Contest(f"JPEG to {images.dtype} {[BATCH, *images.shape]}", contestants, BATCH, images.workers)


# ------------------------------------------------------------------------------------------------- ours


def multi_loader(images: Images) -> Iterable[Any]:
    return mpwds.MultiLoader(_our_samples(images).batched(BATCH), workers=images.workers)


def multi_loader_in_place(images: Images) -> Iterable[Any]:
    """Rows are decoded when their place in shared memory is known."""
    encoded = mpwds.WebDataset(images.shards * FOR_EVER, shardshuffle=False).to_tuple("jpg", "cls")
    return mpwds.MultiLoader(encoded.batched(BATCH, partial(_to_decode, images)), workers=images.workers)


def our_web_loader(images: Images) -> Iterable[Any]:
    return mpwds.WebLoader(_our_samples(images).batched(BATCH), batch_size=None, num_workers=images.workers)


def our_data_loader(images: Images) -> Iterable[Any]:
    return mpwds.DataLoader(_our_samples(images), batch_size=BATCH, num_workers=images.workers)


def our_map_style(images: Images) -> Iterable[Any]:
    return mpwds.DataLoader(InMemory(images), batch_size=BATCH, num_workers=images.workers)


def _our_samples(images: Images) -> Any:
    dataset = mpwds.WebDataset(images.shards * FOR_EVER, shardshuffle=False)
    return dataset.map(partial(_to_pair, images.decode))


class DecodedRows:
    """Images that are decoded once their place is known (implements ``mpwds.tenbin.Deferred``)."""

    def __init__(self, images: Images, rows: tuple[bytes, ...]) -> None:
        self.dtype = np.dtype(images.dtype)
        self.shape = (len(rows), *images.shape)
        self._decode_in = images.decode_in
        self._rows = rows

    def write_into(self, out: np.ndarray[Any, Any]) -> None:
        assert self._decode_in is not None
        for place, row in zip(out, self._rows, strict=True):
            self._decode_in(place, row)


def _to_decode(images: Images, samples: list[tuple[bytes, bytes]]) -> tuple[DecodedRows, Any]:
    encoded, labels = zip(*samples, strict=True)
    return DecodedRows(images, encoded), np.array(labels, np.int64)


# ------------------------------------------------------------------------------------------------ theirs


def their_batches(images: Images) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(_their_samples(images).batched(BATCH), batch_size=None, num_workers=images.workers)


def their_samples(images: Images) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(_their_samples(images), batch_size=BATCH, num_workers=images.workers)


def their_web_loader(images: Images) -> Iterable[Any]:
    import webdataset

    dataset = _their_samples(images).batched(BATCH)
    loader: Iterable[Any] = webdataset.WebLoader(dataset, batch_size=None, num_workers=images.workers)
    return loader


def torch_map_style(images: Images) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(InMemory(images), batch_size=BATCH, num_workers=images.workers)  # type: ignore[arg-type]  # it is map-style by its methods


def _their_samples(images: Images) -> Any:
    import webdataset

    dataset = webdataset.WebDataset(images.shards * FOR_EVER, shardshuffle=False)
    return dataset.map(partial(_to_pair, images.decode))


def _to_pair(decode: jpegs.Decode, sample: dict[str, Any]) -> tuple[np.ndarray[Any, Any], int]:
    return decode(sample["jpg"]), int(sample["cls"])


class InMemory:
    """The same images as a map-style dataset, held in memory; decoded when they are asked for."""

    def __init__(self, images: Images) -> None:
        samples = mpwds.WebDataset(images.shards, shardshuffle=False).to_tuple("jpg", "cls")
        self.samples = [(jpeg, int(label)) for jpeg, label in samples]
        self._decode = images.decode

    def __len__(self) -> int:
        return len(self.samples) * FOR_EVER

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        jpeg, label = self.samples[index % len(self.samples)]
        return self._decode(jpeg), label


class ReusedBatch:
    """Makes every batch in the same memory: for who copies it or throws it away before the next is made."""

    def __init__(self, images: Images, part: int) -> None:
        self._images = images
        self._shards = images.shards[part :: images.workers]

    def __iter__(self) -> Iterator[Any]:
        decode = self._images.decode
        samples = iter(mpwds.WebDataset(self._shards * FOR_EVER, shardshuffle=False).to_tuple("jpg", "cls"))
        pixels = np.empty((BATCH, *self._images.shape), self._images.dtype)
        labels = np.empty(BATCH, np.int64)
        while True:
            for row in range(BATCH):
                jpeg, label = next(samples)
                pixels[row], labels[row] = decode(jpeg), int(label)
            yield pixels, labels


def spdl_pool(images: Images) -> Iterator[Any]:
    from loading.spdl_pool import merged

    parts = [partial(ReusedBatch, images, part) for part in range(images.workers)]
    return merged(parts, images.batch_nbytes + 4096)


def grain_prefetch(images: Images) -> Iterator[Any]:
    """Samples in memory, so no reading threads, as grain advises; it stacks straight into shared memory."""
    grain = import_grain()
    samples = mpwds.WebDataset(images.shards, shardshuffle=False)
    dataset = grain.MapDataset.source(list(samples)).repeat().map(partial(_to_pair, images.decode))
    batches = dataset.to_iter_dataset(grain.ReadOptions(num_threads=0)).batch(BATCH)
    options = grain.MultiprocessingOptions(num_workers=images.workers, per_worker_buffer_size=2)
    iterator: Iterator[Any] = iter(batches.mp_prefetch(options))
    return iterator


def bare(images: Images) -> Iterable[Any]:
    batch = np.empty((BATCH, *images.shape), images.dtype)
    return BareProcesses([partial(ReusedBatch, images, part) for part in range(images.workers)], batch)
