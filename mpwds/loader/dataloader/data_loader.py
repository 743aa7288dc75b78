"""DataLoader: torch's DataLoader, with this package's workers."""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch.utils.data

from mpwds.closing import Closes
from mpwds.errors import MpwdsError, shortened
from mpwds.interrupts import interrupts_deferred
from mpwds.loader.dataloader.iterator import DataLoaderIterator, LocalCounts, SingleProcessIterator
from mpwds.loader.dataloader.state import EpochRecord, sampler_of
from mpwds.loader.launching import forkserver
from mpwds.loader.launching.launchers import ForkFallback, ForkServerOrSpawn
from mpwds.loader.multi_loader import MultiLoader
from mpwds.loader.processes import processes
from mpwds.loader.rebatching import Rebatching
from mpwds.pipeline.coercion import takes_any_order
from mpwds.pipeline.context import Context
from mpwds.pipeline.error_context import check_boolean
from mpwds.pipeline.iterable_sources import IterableSource
from mpwds.stats.collector import Since, StatsCollector
from mpwds.suggestions import suggest_arguments
from mpwds.warn import warn

if TYPE_CHECKING:
    from mpwds.stats.report import LoaderStats

T_co = TypeVar("T_co", covariant=True)

_DATAPIPES = (torch.utils.data.IterDataPipe, torch.utils.data.MapDataPipe)


class DataLoader(torch.utils.data.DataLoader[T_co], Closes):
    """Drop-in replacement for ``torch.utils.data.DataLoader``: change the import, and nothing else.

    It is a subclass of torch's class, with the same arguments, attributes, order of samples, random numbers,
    worker seeds, errors and warnings. Workers collate batches into shared memory that is reused. Tensors, and
    NumPy arrays of your own ``collate_fn``, arrive as writable views of it. Workers need no ``if __name__ ==
    "__main__"`` guard, may run lambdas and end when this process does. They are forks of this process only if
    ``multiprocessing_context="fork"`` says so, or the dataset cannot be pickled.
    ``docs/coming-from/dataloader.md`` explains every option.

    Args:
        dataset: A map-style dataset or list, or an ``IterableDataset``, such as a pipeline of this package.
            A ``MultiLoader``, with or without stages after it, is one too: leave ``num_workers`` at 0.
        batch_size: Samples in a batch; ``None`` delivers single samples.
        shuffle: Draw the samples in random order.
        sampler: Gives the indices of the samples in order.
        batch_sampler: Gives lists of indices, in place of the four options that determine them.
        num_workers: Worker processes; 0 does the work in this process, with torch's own code.
        collate_fn: Makes a batch of a list of samples; torch's ``default_collate`` by default.
        pin_memory: Deliver tensors in pinned memory.
        drop_last: Leave out an incomplete last batch.
        timeout: Seconds to wait for a batch; 0 waits for ever.
        worker_init_fn: Called in each worker with its index, after seeding.
        multiprocessing_context: How workers start: ``"fork"``, ``"forkserver"``, ``"spawn"`` or a context.
        generator: Gives the order of ``shuffle`` and the seeds of the workers.
        prefetch_factor: Batches that each worker prepares ahead; 2 by default.
        persistent_workers: Keep the workers, and their copies of the dataset, between epochs.
        pin_memory_device: Deprecated by torch, without effect.
        in_order: Deliver batches in the order of their indices; otherwise as they come.
        snapshot_every_n_steps: torchdata's, without effect: a state is exact after every batch.

    Raises:
        ValueError, TypeError: As torch's DataLoader, for arguments that cannot be combined.
        ValueError: ``num_workers`` for a dataset that is a loader.

    While iterating:
        The exception of the dataset, ``collate_fn`` or ``worker_init_fn``, with its own type and attributes,
        and the worker's traceback as its cause. Iteration may continue, as in torch.
        ``RuntimeError``: No batch came for ``timeout`` seconds, or a worker died (``WorkerDied``).
        ``TypeError``: The workers need something that cannot be pickled, and cannot be forks of this process.

    Source:
        ``torch.utils.data.DataLoader``.

    Example:
        >>> loader = DataLoader([(i, i * i) for i in range(4)], batch_size=2, num_workers=2)
        >>> for numbers, squares in loader:
        ...     print(numbers.tolist(), squares.tolist())
        [0, 1] [0, 1]
        [2, 3] [4, 9]
    """

    @suggest_arguments
    def __init__(
        self,
        dataset: torch.utils.data.Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: torch.utils.data.Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: torch.utils.data.Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool | None = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int = 1,
    ) -> None:
        _refuse_workers_of_workers(dataset, num_workers)
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            bool(pin_memory),
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
        )
        # After torch's own checks: where both refuse, the error is torch's.
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator or None, got {generator!r}")
        if pin_memory is not None:  # torch takes None for False
            check_boolean("DataLoader", "pin_memory", pin_memory)
        if isinstance(persistent_workers, str):  # "no" would be true; torch takes numbers, too
            check_boolean("DataLoader", "persistent_workers", persistent_workers)
        check_boolean("DataLoader", "in_order", in_order)
        self.in_order = in_order  # an argument of torch's since 2.6
        self._begin_afresh()
        if num_workers and not isinstance(dataset, _DATAPIPES):
            _start_early(dataset, self.multiprocessing_context)

    def _loader_inside(self) -> Any:
        return self.dataset if isinstance(self.dataset, Rebatching) else None

    def _begin_afresh(self) -> None:
        self._iterator = None
        self._loaded: EpochRecord | None = None
        self._record = EpochRecord.of_next(self)
        self._record.completed.finished = True
        self._statistics = StatsCollector(LocalCounts())
        self._forks = ForkFallback(ForkServerOrSpawn, "multiprocessing_context='fork'")
        self._iterators: weakref.WeakSet[DataLoaderIterator | SingleProcessIterator] = weakref.WeakSet()

    @shortened
    def __iter__(self) -> Any:
        """Begins an epoch with new workers, or, where they persist, with those of the epoch before."""
        # As torch's own method, whose file warnings would point at.
        if not (self.persistent_workers and self.num_workers):
            return self._get_iterator()
        kept: Any = self._iterator  # under torch's name: frameworks set it to None
        if kept is None:
            kept = self._iterator = self._get_iterator()
        else:
            kept._reset(self)
        return kept

    def _get_iterator(self) -> Any:
        """Begins an epoch with new workers. Subclasses of torch's class override this method, and call it."""
        if isinstance(self.dataset, _DATAPIPES):
            return super()._get_iterator()
        _refuse_workers_of_workers(self.dataset, self.num_workers)  # set since, possibly
        with self._beginning():
            iterator: DataLoaderIterator | SingleProcessIterator
            if self.num_workers == 0:
                iterator = SingleProcessIterator(self, self._record, self._statistics)
            else:
                self.check_worker_number_rationality()
                iterator = DataLoaderIterator(self, self._record, self._statistics, self._forks)
            self._iterators.add(iterator)
            return iterator

    def _beginning(self) -> contextlib.AbstractContextManager[None]:
        """Records the epoch that begins. Inside, it begins like the one that was loaded, if there is one."""
        loaded, self._loaded = self._loaded, None
        self._record = EpochRecord.of_next(self) if loaded is None else loaded
        if loaded is None:
            return contextlib.nullcontext()
        if loaded.runs_again and isinstance(self.dataset, torch.utils.data.IterableDataset):
            if takes_any_order(self.dataset):
                self._loaded = loaded
                raise ValueError(
                    "this epoch cannot be continued without workers: it would have to be run again from its "
                    "start, and its elements come in any order (in_order=False). Use num_workers=1, which "
                    "keeps the pipeline's state, or begin the epoch again"
                )
            warn(
                f"the iterable dataset ({type(self.dataset).__name__}) runs again from its start, and the "
                f"{loaded.runs_again} batches delivered before are dropped: it has no state_dict and "
                "load_state_dict (MultiLoader resumes pipelines of mpwds where they were)",
                UserWarning,
            )
        return self._continuing(loaded)

    @contextlib.contextmanager
    def _continuing(self, loaded: EpochRecord) -> Iterator[None]:
        try:
            with loaded.beginning(self):
                yield
            loaded.continue_iterator()  # it may set torch's generator
        except BaseException:  # the next attempt continues it, too
            loaded.tell_epoch(self)
            self._loaded = loaded
            raise

    def state_dict(self) -> dict[str, Any]:
        """The position in the epoch, after the last batch delivered; at its end, the start of the next epoch.

        It holds the number of batches, the states at the epoch's start of the generators of loader, sampler
        and torch (7 kB each), and the state of a dataset that is a ``MultiLoader``.

        Raises:
            TypeError: The dataset is one of torch's DataPipes, whose batches are not counted.

        Source:
            ``torchdata.stateful_dataloader.StatefulDataLoader``, which has the same methods.

        Example:
            >>> loader = DataLoader(range(6), batch_size=2, shuffle=True)
            >>> batches = iter(loader)
            >>> first, state = next(batches).tolist(), loader.state_dict()
            >>> rest = [batch.tolist() for batch in batches]
            >>> loader.load_state_dict(state)
            >>> [batch.tolist() for batch in loader] == rest
            True
        """
        if isinstance(self.dataset, _DATAPIPES):
            raise TypeError("a DataLoader of DataPipes has no state: make a Dataset of them")
        record = self._record if self._loaded is None else self._loaded
        if record.completed.finished:
            record = EpochRecord.of_next(self)
            record.keep_first_state(self)
        state = record.as_state(self)
        inside = self._loader_inside()
        return state if inside is None else {**state, "dataset": inside.state_dict()}

    @shortened
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next epoch continue where ``state_dict`` was saved, by this loader or one like it.

        The delivered samples of a map-style dataset are not fetched again, and the rest come in the same
        order, also with another number of workers; random numbers that the dataset draws in them differ. A
        dataset, its iterator, a sampler or a batch sampler that has ``state_dict()`` and
        ``load_state_dict(state)`` continues from its own state; each worker's dataset does, so their number
        must be the same. Other iterable datasets run again from their start, in workers with the same seeds,
        and delivered batches are dropped, with a warning. A ``MultiLoader`` resumes by its own
        ``load_state_dict``.

        Generators of the loader and its samplers continue from their states at the epoch's start; torch's own
        is left as it is.
        A sampler that has ``set_epoch`` is told the epoch.

        Args:
            state_dict: What ``state_dict()`` returned; it can be pickled and goes through JSON.

        Raises:
            ValueError: It is the state of another loader; the message says what differs.
        """
        record = EpochRecord.from_state(self, state_dict)
        self.close()
        record.tell_epoch(self)
        self._loaded = record

    def stats(self, since: Since = "epoch") -> LoaderStats:
        """Statistics, as of :meth:`mpwds.MultiLoader.stats`; if the dataset is a loader, its own.

        The dataset's share of the workers' time includes your own ``collate_fn``; with workers, torch's
        default one counts as writing batches.

        Args:
            since: ``"epoch"``: the last epoch that began; ``"start"``: all epochs.

        Raises:
            ValueError: ``since`` has another value.

        Example:
            >>> loader = DataLoader(range(5), batch_size=2)
            >>> batches = list(loader)
            >>> loader.stats().batches, loader.stats().samples
            (3, 5)
        """
        inside = self._loader_inside()
        stats: LoaderStats = (self._statistics if inside is None else inside).stats(since)
        return stats

    def set_epoch(self, epoch: int) -> None:
        """Calls ``set_epoch`` of the dataset and the samplers, where they have it; trainers call this."""
        parts: list[Any] = [self.dataset, self.sampler, self.batch_sampler, sampler_of(self)]
        for part in {id(part): part for part in parts}.values():
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)

    def close(self) -> None:
        """Ends all iterations of this loader now, and their workers. The next epoch starts new ones."""
        self._iterator = None
        for iterator in list(self._iterators):
            iterator.close()

    @property
    def _is_accelerate_prepared(self) -> bool:
        """``Accelerator.prepare`` reads this before it divides a loader among ranks."""
        check_not_divided_again(self.dataset)
        return False

    def __getstate__(self) -> dict[str, Any]:
        """A copy, made by ``copy`` or ``pickle``, has the same options and no workers."""
        own = ("_iterator", "_iterators", "_loaded", "_record", "_statistics", "_forks")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_afresh()


def _refuse_workers_of_workers(dataset: Any, num_workers: int) -> None:
    if num_workers and isinstance(dataset, Rebatching):
        raise ValueError(
            f"{dataset!r} has workers of its own, and each of {num_workers} more would deliver all of it: "
            "leave num_workers at 0"
        )


def check_not_divided_again(dataset: Any) -> None:
    """Refuses a dataset that divides itself among ranks where a trainer is about to divide it once more."""
    ranks = Context.current().world_size
    if ranks > 1 and isinstance(dataset, (IterableSource, MultiLoader)):
        raise ValueError(
            f"{dataset!r} divides itself among the {ranks} ranks: to divide what it delivers once more would "
            "lose samples. Iterate it with mpwds.MultiLoader or mpwds.WebLoader, which Accelerate leaves as "
            "they are; in a Trainer, return mpwds.DataLoader(loader, batch_size=None) from "
            "get_train_dataloader()"
        )


def use_in_accelerate() -> None:
    """Makes Accelerate, and the Trainer of transformers, which builds on it, use ``mpwds.DataLoader``.

    Both build a new DataLoader for each rank: from now on a ``mpwds.DataLoader``, except with
    ``use_stateful_dataloader``.

    Raises:
        ImportError: Accelerate is not installed.
        RuntimeError: Accelerate is older than 0.34, whose DataLoader class cannot be replaced.
        ValueError: In ``prepare``, there are several ranks, and the dataset is a pipeline of this package,
            which divides itself among them.

    Example:
        >>> from accelerate import Accelerator  # doctest: +SKIP
        >>> from mpwds import DataLoader
        >>> use_in_accelerate()  # doctest: +SKIP
        >>> prepared = Accelerator().prepare(DataLoader([1, 2, 3], batch_size=2))  # doctest: +SKIP
        >>> [batch.tolist() for batch in prepared]  # doctest: +SKIP
        [[1, 2], [3]]
    """
    try:
        import accelerate.accelerator as preparing
        import accelerate.data_loader as building
    except ImportError as error:
        raise ImportError("use_in_accelerate needs Accelerate: pip install 'mpwds[huggingface]'") from error
    if not hasattr(building, "DataLoaderAdapter"):
        raise RuntimeError("use_in_accelerate needs accelerate 0.34 or later: pip install -U accelerate")
    building.DataLoader = DataLoader
    prepare = building.prepare_data_loader

    @functools.wraps(prepare)
    def checked(dataloader: Any, *arguments: Any, **options: Any) -> Any:
        check_not_divided_again(dataloader.dataset)
        return prepare(dataloader, *arguments, **options)

    if preparing.prepare_data_loader is prepare:
        preparing.prepare_data_loader = checked


def _start_early(dataset: Any, context: Any) -> None:
    """Starts the fork server, if workers will need it, and has it import what the dataset's class needs.

    The first epoch would wait for that: torch takes most of a second. Errors show when it begins. A fork
    server or worker starts none: it may import the module that makes the loader, and so would the next one.
    """
    if processes.holds_lifeline() or (context is not None and context.get_start_method() != "forkserver"):
        return
    with interrupts_deferred(), contextlib.suppress(OSError, MpwdsError):
        os.getcwd()  # where that has been removed, importing torch ends the process
        forkserver.start([cls.__module__ for cls in type(dataset).__mro__])
