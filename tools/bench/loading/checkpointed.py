"""A training program that saves its state now and then, with loaders of several packages."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mpwds
from loading import formats

BATCH, WORKERS, SHARDS, BUFFER = 8, 2, 16, 200
STEP_S, SAVE_EVERY = 0.01, 50


@dataclass(frozen=True)
class Contestant:
    """How a program gets its batches.

    Args:
        title: What it is called.
        write: Writes the dataset, of so many samples, to a folder.
        loader: Makes a loader of it.
        texts: The texts of the samples in a batch.
        save: Gets the state of a loader, if it has one.
        load: Gives it to another.
    """

    title: str
    write: Callable[[Path, int], None]
    loader: Callable[[Path], Any]
    texts: Callable[[Any], list[str]]
    save: Callable[[Any], Any] | None = lambda loader: loader.state_dict()
    load: Callable[[Any, Any], None] = lambda loader, state: loader.load_state_dict(state)


def text_of(number: int) -> str:
    return f"{number:<4096}"


def samples_of(count: int) -> list[formats.Sample]:
    return [{"txt": text_of(number)} for number in range(count)]


def write_tar(folder: Path, samples: int) -> None:
    formats.write_shards(folder, samples_of(samples), samples // SHARDS)


def urls(folder: Path) -> str:
    return f"{folder}/x-{{0000..{SHARDS - 1:04}}}.tar"


def of_mpwds(on_worker_death: Any, folder: Path) -> Any:
    samples = mpwds.WebDataset(urls(folder), shardshuffle=True, seed=0).shuffle(BUFFER)
    dataset = samples.decode().to_tuple("txt").batched(BATCH)
    return mpwds.MultiLoader(dataset, workers=WORKERS, on_worker_death=on_worker_death)


def of_webdataset(folder: Path) -> Any:
    import webdataset

    shards = webdataset.WebDataset(urls(folder), shardshuffle=SHARDS, seed=0)
    return shards.shuffle(BUFFER, seed=0).decode().to_tuple("txt").batched(BATCH)


def of_torch(folder: Path) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(of_webdataset(folder), batch_size=None, num_workers=WORKERS)


def of_torchdata(folder: Path) -> Any:
    from torch.utils.data import IterableDataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Counted(IterableDataset[Any]):
        """The batches of a worker; their number is its state."""

        def __init__(self) -> None:
            self._yielded = self._skipped = 0

        def __iter__(self) -> Iterator[Any]:
            batches = of_webdataset(folder)
            for self._yielded, batch in enumerate(batches, 1):
                if self._yielded > self._skipped:
                    yield batch

        def state_dict(self) -> dict[str, int]:
            return {"yielded": self._yielded}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self._yielded = self._skipped = state["yielded"]

    return StatefulDataLoader(Counted(), batch_size=None, num_workers=WORKERS)


def write_mds(folder: Path, samples: int) -> None:
    formats.write_mds(folder, {"txt": "str"}, samples_of(samples), shards=1)


def of_streaming(folder: Path) -> Any:
    streaming = formats.import_streaming()
    streaming.base.util.clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(local=str(folder), shuffle=True, batch_size=BATCH)
    return streaming.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS)


def write_litdata(folder: Path, samples: int) -> None:
    texts = [text_of(number) for number in range(samples)]
    formats.write_litdata(folder, texts, 1, per_shard=samples // SHARDS)


def of_litdata(folder: Path) -> Any:
    import litdata

    dataset = litdata.StreamingDataset(str(folder), shuffle=True)
    return litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS)


def write_energon(folder: Path, samples: int) -> None:
    import megatron.energon  # noqa: F401  an ImportError leaves it out

    write_tar(folder, samples)
    formats.prepare_energon(folder)


def of_energon(folder: Path) -> Any:
    return formats.energon_loader(folder, first_field, list, BATCH, WORKERS, BUFFER, repeat=False)


def first_field(sample: formats.Sample) -> Any:
    return sample["txt"]


def first(batch: Any) -> Any:
    return batch[0]


CONTESTANTS = {
    "mpwds-restart": Contestant("mpwds, restart", write_tar, partial(of_mpwds, "restart"), first),
    "mpwds": Contestant("mpwds", write_tar, partial(of_mpwds, "raise"), first),
    "webdataset": Contestant("webdataset, torch DataLoader", write_tar, of_torch, first, save=None),
    "torchdata": Contestant("webdataset, StatefulDataLoader", write_tar, of_torchdata, first),
    "streaming": Contestant("mosaicml-streaming", write_mds, of_streaming, lambda batch: batch["txt"]),
    "litdata": Contestant("litdata", write_litdata, of_litdata, lambda batch: batch),
    "energon": Contestant(
        "megatron-energon",
        write_energon,
        of_energon,
        list,
        save=lambda loader: loader.save_state_rank(),
        load=lambda loader, state: loader.restore_state_rank(state),
    ),
}


def train(contestant: Contestant, data: Path, run: Path) -> None:
    """The program that is disturbed: writes a line for each step, and what ended the loop."""
    warnings.simplefilter("ignore")
    checkpoint = run / "state"
    with (run / "log").open("a") as log:
        try:
            saved = {"step": 0, "loader": None}
            if checkpoint.exists():
                saved = pickle.loads(checkpoint.read_bytes())
            step, pids = saved["step"], list[Any]()
            loader = contestant.loader(data)
            if saved["loader"] is not None:
                contestant.load(loader, saved["loader"])
            for batch in loader:
                time.sleep(STEP_S)
                step += 1
                # Only once: it waits for children that ended, and torch's loaders would not hear of these.
                pids = pids or [child.pid for child in multiprocessing.active_children()]
                pids = getattr(loader, "worker_pids", pids)
                numbers = [int(text) for text in contestant.texts(batch)]
                event = {"step": step, "at": time.time(), "numbers": numbers, "pids": pids}
                print(json.dumps(event), file=log, flush=True)
                if step % SAVE_EVERY == 0:
                    state = None if contestant.save is None else contestant.save(loader)
                    (run / "new").write_bytes(pickle.dumps({"step": step, "loader": state}))
                    os.replace(run / "new", checkpoint)
        except BaseException as error:
            print(json.dumps({"error": type(error).__name__, "at": time.time()}), file=log, flush=True)
            raise
