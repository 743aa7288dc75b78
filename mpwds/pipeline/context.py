"""Where and when a pipeline runs: epoch, seed, rank and worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from mpwds.pipeline.stream import Stream

Watch: TypeAlias = "Callable[[Any, Stream[Any], Context], Stream[Any]]"


@dataclass(frozen=True)
class Context:
    """What a stage may need to know of the process and the epoch it runs in.

    Args:
        epoch: Number of the epoch, from 0.
        seed: The loader's seed; ``None`` leaves the choice to the dataset.
        rank: Index of this trainer among ``world_size``.
        world_size: Trainers that share the dataset.
        worker: Index of this worker among ``workers``.
        workers: Workers that share this trainer's part of the dataset.
        owns_process: The process runs nothing but this pipeline, so stages may reseed the global
            random generators without putting their state back.
        deferred: The last stage may yield arrays that are not made yet (``mpwds.tenbin.Deferred``),
            for the transport to write straight into their place.
        on_shard: Called with a shard's URL when its reading begins.
        watch: Called with each part of a pipeline, its stream and its context when that is made; returns the
            stream to go on with, which may be another around it.
        stage: The stage's position in its pipeline; tells apart the random numbers of two stages.
        run: Tells apart, within this rank, epochs whose number is not known: torch's DataLoader starts new
            workers for each epoch and tells them only its ``base_seed``. 0 where ``epoch`` says it all.
    """

    epoch: int = 0
    seed: int | None = None
    rank: int = 0
    world_size: int = 1
    worker: int = 0
    workers: int = 1
    owns_process: bool = False
    deferred: bool = False
    on_shard: Callable[[str], None] | None = None
    watch: Watch | None = None
    stage: int = 0
    run: int = 0

    @property
    def moment(self) -> object:
        """What random choices within a rank depend on in place of ``epoch``: also the run, if there is one.

        Example:
            >>> Context(epoch=3).moment, Context(epoch=3, run=17).moment
            (3, (3, 17))
        """
        return (self.epoch, self.run) if self.run else self.epoch

    def alike_on_workers(self) -> Context:
        """The context of what must come out the same on all workers of a rank, to be divided among them."""
        return replace(self, worker=0, workers=1)

    def alike_on_ranks(self) -> Context:
        """The context of what must come out the same everywhere, to be divided among ranks."""
        run = self.run if self.world_size == 1 else 0  # it differs from rank to rank
        return replace(self, rank=0, world_size=1, worker=0, workers=1, run=run)

    @staticmethod
    def current(epoch: int = 0) -> Context:
        """The context of this process, as its environment and torch tell it.

        ``RANK``, ``WORLD_SIZE``, ``WORKER`` and ``NUM_WORKERS`` count where they are set (webdataset's
        rule); else ``torch.distributed`` and ``torch.utils.data.get_worker_info()`` where torch is
        imported already. Never imports torch.

        Raises:
            ValueError: One of the variables is no integer.

        Example:
            >>> Context.current(epoch=3).epoch
            3
        """
        rank, world_size = _rank()
        worker, workers = _worker()
        info = _torch_worker()
        return Context(
            epoch=epoch,
            rank=rank,
            world_size=world_size,
            worker=worker,
            workers=workers,
            owns_process=info is not None,
            run=info.seed - info.id if info is not None else 0,
        )


ALONE: Final = Context()
"""Epoch 0 of a single process."""


def pytorch_worker_info(group: Any = None) -> tuple[int, int, int, int]:
    """Rank, number of ranks, worker, number of workers, for splitters of one's own.

    Args:
        group: The ``torch.distributed`` process group whose ranks count; by default what the environment
            variables ``RANK`` and ``WORLD_SIZE`` or the default group say. Workers as in ``Context.current``.

    Source:
        ``webdataset.utils.pytorch_worker_info``.

    Example:
        >>> pytorch_worker_info()
        (0, 1, 0, 1)
    """
    rank, world_size = _rank() if group is None else _rank_in(group)
    return rank, world_size, *_worker()


def pytorch_worker_seed(group: Any = None) -> int:
    """A number that no other worker of any rank has, as long as a rank has at most 1000.

    Args:
        group: As for :func:`pytorch_worker_info`.

    Source:
        ``webdataset.utils.pytorch_worker_seed``.

    Example:
        >>> pytorch_worker_seed()
        0
    """
    rank, _, worker, _ = pytorch_worker_info(group)
    return rank * 1000 + worker


def _rank() -> tuple[int, int]:
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _integer("RANK"), _integer("WORLD_SIZE")
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _rank_in(group: Any) -> tuple[int, int]:
    distributed = sys.modules["torch.distributed"]  # where the group comes from
    return distributed.get_rank(group=group), distributed.get_world_size(group=group)


def _worker() -> tuple[int, int]:
    if "WORKER" in os.environ and "NUM_WORKERS" in os.environ:
        return _integer("WORKER"), _integer("NUM_WORKERS")
    info = _torch_worker()
    return (info.id, info.num_workers) if info is not None else (0, 1)


def _torch_worker() -> Any:
    data = sys.modules.get("torch.utils.data")
    return data.get_worker_info() if data is not None else None


def _integer(variable: str) -> int:
    try:
        return int(os.environ[variable])
    except ValueError:
        raise ValueError(
            f"environment variable {variable} is {os.environ[variable]!r}, expected an integer"
        ) from None
