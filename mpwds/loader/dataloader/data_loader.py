"""DataLoader: torch's DataLoader, with this package's workers.

This is the one module that imports torch when it is imported: its class derives from torch's, so that
whatever asks whether something is a DataLoader gets the answer it expects. ``mpwds`` imports it when the
name is used.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch.utils.data

from mpwds.loader import options as checks
from mpwds.loader.dataloader.dividing import check_not_divided_again, has_workers, refuse_workers_of_workers
from mpwds.loader.dataloader.epoch_statistics import Accounts
from mpwds.loader.dataloader.iterator import DataLoaderIterator
from mpwds.loader.dataloader.single_process import LocalCounts, SingleProcessIterator
from mpwds.loader.dataloader.start_methods import Forks, start_early
from mpwds.loader.dataloader.state import EpochRecord, is_iterable, own_state
from mpwds.loader.stats.collector import Since
from mpwds.warn import warn

T_co = TypeVar("T_co", covariant=True)

_DATAPIPES: tuple[type, ...] = tuple(
    kind
    for name in ("IterDataPipe", "MapDataPipe")
    if (kind := getattr(torch.utils.data, name, None)) is not None
)

if TYPE_CHECKING:
    from mpwds.loader.stats.stats import LoaderStats


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """Takes the place of ``torch.utils.data.DataLoader``: change the import, and nothing else.

    Arguments, attributes, order of the samples, random numbers, seeds of the workers, errors and warnings
    are torch's (it is a subclass of it). What differs is what happens between the workers and here:
    batches are collated straight into shared memory that is used again and again, and arrive as views of it;
    workers need no ``if __name__ == "__main__"`` guard, may run lambdas, end when this process does, and are
    no copies of this process, unless ``multiprocessing_context="fork"`` asks for that or what they need
    cannot be pickled. ``docs/coming-from-dataloader.md`` goes through every option.

    Tensors arrive as tensors, NumPy arrays (from a ``collate_fn`` of one's own) as such, writable, and
    private to whoever holds them.

    Args:
        dataset: A map-style dataset or list, or an ``IterableDataset``. A pipeline of this package is one,
            and counts its epochs by itself here. So is a ``MultiLoader``, with what is behind it: its own
            workers do the work, so that ``num_workers`` stays 0.
        batch_size: Samples in a batch; ``None`` delivers single samples.
        shuffle: Draw the samples in random order.
        sampler: Gives the indices of the samples in order, in place of ``shuffle``.
        batch_sampler: Gives lists of indices, in place of ``batch_size``, ``shuffle``, ``sampler`` and
            ``drop_last``.
        num_workers: Worker processes; 0 does the work here, by torch's own code.
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

    Raises:
        ValueError, TypeError: As torch's DataLoader, for arguments that do not fit together.
        ValueError: ``num_workers`` for a dataset that is a loader with workers of its own.

    While iterating:
        The exception of the dataset, ``collate_fn`` or ``worker_init_fn``, with its own type, attributes and,
        as its cause, the worker's traceback; iteration may go on, as in torch.
        ``RuntimeError``: nothing came for ``timeout`` seconds (it says where the worker stands), or a
        worker died (:class:`~mpwds.errors.WorkerDied`).
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

    def __init__(
        self,
        dataset: torch.utils.data.Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: torch.utils.data.Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: torch.utils.data.Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
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
    ) -> None:
        refuse_workers_of_workers(dataset, num_workers)
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator or None, got {generator!r}")
        switches = {
            "pin_memory": pin_memory,
            "drop_last": drop_last,
            "persistent_workers": persistent_workers,
            "in_order": in_order,
        }
        for name, value in switches.items():
            checks.boolean("DataLoader", name, value)
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
        )
        self.in_order = in_order  # an argument of torch's since 2.6
        self.record: EpochRecord = EpochRecord.of_next(self, finished=True)
        self._loaded: EpochRecord | None = None
        self.accounts = Accounts()
        self._forks = Forks()
        self._iterators: weakref.WeakSet[DataLoaderIterator] = weakref.WeakSet()
        if not isinstance(dataset, _DATAPIPES):
            start_early(self)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own iterator's class
        """Begins an epoch: with workers of its own, or, where they persist, with those of the one before."""
        if isinstance(self.dataset, _DATAPIPES):
            return super().__iter__()
        if self.keeps_iterator:
            kept: Any = self._iterator
            with self._beginning():
                kept.reset(self)
            return cast("Iterator[Any]", kept)
        iterator: Any = self._get_iterator()
        if self.persistent_workers and self.num_workers:
            self._iterator = iterator  # frameworks drop what they find there
        return cast("Iterator[Any]", iterator)

    def _get_iterator(self) -> Any:
        """Begins an epoch with workers of its own. Subclasses of torch's class override this, and call it."""
        if isinstance(self.dataset, _DATAPIPES):
            return super()._get_iterator()
        refuse_workers_of_workers(self.dataset, self.num_workers)  # set since, possibly
        with self._beginning():
            if self.num_workers == 0:
                local = LocalCounts()
                times = self.accounts.begin(local, in_order=self.in_order, in_process=True)
                return SingleProcessIterator(self, self.record, local, times)
            self.check_worker_number_rationality()
            iterator = DataLoaderIterator(self)
            self._iterators.add(iterator)
            return iterator

    @property
    def keeps_iterator(self) -> bool:
        """Whether the next epoch has the workers of the last one."""
        persists = self.persistent_workers and self.num_workers > 0
        return persists and isinstance(self._iterator, DataLoaderIterator)

    def _beginning(self) -> contextlib.AbstractContextManager[None]:
        """Records the epoch that begins; inside, it begins as the one that was loaded, if one was."""
        loaded, self._loaded = self._loaded, None
        self.record = EpochRecord.of_next(self) if loaded is None else loaded
        if loaded is None:
            return contextlib.nullcontext()
        if loaded.runs_again and is_iterable(self.dataset):
            warn(
                f"an iterable dataset ({type(self.dataset).__name__}) is continued by running it again from "
                f"its start, without the {loaded.runs_again} batches that were delivered: MultiLoader "
                "continues pipelines of mpwds where they were",
                UserWarning,
            )
        return loaded.beginning(self)

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch stands: behind the last batch that was delivered, or, at its end, before the next.

        It holds the number of batches, and the state that the generator (``generator``, or torch's own) had
        when the epoch began: 7 kB. If the dataset is a ``MultiLoader``, or what is behind one, it holds
        the state of that as well.

        Raises:
            TypeError: The dataset is one of torch's DataPipes, whose batches are not counted.

        Source:
            ``torchdata.stateful_dataloader.StatefulDataLoader``, whose methods of these names are called
            likewise.

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
            raise TypeError("the state of a DataLoader of DataPipes is not known: make a Dataset of them")
        record = self.record if self._loaded is None else self._loaded
        state = (EpochRecord.of_next(self) if record.finished else record).as_state(self)
        return {**state, **own_state(self.dataset)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next epoch go on where ``state_dict`` was saved, by this loader or one like it.

        Of a map-style dataset the samples that were delivered are not fetched again; the rest come in the
        same order, also from another number of workers. Random numbers that the dataset draws in the workers
        are others, as after any restart. An iterable dataset is run again from its start, with the same
        seeds, and what was delivered is dropped; one warning says so. A dataset that is a ``MultiLoader``, or
        what is behind one, goes on by its own ``load_state_dict``. The generator that gives the order goes
        on from where the epoch began; torch's own is left as it is. A sampler that counts epochs is told
        which one it was.

        Args:
            state_dict: What ``state_dict()`` returned; it can be pickled and goes through JSON.

        Raises:
            ValueError: It is the state of another loader: the message says what differs.
        """
        record = EpochRecord.from_state(self, state_dict)
        self.close()
        record.tell_epoch(self)
        self._loaded = record

    def stats(self, since: Since = "epoch") -> LoaderStats:
        """What was delivered, how long this process waited for it, and what bounds the training.

        As ``MultiLoader.stats()``, at any time. Epochs are numbered as they begin. What of the workers' time
        is the dataset's holds a ``collate_fn`` of one's own too; torch's default is part of writing batches,
        if there are workers. If the dataset is a loader, these are its stats.

        Args:
            since: Of the last epoch that began (``"epoch"``), or of all (``"start"``).

        Raises:
            ValueError: ``since`` is neither.

        Example:
            >>> loader = DataLoader(range(5), batch_size=2)
            >>> batches = list(loader)
            >>> loader.stats().batches, loader.stats().samples
            (3, 5)
        """
        dataset: Any = self.dataset
        stats: LoaderStats = dataset.stats(since) if has_workers(dataset) else self.accounts.stats(since)
        return stats

    def set_epoch(self, epoch: int) -> None:
        """Tells the dataset and the samplers, those that have a ``set_epoch``, which epoch comes next.

        Trainers look for this method, and some call it before each epoch.

        Args:
            epoch: Number of the epoch.
        """
        inner = getattr(self.batch_sampler, "sampler", None)
        parts: list[Any] = [self.dataset, self.sampler, self.batch_sampler, inner]
        for part in {id(part): part for part in parts}.values():
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)

    def close(self) -> None:
        """Ends all workers of this loader now. Iterating again starts new ones."""
        self._iterator = None
        for iterator in list(self._iterators):
            iterator.close()

    def __enter__(self) -> DataLoader[T_co]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def _is_accelerate_prepared(self) -> bool:
        """What ``Accelerator.prepare`` asks before it divides a loader among ranks."""
        check_not_divided_again(self.dataset)
        return False

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle has: the same options, no workers."""
        none = dict.fromkeys(("_iterator", "_iterators", "_loaded", "record", "accounts"))
        return {**self.__dict__, **none, "_forks": Forks()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__dict__["_iterators"] = weakref.WeakSet()
        self.accounts = Accounts()
        self.record = EpochRecord.of_next(self, finished=True)
