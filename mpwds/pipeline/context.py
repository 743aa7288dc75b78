"""The context in which a pipeline runs: epoch, seed, rank and worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mpwds.warn import warn


def warn_of_idle(readers: str = "workers") -> None:
    """Warns that workers, or streams, have nothing to read."""
    advice = f"use fewer {readers}, or more and smaller shards (mpwds split)"
    warn(f"there are fewer shards than {readers}, so {readers} without a shard are idle: {advice}")


@dataclass(frozen=True)
class Context:
    """The process and the epoch in which a stage runs: worker ``worker`` of ``workers`` of trainer ``rank``.

    Args:
        seed: The loader's seed; ``None`` means the dataset's seed.
        owns_process: The process runs nothing but this pipeline, so random generators need not be restored.
        deferred: The stage may yield ``mpwds.tenbin.Deferred`` in place of arrays, whose data the transport
            writes straight into shared memory: it is the last, or later ones pass values on to be stacked.
        on_shard: Called with a shard's URL when the worker begins to read it.
        on_idle: Called when the worker has nothing to read, though worker 0 may; the default warns.
        watch: Called as ``watch(part, stream, context)`` for the stream of each part; returns one to use.
        stage: The stage's position in its pipeline; two stages draw different random numbers.
        run: Distinguishes epochs of unknown number within this rank, if not 0: torch's DataLoader starts new
            workers for each epoch and passes them only its ``base_seed``.
        is_stream: ``worker`` and ``workers`` are those of the streams of a job, for messages.
        tells_epoch: A loader or ``set_epoch`` chose the epoch: an iterable with ``set_epoch`` is told it.
    """

    epoch: int = 0
    seed: int | None = None
    rank: int = 0
    world_size: int = 1
    worker: int = 0
    workers: int = 1
    owns_process: bool = False
    deferred: bool = False
    on_shard: Callable[[str], None] | None = field(default=None, compare=False)
    on_idle: Callable[[], object] = field(default=warn_of_idle, compare=False)
    watch: Callable[[Any, Any, Context], Any] | None = field(default=None, compare=False)
    stage: int = 0
    run: int = 0
    is_stream: bool = False
    tells_epoch: bool = False

    @property
    def place(self) -> str:
        """The worker and the node, or the stream, for messages."""
        if self.is_stream:
            return f"stream {self.worker} of {self.workers}"
        return f"worker {self.worker} of {self.workers}, on node {self.rank} of {self.world_size}"

    @property
    def moment(self) -> object:
        """The epoch, with the run if there is one. Random choices within a rank depend on it."""
        return (self.epoch, self.run) if self.run else self.epoch

    def within(self, position: int) -> Context:
        """The context of the part at ``position`` of a pipeline; each part draws other random numbers."""
        return replace(self, stage=self.stage * 1000 + position + 1)

    def alike_on_workers(self) -> Context:
        """For a stage that must yield the same elements on all workers of a rank."""
        return replace(self, worker=0, workers=1)

    def alike_on_ranks(self) -> Context:
        """For a stage that must yield the same elements on all ranks and workers."""
        run = self.run if self.world_size == 1 else 0  # it differs from rank to rank
        return replace(self, rank=0, world_size=1, worker=0, workers=1, run=run)

    def of_own_elements(self) -> Context:
        """For stages whose elements are numbered on each rank: equal addresses draw other numbers there."""
        return replace(self, run=self.run or self.rank)

    @staticmethod
    def current(epoch: int = 0) -> Context:
        """The context of this process.

        ``RANK``, ``WORLD_SIZE``, ``WORKER`` and ``NUM_WORKERS`` tell it, as in webdataset; if they are not
        set, ``torch.distributed`` and ``get_worker_info()``, provided that torch is imported already.
        """
        info = _torch_worker()
        run = 0 if info is None else info.seed - info.id
        return Context(epoch, None, *pytorch_worker_info(), owns_process=info is not None, run=run)


ALONE: Final = Context()
"""Epoch 0 of a single process."""


def pytorch_worker_info(group: Any = None) -> tuple[int, int, int, int]:
    """Rank, number of ranks, worker, number of workers, for your own splitters.

    The rank is that in ``group`` (of ``torch.distributed``); by default the environment variables ``RANK``
    and ``WORLD_SIZE``, or the default group, give it.

    Source:
        ``webdataset.utils.pytorch_worker_info``.

    Example:
        >>> pytorch_worker_info()
        (0, 1, 0, 1)
    """
    return *_rank(group), *_worker()


def pytorch_worker_seed(group: Any = None) -> int:
    """A number that differs for all workers of all ranks; ``group`` is as for :func:`pytorch_worker_info`.

    Source:
        ``webdataset.utils.pytorch_worker_seed``.

    Example:
        >>> pytorch_worker_seed()
        0
    """
    rank, _, worker, _ = pytorch_worker_info(group)
    return rank * 1000 + worker


def _rank(group: Any) -> tuple[int, int]:
    if group is None and os.environ.get("RANK") and os.environ.get("WORLD_SIZE"):
        rank, ranks = integer_variable("RANK"), integer_variable("WORLD_SIZE")
        if not 0 <= rank < ranks:
            raise ValueError(
                f"RANK={rank} and WORLD_SIZE={ranks} in the environment: RANK is 0 to WORLD_SIZE - 1"
            )
        return rank, ranks
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(group=group), distributed.get_world_size(group=group)
    return 0, 1


def _worker() -> tuple[int, int]:
    if os.environ.get("WORKER") and os.environ.get("NUM_WORKERS"):
        return integer_variable("WORKER"), integer_variable("NUM_WORKERS")
    info = _torch_worker()
    return (info.id, info.num_workers) if info is not None else (0, 1)


announced: Any = None
"""What torch's ``get_worker_info()`` would answer in this worker, which may not have imported torch."""


def _torch_worker() -> Any:
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return announced if info is None else info


def integer_variable(variable: str, default: Any = None) -> Any:
    """An environment variable that is a whole number; ``default`` if it is not set, or empty."""
    try:
        return int(float(os.environ[variable])) if os.environ.get(variable) else default
    except ValueError:
        raise ValueError(
            f"environment variable {variable} is {os.environ[variable]!r}, expected a whole number"
        ) from None
