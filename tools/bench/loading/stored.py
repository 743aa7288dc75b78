"""Contestants that read small samples, each from the format of its own package."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import mpwds
from loading import formats
from loading.contest import Contest, Contestant, is_installed

BATCH, WORKERS, TOKENS, PER_SHARD = 64, 2, 64, 1000
LONG = 1000
"""Shards of a format whose reader ends an epoch: a million samples."""
SHORT = 64
"""Shards of a format whose reader repeats."""
BUFFER = 1000
COLUMNS = {"tokens": "ndarray:int32:64", "cls": "int"}


@dataclass(frozen=True)
class Stored:
    """Where the samples are, and whether they are shuffled."""

    folder: Path
    shuffled: bool

    @property
    def shards(self) -> str:
        return f"{self.folder}/tar/x-{{0000..{SHORT - 1:04}}}.tar"

    @property
    def order(self) -> Any:
        return "global" if self.shuffled else False


def write(folder: Path) -> None:
    """Writes the datasets of all packages that are installed."""
    rng = np.random.default_rng(0)
    samples = [
        {"tokens": rng.integers(0, 50_000, TOKENS, dtype=np.int32), "cls": number}
        for number in range(PER_SHARD)
    ]
    folder.mkdir()
    tar = [{"bin": sample["tokens"].tobytes(), "cls": sample["cls"]} for sample in samples * SHORT]
    formats.write_shards(folder / "tar", tar, PER_SHARD)
    formats.write_mds(folder / "mds", COLUMNS, samples, LONG)
    np.save(folder / "rows.npy", np.stack([sample["tokens"] for sample in samples] * LONG))
    if is_installed("litdata"):
        formats.write_litdata(folder / "litdata", samples, LONG)
    if is_installed("datasets"):
        formats.write_arrow(folder / "arrow", samples * SHORT)
    if is_installed("array_record"):
        formats.write_array_record(folder / "rows.arrayrecord", samples * SHORT)
    if is_installed("megatron.energon"):
        formats.prepare_energon(folder / "tar")


def contest(folder: Path, shuffled: bool) -> Contest:
    stored = Stored(folder, shuffled)
    ways: list[tuple[str, Callable[[Stored], Iterable[Any]], str]] = [
        ("mpwds.MultiLoader, tar", ours_tar, "mpwds"),
        ("mpwds.MultiLoader, tar by number", ours_by_number, "mpwds"),
        ("mpwds.MultiLoader, MDS", ours_mds, "mpwds"),
        ("mpwds.DataLoader, rows of a file", ours_rows, "mpwds"),
        ("webdataset + DataLoader", their_webdataset, "webdataset"),
        ("wids + DataLoader", their_wids, "torch"),
        ("MosaicML Streaming", their_streaming, "torch"),
        ("litdata", their_litdata, "litdata"),
        ("Energon", their_energon, "megatron.energon"),
        ("grain, ArrayRecord", their_grain, "array_record"),
        ("Arrow (datasets) + DataLoader", their_arrow, "datasets"),
        ("torch DataLoader, rows of a file", their_rows, "torch"),
    ]
    contestants = [Contestant(name, partial(way, stored), package=package) for name, way, package in ways]
    order = "shuffled" if shuffled else "in order"
    name = f"Small samples of int32 [{TOKENS}] and a class, {order}"
    return Contest(name, contestants, BATCH, WORKERS, warm_up=100)


# ------------------------------------------------------------------------------------------------- ours


def ours_tar(stored: Stored) -> Iterable[Any]:
    dataset = mpwds.WebDataset(stored.shards, shardshuffle=stored.shuffled)
    return _ours((dataset.shuffle(BUFFER) if stored.shuffled else dataset).map(to_arrays))


def ours_by_number(stored: Stored) -> Iterable[Any]:
    return _ours(mpwds.IndexedDataset(stored.shards, stored.order).map(to_arrays))


def ours_mds(stored: Stored) -> Iterable[Any]:
    return _ours(mpwds.MDSDataset(f"{stored.folder}/mds", shuffle=stored.order).to_tuple("tokens", "cls"))


def ours_rows(stored: Stored) -> Iterable[Any]:
    return mpwds.DataLoader(Rows(stored.folder), BATCH, shuffle=stored.shuffled, num_workers=WORKERS)


def _ours(samples: Any) -> Iterable[Any]:
    return mpwds.MultiLoader(samples.batched(BATCH).repeat(), workers=WORKERS)


def to_arrays(sample: dict[str, Any]) -> tuple[Any, int]:
    return np.frombuffer(sample["bin"], np.int32), int(sample["cls"])


class Rows:
    """A map-style dataset of a file of rows, mapped into memory."""

    def __init__(self, folder: Path) -> None:
        self._rows = np.load(folder / "rows.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return np.array(self._rows[index]), index


# ------------------------------------------------------------------------------------------------ theirs


def their_webdataset(stored: Stored) -> Iterable[Any]:
    import webdataset
    from torch.utils.data import DataLoader

    dataset = webdataset.WebDataset(stored.shards, shardshuffle=SHORT if stored.shuffled else False)
    samples = (dataset.shuffle(BUFFER) if stored.shuffled else dataset).map(to_arrays)
    return DataLoader(samples.batched(BATCH).repeat(), batch_size=None, num_workers=WORKERS)


def their_wids(stored: Stored) -> Iterable[Any]:
    """Shuffled by its sampler, which shuffles the samples of some shards at a time."""
    from torch.utils.data import DataLoader

    wids = formats.import_wids()
    names = [{"url": name, "nsamples": PER_SHARD} for name in mpwds.expand_urls(stored.shards)]
    dataset = wids.ShardListDataset(names * (LONG // SHORT), transformations=[_of_wids], localname=str)
    sampler = wids.ChunkedSampler(dataset, shuffle=True, shufflefirst=True) if stored.shuffled else None
    return DataLoader(dataset, BATCH, sampler=sampler, num_workers=WORKERS)


def _of_wids(sample: dict[str, Any]) -> tuple[Any, int]:
    return np.frombuffer(sample[".bin"].read(), np.int32), int(sample[".cls"].read())


def their_streaming(stored: Stored) -> Iterable[Any]:
    streaming = formats.import_streaming()
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(
        local=f"{stored.folder}/mds", shuffle=stored.shuffled, batch_size=BATCH
    )
    return streaming.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS)


def their_litdata(stored: Stored) -> Iterable[Any]:
    import litdata

    dataset = litdata.StreamingDataset(f"{stored.folder}/litdata", shuffle=stored.shuffled)
    return litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS)


def their_energon(stored: Stored) -> Iterable[Any]:
    buffer = BUFFER if stored.shuffled else None
    return formats.energon_loader(stored.folder / "tar", to_arrays, stacked, BATCH, WORKERS, buffer)


def stacked(pairs: list[tuple[Any, int]]) -> tuple[Any, Any]:
    tokens, classes = zip(*pairs, strict=True)
    return np.stack(tokens), np.array(classes)


def their_grain(stored: Stored) -> Iterable[Any]:
    grain = formats.import_grain()
    records = grain.sources.ArrayRecordDataSource([f"{stored.folder}/rows.arrayrecord"])
    dataset = grain.MapDataset.source(records)
    if stored.shuffled:
        dataset = dataset.shuffle(seed=0)
    batches = dataset.repeat().map(_split).batch(BATCH).to_iter_dataset()
    return batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=WORKERS))


def _split(record: bytes) -> tuple[Any, Any]:
    return np.frombuffer(record, np.int32, TOKENS), np.frombuffer(record, np.int64, 1, TOKENS * 4)[0]


def their_arrow(stored: Stored) -> Iterable[Any]:
    import datasets
    from torch.utils.data import DataLoader

    short = datasets.load_from_disk(f"{stored.folder}/arrow")
    dataset = datasets.concatenate_datasets([short] * (LONG // SHORT)).with_format("torch")
    return DataLoader(dataset, batch_size=BATCH, shuffle=stored.shuffled, num_workers=WORKERS)


def their_rows(stored: Stored) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(Rows(stored.folder), BATCH, shuffle=stored.shuffled, num_workers=WORKERS)
