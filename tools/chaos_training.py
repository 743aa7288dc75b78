"""A rank of the jobs of ``tools/chaos.py``: torchrun runs this file with the plan of a launch.

A rank delivers batches in step with the others, notes each one in its log before the step counts, and saves
its loader's state after steps that the plan's seed determines.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

import mpwds

STREAMS, EPOCHS, SHARDS = 12, 2, 36
STEP_S, HANGS_S = 0.02, 180.0
CHECKPOINTS, STOPS, AT_EDGES, SAVED_TWICE = 0.04, 0.06, 0.7, 0.3  # how likely each is
PACK: dict[str, Callable[[Any], bytes]] = {
    "json": lambda state: json.dumps(state).encode(),
    "msgpack": msgpack.packb,
}
UNPACK: dict[str, Callable[[bytes], Any]] = {"json": json.loads, "msgpack": msgpack.unpackb}
FORMATS = (*PACK, "dcp")


@dataclass(frozen=True)
class Job:
    """A training run: its dataset, and how its epochs are divided."""

    folder: str
    kind: str
    even: str | None
    in_order: bool
    pool: int = 0  # rows that a stage after the loader shuffles

    def dataset(self) -> mpwds.DataPipeline:
        return DATASETS[self.kind](numbers(Path(self.folder).parent))

    def loader(self, workers: int) -> mpwds.MultiLoader:
        death = "restart" if workers else "raise"
        return mpwds.MultiLoader(self.dataset(), workers, on_worker_death=death, **self._options())

    def served_loader(self, servers: list[str], on_server_loss: Any) -> mpwds.RemoteLoader:
        patience = {"server_timeout": HANGS_S / 2, "on_server_loss": on_server_loss}
        return mpwds.RemoteLoader(servers, **patience, **self._options())

    def _options(self) -> dict[str, Any]:
        options = {"streams": STREAMS, "even": self.even, "in_order": self.in_order}
        return {**options, "output": "numpy", "timeout": HANGS_S}


@dataclass(frozen=True)
class Launch:
    """The ranks of a job between two faults."""

    job: Job
    number: int
    seed: int
    workers: list[int]  # of each rank
    saved_as: str  # one of FORMATS
    start: str | None = None  # the folder of a checkpoint
    start_saved_as: str = ""
    epoch: int = 0
    servers: list[str] = field(default_factory=list)  # whose workers take the place of the ranks' own
    on_server_loss: str = "wait"

    @property
    def ranks(self) -> int:
        return len(self.workers)

    def log(self, rank: int) -> Path:
        return Path(self.job.folder, f"log-{self.number}-{rank}")

    def loader(self, rank: int) -> mpwds.MultiLoader:
        if self.servers:
            return self.job.served_loader(self.servers, self.on_server_loss)
        return self.job.loader(self.workers[rank])

    def batches(self, loader: mpwds.MultiLoader) -> Any:
        return loader.rebatched(4, shuffle=self.job.pool) if self.job.pool else loader


# The samples: a number, the number of a copy, and a random number.


def write_shards(folder: Path) -> int:
    """Writes shards of unequal lengths; returns the number of samples."""
    dice, keys = random.Random(0), itertools.count()
    for shard in range(SHARDS):
        with mpwds.TarWriter(folder / f"x-{shard:02}.tar") as sink:
            for key in itertools.islice(keys, dice.randrange(30, 90)):
                sink.write({"__key__": f"{key:06}", "cls": key})
    return next(keys)


def numbers(folder: Path) -> Any:
    shards = mpwds.WebDataset(f"{folder}/x-{{00..{SHARDS - 1}}}.tar", shardshuffle=True, seed=5)
    return shards.decode().map(lambda sample: sample["cls"]).shuffle(25)


def is_kept(number: int) -> bool:
    return number % 7 != 3


def kept(numbers: Iterator[int]) -> Iterator[int]:
    """A stage of the user's own, whose elements have no addresses."""
    return (number for number in numbers if is_kept(number))


def copies_of(number: int) -> range:
    return range(2 if number % 5 == 0 else 1)


def rows_of(number: int) -> list[Any]:
    return [np.array([number, copy, random.randrange(10**6)]) for copy in copies_of(number)]


DATASETS: dict[str, Callable[[Any], Any]] = {
    "filter, flatmap": lambda numbers: numbers.select(is_kept).flatmap(rows_of).batched(4),
    "two shuffles": lambda numbers: numbers.select(is_kept).flatmap(rows_of).shuffle(10).batched(4),
    "user's generator": lambda numbers: numbers.compose(kept).flatmap(rows_of).batched(4),
}


# The training.


def merged(checkpoint: Path, saved_as: str) -> dict[str, Any]:
    return mpwds.merge_states([UNPACK[saved_as](path.read_bytes()) for path in checkpoint.glob("rank-*")])


class Rank:
    """A rank of a launch."""

    def __init__(self, launch: Launch) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        self._launch, self._rank, self._dist = launch, dist.get_rank(), dist
        self._dice = random.Random(f"{launch.seed}")  # the same on all ranks
        self._loader = launch.loader(self._rank)
        self._batches = launch.batches(self._loader)
        self._steps = 0
        self._log = open(launch.log(self._rank), "w")  # noqa: SIM115  # until this process ends

    def run(self) -> None:
        self._load()
        for epoch in range(self._launch.epoch, EPOCHS):
            if not self._deliver(epoch):
                return self._note(end="stopped")
            if epoch + 1 < EPOCHS and self._dice.random() < AT_EDGES:
                self._save(epoch + 1)
        self._note(end="finished")
        self._loader.close()
        return self._dist.destroy_process_group()

    def _load(self) -> None:
        launch, loader = self._launch, self._batches
        self._began = time.monotonic()
        if launch.start_saved_as == "dcp":
            import torch.distributed.checkpoint as dcp

            dcp.load({"loader": loader}, checkpoint_id=launch.start)
        elif launch.start:
            loader.load_state_dict(merged(Path(launch.start), launch.start_saved_as))
        if self._dice.random() < SAVED_TWICE:
            loader.load_state_dict(loader.state_dict())  # saved again before it goes on

    def _deliver(self, epoch: int) -> bool:
        """Delivers an epoch; False if the launch is to stop at a checkpoint."""
        import torch

        batches = iter(self._batches)
        while True:
            batch = next(batches, None)
            going_on = torch.tensor(float(batch is not None))
            self._dist.all_reduce(going_on)  # as gradients would be
            if not going_on:
                return True
            rows = None if batch is None else batch.tolist()
            self._note(epoch=epoch, rows=rows, pid=os.getpid(), workers=self._loader.worker_pids)
            self._steps += 1
            time.sleep(STEP_S / self._launch.ranks)
            if self._dice.random() < CHECKPOINTS:
                self._save(epoch)
                if self._dice.random() < STOPS:
                    return False

    def _note(self, **what: Any) -> None:
        now = time.monotonic()
        self._log.write(json.dumps({"at": now, "after": now - self._began, **what}) + "\n")
        self._log.flush()

    def _save(self, epoch: int) -> None:
        launch, target = self._launch, Path(self._launch.job.folder, f"{self._launch.number}-{self._steps}")
        target.mkdir(exist_ok=True)
        for _ in range(2 if self._dice.random() < SAVED_TWICE else 1):
            if launch.saved_as == "dcp":
                import torch.distributed.checkpoint as dcp

                dcp.save({"loader": self._batches}, checkpoint_id=target)
            else:
                state = PACK[launch.saved_as](self._batches.state_dict())
                (target / f"rank-{self._rank}").write_bytes(state)
        self._dist.barrier()
        if self._rank == 0:
            (target / "new").write_text(
                json.dumps({"steps": self._steps, "epoch": epoch, "at": time.monotonic()})
            )
            (target / "new").rename(target / "complete")
        self._dist.barrier()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    plan = json.loads(Path(sys.argv[1]).read_text())
    Rank(Launch(**{**plan, "job": Job(**plan["job"])})).run()
