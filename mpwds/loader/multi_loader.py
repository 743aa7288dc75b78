"""MultiLoader: batches of a dataset, made by worker processes."""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from mpwds.loader import options as checks
from mpwds.loader.engine.epoch import EpochIterator
from mpwds.loader.engine.group import BLOCKS_OF_CONSUMER, GroupOptions, WorkerGroup
from mpwds.loader.engine.in_process import LocalIterator
from mpwds.loader.engine.restarts import OnWorkerDeath, Restarts
from mpwds.loader.loader_pipeline import LoaderStages
from mpwds.loader.output.delivery import Delivery, FinalOutput
from mpwds.loader.processes.launchers import LAUNCHERS
from mpwds.loader.processes.processes import interrupts_deferred
from mpwds.loader.processes.setup import WorkerSetup
from mpwds.loader.ranks.even import EVEN, MOST_AHEAD, Even, is_to_be_even
from mpwds.loader.resume.position import CountOnYield, LoaderPosition
from mpwds.loader.resume.progress import EpochProgress
from mpwds.loader.stats.collector import Ledger, Since, WorkerReading
from mpwds.loader.stats.trainer_times import TrainerTimes
from mpwds.loader.worker.counters import Counters
from mpwds.loader.worker.elements import as_dataset
from mpwds.loader.worker.meter import Meter
from mpwds.mistakes import explained
from mpwds.pipeline.context import Context
from mpwds.pipeline.parts import in_any_order
from mpwds.pipeline.repetitions import is_repetition
from mpwds.pipeline.stream import Stream
from mpwds.pipeline.torch_dataset import TorchIterable
from mpwds.sharedmem import interrupts
from mpwds.sharedmem.arena import MOST_BLOCKS
from mpwds.sharedmem.cuda import CudaAccess
from mpwds.tracebacks import shorten

if TYPE_CHECKING:
    from mpwds.loader.stats.stats import LoaderStats

_MOST_PREFETCH = MOST_BLOCKS - BLOCKS_OF_CONSUMER


class MultiLoader(LoaderStages, TorchIterable):
    """Iterates a dataset in worker processes and delivers its elements here, through shared memory.

    Each ``iter()`` is an epoch. What the dataset yields is delivered as it is, a batch or a single
    sample: any nesting of dict, list, tuple, namedtuple and dataclass. Arrays and tensors in it become
    ``output``: views of shared memory, writable, that nobody else touches while any part of them is
    alive. There is no need for an ``if __name__ == "__main__"`` guard, and the dataset may hold lambdas.

    The methods named after stages (``unbatched``, ``shuffle``, ``batched``, ``map``, ...) put these behind
    the workers: they run here. ``rebatched`` is the fast way to shuffle and batch anew what workers deliver.

    What insists on a ``torch.utils.data.DataLoader`` gets ``mpwds.DataLoader(loader, batch_size=None)``: it
    delivers what the loader does.

    Workers start with the first epoch and stay until :meth:`close`, the end of a ``with`` block, the
    loader's collection or the interpreter's exit; they end when this process dies, however it dies. A
    new ``iter()`` ends an unfinished one. In an interactive session, ``iter()`` starts the workers anew if
    the dataset, or a function or global variable that it uses, has changed since they started. A loader is
    used by one thread at a time, and not in a fork of its process.

    Args:
        dataset: A pipeline of this package (its shards are dealt to the workers); a map-style dataset or
            list (dealt by index); or any other iterable, torch ``IterableDataset``,
            ``webdataset.WebDataset`` or function that returns an iterator: each worker iterates it
            whole, and it splits itself by ``torch.utils.data.get_worker_info()`` or the variables
            ``WORKER`` and ``NUM_WORKERS``. Arrays and tensors in it are copied once, for all workers
            together; those in shared memory or a mapped file, not at all (see :func:`mpwds.share`).
        workers: Worker processes, 4 by default; 0 does the work in this process, with the results of one
            worker.
        in_order: Workers take turns, so that the order depends only on dataset, seed, epoch and number
            of workers. Otherwise the first batch to come is next, and a slow worker holds nobody back.
        prefetch: Batches each worker prepares ahead. Its arena has two blocks more, for what the
            training loop holds. Batches up to 32 kB take no blocks: a worker prepares as many as its
            channel holds, about 200 kB.
        start_method: ``"spawn"``, the default, starts fresh interpreters; ``"forkserver"`` forks one fresh
            interpreter that has imported what the dataset needs, and is faster where several loaders start
            workers; ``"fork"`` forks this process, and is for datasets that cannot be pickled.
        timeout: Seconds to wait for a batch before :class:`~mpwds.errors.WorkerTimeout`; ``None`` waits
            for ever.
        output: Arrays become ``"torch"`` tensors, ``"numpy"`` arrays or ``"jax"`` arrays, which share the
            memory of NumPy's where jax can
            (``mpwds.loader.output.jax_arrays`` says where). Stages behind the workers get NumPy
            arrays then; those that the last of them yields become jax's.
        seed: Overrides the dataset's seed; for a dataset that is not ours it seeds ``random``,
            ``numpy.random`` and torch in each worker and epoch (``None`` counts as 0).
        persistent: Keep workers between epochs.
        on_worker_death: What to do when a worker is killed or exits: ``"raise"``
            :class:`~mpwds.errors.WorkerDied`, or ``"restart"`` it, with a warning. A new process then goes on
            where it was: every element comes once, in the same order if ``in_order``. One that dies three
            times in a row before the same batch is an error all the same.
        even: With several ranks (processes that train together): each gets the same number of batches in an
            epoch, also from the stages behind the loader. ``"drop"``: as many as the rank that has the
            fewest; what others have left is dropped. ``"pad"``: as many as the rank that has the most; the
            others deliver their last batch again. ``"wrap"``: the same, and the others go through their part
            of the dataset once more, in another order. The last batch may be smaller on some ranks.
            Where the numbers are not known beforehand, the ranks agree on them by ``torch.distributed``: all
            of them have to iterate the loader, and up to 5 batches are made ahead. See
            ``docs/distributed.md``.
        pin_memory: Deliver tensors in pinned memory, so that ``tensor.to(device, non_blocking=True)`` does
            not make this process wait: the workers' shared memory is registered with CUDA, once. A batch's
            memory is written to again when the devices have done what had been begun, on the current streams,
            when its last tensor was dropped. Whoever copies on another stream drops the batch there, too
            (inside ``with torch.cuda.stream(...)``), or lets ``device`` do it. Arenas get all of their memory
            at once. What stages behind the workers yield is pinned by a copy if it is not pinned yet.
            Without CUDA, or where it refuses, there is one warning, and batches are not pinned.
        device: Deliver tensors on this CUDA device (``"cuda"``, ``"cuda:1"``, a ``torch.device``), copied on
            a stream of their own, from pinned memory, up to ``prefetch`` batches before they are asked for.
            Stages behind the workers run on the CPU: what the last of them yields is copied when it is asked
            for. What is no tensor stays as it is. ``"cpu"`` is as ``None``.
        progress: Show a line with the batches delivered, samples per second and what :meth:`stats` finds
            wrong. Needs tqdm (``pip install 'mpwds[progress]'``).

    Raises:
        ValueError: An argument is out of range, a switch is not a boolean, or ``pin_memory`` or ``device``
            was combined with an ``output`` other than ``"torch"``.
        RuntimeError: There is no such ``device`` here.
        TypeError: ``dataset`` is not iterable.
        ImportError: The package that ``output`` needs, or tqdm for ``progress``, is not installed.

    While iterating:
        The exception of a stage: raised here with its own type, the worker's traceback as its cause.
        Tracebacks leave out the frames of this package unless ``MPWDS_FULL_TRACEBACK=1`` is set.
        :class:`~mpwds.errors.WorkerDied`: a worker was killed or exited.
        :class:`~mpwds.errors.SharedMemoryError`: no memory for a batch.
        :class:`~mpwds.errors.EvenEpochError`: a rank has no batch, is gone or failed (``even``).
        After any of these all workers have ended; the next ``iter()`` starts new ones.

    Example:
        >>> import numpy as np
        >>> with MultiLoader([np.full(3, i) for i in range(4)], workers=2, output="numpy") as loader:
        ...     [batch.tolist() for batch in loader]
        [[0, 0, 0], [1, 1, 1], [2, 2, 2], [3, 3, 3]]
    """

    _cuda: ClassVar[CudaAccess] = CudaAccess()

    @explained
    def __init__(
        self,
        dataset: Any,
        workers: int = 4,
        *,
        in_order: bool = True,
        prefetch: int = 2,
        start_method: str = "spawn",
        timeout: float | None = None,
        output: FinalOutput = "torch",
        seed: int | None = None,
        persistent: bool = True,
        on_worker_death: OnWorkerDeath = "raise",
        even: Even | None = None,
        pin_memory: bool = False,
        device: Any = None,
        progress: bool = False,
    ) -> None:
        workers = checks.integer("MultiLoader", "workers", workers, at_least=0)
        prefetch = checks.integer("MultiLoader", "prefetch", prefetch, at_least=1, at_most=_MOST_PREFETCH)
        checks.choice("MultiLoader", "start_method", start_method, tuple(LAUNCHERS))
        checks.choice("MultiLoader", "output", output, ("torch", "numpy", "jax"))
        checks.choice("MultiLoader", "on_worker_death", on_worker_death, ("raise", "restart"))
        if even is not None:
            checks.choice("MultiLoader", "even", even, EVEN)
        checks.timeout("MultiLoader", timeout)
        if seed is not None:
            seed = checks.integer("MultiLoader", "seed", seed)
        self.dataset = as_dataset(dataset)
        self.workers = workers
        self.in_order = checks.boolean("MultiLoader", "in_order", in_order)
        self.prefetch = prefetch
        self.start_method = start_method
        self.timeout = timeout
        self.output: FinalOutput = output
        self.seed = seed
        self.persistent = checks.boolean("MultiLoader", "persistent", persistent)
        self.on_worker_death: OnWorkerDeath = on_worker_death
        self.even: Even | None = even
        self.pin_memory = checks.boolean("MultiLoader", "pin_memory", pin_memory)
        self.device = device
        self._delivery = Delivery(output, device, self.pin_memory, prefetch, self._cuda)
        self.progress = checks.boolean("MultiLoader", "progress", progress)
        if self.progress:
            from mpwds.loader.stats.progress_bar import require_tqdm

            require_tqdm()
        self._epoch = 0
        self._position = LoaderPosition()
        self._current = _Current()
        options = GroupOptions(
            LAUNCHERS[start_method],
            self._delivery.received,
            warn_of_copies=even is None,
            pinning=self._delivery.pinning,
        )
        self._group = WorkerGroup(self._setup_maker(), options)
        self._local = _Local(self.dataset) if workers == 0 else None
        self._ledger = Ledger(
            self._group.readings if self._local is None else self._local.readings,
            self._group.private_copies,
            in_order=self.in_order,
            in_process=workers == 0,
        )
        self._finalizer = weakref.finalize(self, _finish, self._current, self._group)

    def __iter__(self) -> Iterator[Any]:
        """Begins the next epoch, and ends the one before if it is unfinished."""
        epoch = self._next_epoch()
        try:
            if self.even is None or not is_to_be_even(self):
                batches = self._begin(epoch)
            else:
                from mpwds.loader.ranks.even_iterator import evened

                delivered = self._position.handed_over(epoch)
                batches = evened(self, self.even, epoch, self._begin, self._count, delivered)
        except Exception as error:
            shorten(error)
            raise
        return CountOnYield(batches, self._position.progress) if self._takes_ahead() else batches

    def _begin(self, epoch: int) -> Iterator[Any]:
        batches = self._iterate(epoch)
        if self._takes_ahead() and not is_repetition(epoch):
            batches.progress.take_ahead()
        return self._hand_out(batches)

    def _takes_ahead(self) -> bool:
        return self._delivery.to_device is not None or is_to_be_even(self)

    def _iterate(self, epoch: int, progress: EpochProgress | None = None) -> LocalIterator | EpochIterator:
        self._current.end("another iteration of this loader has begun")
        progress = self._position.begin(self, epoch, progress)
        times = self._times()
        self._ledger.begin(epoch, times)
        if self._local is not None:
            context = replace(Context.current(epoch), seed=self.seed)
            output, pinning = self._delivery.received, self._delivery.pinning
            local = LocalIterator(
                self.dataset, context, output, self, progress, self._local.meter, times, pinning
            )
            self._current.iterator = weakref.ref(local)
            return local
        try:
            workers, generation = self._group.begin_epoch(epoch, progress.positions())
        except BaseException:
            times.end()
            raise
        in_order = self.in_order and not in_any_order(self.dataset)
        iterator = EpochIterator(
            workers,
            generation,
            progress,
            in_order=in_order,
            timeout=self.timeout,
            on_leave=_nothing if self.persistent else self._group.close,
            on_failure=self._group.close,
            on_death=Restarts(self._group, generation, progress, self.on_worker_death, in_order),
            owner=self,
            times=times,
        )
        self._current.iterator = weakref.ref(iterator)
        return iterator

    def _hand_out(self, elements: Iterator[Any], staged: bool = False) -> Iterator[Any]:
        return self._delivery.handed_out(elements, staged)

    def _watch(self, part: Any, stream: Stream[Any], context: Context) -> Stream[Any]:
        return self._ledger.watch(part, stream, context)

    def _clock(self) -> TrainerTimes:
        return self._ledger.times

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the running workers; empty before the first epoch and after :meth:`close`."""
        return self._group.pids

    def stats(self, since: Since = "epoch") -> LoaderStats:
        """What was delivered, how long the trainer waited, what the workers did and what bounds the training.

        It may be asked for at any time, also while the loader is iterated and after :meth:`close`.

        Args:
            since: Of the last epoch that began (``"epoch"``), or of all (``"start"``).

        Raises:
            ValueError: ``since`` is neither.

        Example:
            >>> with MultiLoader([1, 2, 3], workers=2) as loader:
            ...     batches = list(loader)
            >>> stats = loader.stats()
            >>> stats.batches, [worker.batches for worker in stats.workers]
            (3, [2, 1])
        """
        return self._ledger.stats(since)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``iter()`` epoch number ``epoch``; by itself it counts up from 0."""
        epoch = checks.integer("MultiLoader", "epoch", epoch, at_least=0)
        self._position.set_epoch(epoch)
        self._epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration stands: behind the last element that was delivered.

        To be called at any time between two ``next()``, also after the loop was left or an error was raised.
        Behind the last element of an epoch, when the loop has ended, it is the start of the next epoch.

        Returns:
            A dict that can be pickled and goes through JSON and msgpack: for each worker the state that its
            pipeline had about a second ago (3 kB for a ``shuffle``, and some 10 bytes for each element that
            the pipeline holds), and what was delivered.

        Example:
            >>> loader = MultiLoader([10, 20, 30], workers=0, output="numpy")
            >>> for element in loader:
            ...     break
            >>> state = loader.state_dict()
            >>> other = MultiLoader([10, 20, 30], workers=0, output="numpy")
            >>> other.load_state_dict(state)
            >>> [int(element) for element in other]
            [20, 30]
        """
        return self._position.state_dict(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next ``iter()`` go on where ``state_dict`` was saved, by this loader or one like it.

        What the workers did since their last state, about a second of work, they do again and drop. Where a
        dataset has no state (it is no pipeline of this package, or has a stage that is a plain function of an
        iterator), or the state is that of another rank, which trainers save for all, they run the epoch again
        from its start; one warning says so.

        Args:
            state_dict: What ``state_dict()`` returned, possibly after a round trip through JSON or msgpack.

        Raises:
            ValueError: The state is of another version, or of a loader that has other workers, another number
                of ranks, other seeds, or another dataset; or of another rank, with ``in_order=False``.
        """
        self._current.end("a state was loaded")
        self._epoch = self._position.load(self, state_dict)

    def warm_up(self, *, wait: bool = True, timeout: float | None = None) -> None:
        """Starts the workers now, before the first epoch, unless they run already.

        Args:
            wait: Return when all of them have the dataset and what it imports; otherwise at once.
            timeout: Seconds to wait for them; ``None`` waits for ever.

        Raises:
            Exception: What unpickling the dataset raised in a worker.
            WorkerDied: A worker was killed or exited.
            WorkerTimeout: One was not ready within ``timeout`` seconds.
            TypeError: The dataset cannot be sent to workers.

        Example:
            >>> with MultiLoader([1, 2], workers=2) as loader:
            ...     loader.warm_up()
            ...     len(loader.worker_pids)
            2
        """
        checks.timeout("warm_up", timeout)
        if self.workers == 0:
            return
        self._group.start()
        if wait:
            try:
                self._group.wait_until_ready(timeout)
            except BaseException:
                self._close("the loader's workers could not be warmed up")
                raise

    def close(self) -> None:
        """Ends the workers, in about half a second at the most. Iterating again starts new ones."""
        self._close("the loader was closed")

    def _close(self, because: str) -> None:
        self._current.end(because)
        self._group.close()

    def __enter__(self) -> MultiLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, made by ``copy`` or ``pickle``, is a loader with the same options and no workers yet."""
        options: dict[str, Any] = {
            "in_order": self.in_order,
            "prefetch": self.prefetch,
            "start_method": self.start_method,
            "timeout": self.timeout,
            "output": self.output,
            "seed": self.seed,
            "persistent": self.persistent,
            "on_worker_death": self.on_worker_death,
            "even": self.even,
            "pin_memory": self.pin_memory,
            "device": self.device,
            "progress": self.progress,
        }
        return functools.partial(type(self), **options), (self.dataset, self.workers)

    def __repr__(self) -> str:
        return self._as_called() + self._in_short()

    def _as_called(self) -> str:
        return f"MultiLoader({self.dataset!r}, workers={self.workers})"

    def _next_epoch(self) -> int:
        epoch = super()._next_epoch()
        self._epoch = self._position.next_epoch(epoch)
        return epoch

    def _times(self) -> TrainerTimes:
        if not self.progress:
            return TrainerTimes()
        from mpwds.loader.stats.progress_bar import ShownTimes

        return ShownTimes(self)

    def _setup_maker(self) -> Callable[[], WorkerSetup]:
        dataset, workers, seed = self.dataset, self.workers, self.seed
        blocks = self.prefetch + BLOCKS_OF_CONSUMER
        even = self.even

        def make() -> WorkerSetup:
            here = Context.current()
            ahead = 0 if even is None or here.world_size == 1 else -(-MOST_AHEAD // workers)
            number = min(blocks + ahead, MOST_BLOCKS)
            return WorkerSetup(dataset, workers, number, here.rank, here.world_size, seed, list(sys.argv))

        return make


class _Local:
    """What the work without workers comes to."""

    def __init__(self, dataset: Any) -> None:
        self._counters = Counters()
        self.meter = Meter(self._counters, dataset, counts_cpu=False)

    def readings(self) -> list[WorkerReading]:
        return [WorkerReading(0, os.getpid(), self._counters.read())]


class _Current:
    """A loader's iteration, if it is still there: what a loader must end without keeping it alive."""

    def __init__(self) -> None:
        self.iterator: Callable[[], EpochIterator | LocalIterator | None] = _nothing

    def end(self, because: str) -> None:
        iterator = self.iterator()
        if iterator is not None:
            iterator.close(because)


def _finish(current: _Current, group: WorkerGroup) -> None:
    """What is left to do when a loader is collected, or the interpreter exits."""
    with interrupts.kept(), interrupts_deferred():
        current.end("")
        group.close()


def _nothing() -> None:
    return None
