"""MultiLoader: batches of a dataset, made by worker processes."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from mpwds.loader.engine import options as checks
from mpwds.loader.engine.epoch import EpochIterator
from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.engine.options import BLOCKS_OF_CONSUMER, Even, FinalOutput, LoaderOptions, OnWorkerDeath
from mpwds.loader.engine.receiving import Output
from mpwds.loader.loader_pipeline import LoaderStages
from mpwds.loader.processes.launchers import LAUNCHERS
from mpwds.loader.processes.processes import interrupts_deferred
from mpwds.loader.processes.setup import WorkerSetup
from mpwds.loader.resume.position import CountOnYield, LoaderPosition
from mpwds.loader.resume.progress import EpochProgress
from mpwds.loader.stats.collector import Since, StatsCollector
from mpwds.loader.stats.trainer_times import TrainerTimes
from mpwds.loader.worker.elements import as_dataset
from mpwds.mistakes import explained
from mpwds.pipeline.context import Context
from mpwds.pipeline.epochs import is_repetition
from mpwds.pipeline.parts import TorchIterable, in_any_order
from mpwds.pipeline.stream import Stream
from mpwds.sharedmem import interrupts
from mpwds.sharedmem.arena import MOST_BLOCKS
from mpwds.sharedmem.cuda import CudaAccess
from mpwds.tracebacks import shorten

# Features are imported where they are asked for: a plain loader starts without them.
if TYPE_CHECKING:
    from mpwds.loader.output.delivery import Delivery
    from mpwds.loader.stats.stats import LoaderStats
    from mpwds.loader.worker.in_process import LocalIterator


class MultiLoader(LoaderStages, TorchIterable):
    """Iterates a dataset in worker processes and delivers its elements here, through shared memory.

    Each ``iter()`` is an epoch. The loader delivers what the dataset yields, batches or single samples: any
    nesting of dict, list, tuple, namedtuple and dataclass. Arrays and tensors in it become ``output``:
    writable views of shared memory that is used again when no part of them is alive. A script needs no
    ``if __name__ == "__main__"`` guard, and the dataset may hold lambdas.

    The methods named after stages (``unbatched``, ``shuffle``, ``batched``, ``map``, ...) add stages behind
    the workers, which run in this process. ``rebatched`` is the fast way to shuffle and batch the workers'
    batches anew.

    For programs that require a ``torch.utils.data.DataLoader``, ``mpwds.DataLoader(loader, batch_size=None)``
    delivers what the loader delivers.

    Workers start with the first epoch and stay until :meth:`close`, the end of a ``with`` block, the
    loader's collection or the interpreter's exit. They end when this process dies, however it dies. A
    new ``iter()`` ends an unfinished one. In an interactive session, ``iter()`` restarts the workers if
    the dataset, or a function or global variable that it uses, has changed since they started. Use a loader
    from one thread at a time, and not in a fork of its process.

    Args:
        dataset: A pipeline of this package (its shards are split over the workers); a map-style dataset or
            list (split by index); or any other iterable, torch ``IterableDataset``,
            ``webdataset.WebDataset`` or function that returns an iterator: each worker iterates all of
            it, and it splits itself by ``torch.utils.data.get_worker_info()`` or the variables
            ``WORKER`` and ``NUM_WORKERS``. All workers share one copy of its arrays and tensors; those in
            shared memory or a mapped file are not copied (see :func:`mpwds.share`).
        workers: Number of worker processes. 0 does the work in this process, with the results of one worker.
        in_order: Workers take turns, so that the order depends only on dataset, seed, epoch and number
            of workers. Otherwise the first batch to arrive is next, and a slow worker does not delay others.
        prefetch: Batches that each worker prepares ahead. Its arena has two blocks more, for the batches that
            the training loop holds. Batches up to 32 kB need no blocks: a worker prepares as many as its
            channel holds, about 200 kB.
        start_method: ``"spawn"`` starts fresh interpreters. ``"forkserver"`` forks one fresh
            interpreter that has imported what the dataset needs, which is faster where several loaders start
            workers. ``"fork"`` forks this process, for datasets that cannot be pickled.
        timeout: Seconds to wait for a batch before :class:`~mpwds.errors.WorkerTimeout`; ``None`` waits
            for ever.
        output: Arrays become ``"torch"`` tensors, ``"numpy"`` arrays or ``"jax"`` arrays, which share
            NumPy's memory where jax can (see ``mpwds.loader.output.jax_arrays``). Stages behind the workers
            get NumPy arrays in that case; the elements of the last one become jax arrays.
        seed: Overrides the dataset's seed. For other datasets than pipelines of this package, it seeds
            ``random``, ``numpy.random`` and torch in each worker and epoch (``None`` counts as 0).
        persistent: Keep workers between epochs.
        on_worker_death: When a worker is killed or exits, ``"raise"`` :class:`~mpwds.errors.WorkerDied`, or
            ``"restart"`` it with a warning. The new process continues where the old one was: every element
            comes once, in the same order if ``in_order``. A worker that dies three times in a row before the
            same batch is an error in either case.
        even: With several ranks (processes that train together), each gets the same number of batches in an
            epoch, also from the stages behind the loader. ``"drop"``: as many as the rank with the
            fewest has; the rest is dropped. ``"pad"``: as many as the rank with the most has; the
            others deliver their last batch again. ``"wrap"``: the same, but the others iterate their part
            of the dataset once more, in another order. The last batch may be smaller on some ranks.
            Where the numbers are not known in advance, the ranks agree on them by ``torch.distributed``: all
            of them have to iterate the loader, and up to 5 batches are made ahead. See
            ``docs/distributed.md``.
        pin_memory: Deliver tensors in pinned memory, so that ``tensor.to(device, non_blocking=True)`` does
            not wait: CUDA registers the workers' shared memory once. Dropping a batch's last tensor records
            an event on the current streams; the memory is reused once that completes. If you copy on another
            stream, drop the batch there too (inside ``with torch.cuda.stream(...)``), or use ``device``.
            Arenas get all of their memory at once. Elements of stages behind the workers are copied to
            pinned memory if necessary. Without CUDA, or if it refuses, there is one warning, and batches
            are not pinned.
        device: Deliver tensors on this CUDA device (``"cuda"``, ``"cuda:1"``, a ``torch.device``). They are
            copied from pinned memory on a stream of their own, up to ``prefetch`` batches ahead.
            Stages behind the workers run on the CPU: the elements of the last one are copied when they are
            asked for. Other objects than tensors stay as they are. ``"cpu"`` is the same as ``None``.
        progress: Show a line with the batches delivered, samples per second and the bottleneck that
            :meth:`stats` finds. Needs tqdm (``pip install 'mpwds[progress]'``).

    Raises:
        ValueError: An argument is out of range, a switch is not a boolean, or ``pin_memory`` or ``device``
            was combined with an ``output`` other than ``"torch"``.
        RuntimeError: This machine has no such ``device``.
        TypeError: ``dataset`` is not iterable.
        ImportError: The package that ``output`` needs, or tqdm for ``progress``, is not installed.

    While iterating:
        The exception of a stage: raised here with its own type, the worker's traceback as its cause.
        Tracebacks omit the frames of this package unless ``MPWDS_FULL_TRACEBACK=1`` is set.
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

    prefetch: int
    start_method: str
    output: FinalOutput
    persistent: bool
    on_worker_death: OnWorkerDeath
    pin_memory: bool
    device: Any
    progress: bool
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
        options = LoaderOptions(
            workers,
            in_order,
            prefetch,
            start_method,  # type: ignore[arg-type]  # checked there
            timeout,
            output,
            seed,
            persistent,
            on_worker_death,
            even,
            pin_memory,
            device,
            progress,
        )
        self.dataset = as_dataset(dataset)
        self._options = options
        vars(self).update(vars(options))
        self._delivery = _delivery_of(options, self._cuda)
        self._received: Output = "numpy" if output == "jax" else output
        self._pinning = None if self._delivery is None else self._delivery.pinning
        if self.progress:
            from mpwds.loader.stats.progress_bar import require_tqdm

            require_tqdm()
        self._epoch = 0
        self._position = LoaderPosition()
        self._current = _Current()
        self._group = WorkerGroup(
            self._setup_maker(),
            LAUNCHERS[options.start_method],
            self._received,
            warn_of_copies=even is None,
            pinning=self._pinning,
        )
        self._in_process = None
        if self.workers == 0:
            from mpwds.loader.worker.in_process import InProcess

            self._in_process = InProcess(self.dataset)
        self._statistics = StatsCollector(
            self._group.readings if self._in_process is None else self._in_process.readings,
            self._group.private_copies,
            in_order=self.in_order,
            in_process=self.workers == 0,
        )
        self._finalizer = weakref.finalize(self, _finish, self._current, self._group)

    def __iter__(self) -> Iterator[Any]:
        """Begins the next epoch, and ends the one before if it is unfinished."""
        epoch = self._next_epoch()
        batches: Iterator[Any]
        try:
            if self.even is not None and self._is_even():
                from mpwds.loader.ranks.even_iterator import evened

                delivered = self._position.handed_over(epoch)
                batches = evened(self, self.even, epoch, self._begin, self._count, delivered)
            else:
                batches = self._begin(epoch)
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
        delivery = self._delivery
        return (delivery is not None and delivery.to_device is not None) or self._is_even()

    def _iterate(self, epoch: int, progress: EpochProgress | None = None) -> LocalIterator | EpochIterator:
        self._current.end("another iteration of this loader has begun")
        progress = self._position.begin(self, epoch, progress)
        times = self._times()
        self._statistics.begin(epoch, times)
        iterator: LocalIterator | EpochIterator
        if self._in_process is not None:
            from mpwds.loader.worker.in_process import LocalIterator

            context = replace(Context.current(epoch), seed=self.seed)
            iterator = LocalIterator(
                self, self._in_process, context, self._received, progress, times, self._pinning
            )
        else:
            in_order = self.in_order and not in_any_order(self.dataset)
            iterator = EpochIterator(self, self._group, progress, self._options, in_order, times)
        self._current.iterator = weakref.ref(iterator)
        return iterator

    def _hand_out(self, elements: Iterator[Any], staged: bool = False) -> Iterator[Any]:
        return elements if self._delivery is None else self._delivery.handed_out(elements, staged)

    def _watch(self, part: Any, stream: Stream[Any], context: Context) -> Stream[Any]:
        return self._statistics.watch(part, stream, context)

    def _clock(self) -> TrainerTimes:
        return self._statistics.times

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the running workers; empty before the first epoch and after :meth:`close`."""
        return self._group.pids

    def stats(self, since: Since = "epoch") -> LoaderStats:
        """Statistics: batches delivered, the trainer's waiting, the workers' work, and the bottleneck.

        They are available at any time, also while the loader is iterated and after :meth:`close`.

        Args:
            since: ``"epoch"`` counts since the last epoch began, ``"start"`` since the loader was made.

        Raises:
            ValueError: ``since`` has another value.

        Example:
            >>> with MultiLoader([1, 2, 3], workers=2) as loader:
            ...     batches = list(loader)
            >>> stats = loader.stats()
            >>> stats.batches, [worker.batches for worker in stats.workers]
            (3, [2, 1])
        """
        return self._statistics.stats(since)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``iter()`` epoch number ``epoch``. Without it, epochs count up from 0."""
        epoch = checks.integer("MultiLoader", "epoch", epoch, at_least=0)
        self._position.set_epoch(epoch)
        self._epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last element that was delivered.

        Call it at any time between two ``next()``, also after ``break`` or an error. When the loop has
        ended, the position is the start of the next epoch.

        Returns:
            A dict that can be saved by pickle, JSON or msgpack. It holds, for each worker, the number of
            elements delivered, and the state of its pipeline about a second ago (3 kB for a ``shuffle``, and
            some 10 bytes for each element that the pipeline holds).

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
        """Makes the next ``iter()`` continue where ``state_dict`` was saved, by this loader or one like it.

        The workers repeat and drop their work since the last state, about a second. They run the epoch again
        from its start, with a warning, in two cases: the dataset has no state (it is not a pipeline of this
        package, or has a stage that is a plain function of an iterator), or the state is that of another
        rank (some trainers save one state for all).

        Args:
            state_dict: What ``state_dict()`` returned, possibly after a round trip through JSON or msgpack.

        Raises:
            ValueError: The state is of another version, or of a loader with another number of workers or
                ranks, another seed or another dataset; or of another rank, with ``in_order=False``.
        """
        self._current.end("a state was loaded")
        self._epoch = self._position.load(self, state_dict)

    def warm_up(self, *, wait: bool = True, timeout: float | None = None) -> None:
        """Starts the workers now, unless they run already.

        Args:
            wait: Return when all of them have imported and unpickled the dataset; otherwise at once.
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
        """Ends the workers, within about half a second. Iterating again starts new ones."""
        self._close("the loader was closed")

    def _close(self, because: str) -> None:
        self._current.end(because)
        self._group.close()

    def __enter__(self) -> MultiLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, by ``copy`` or ``pickle``, is a loader with the same options and no workers yet."""
        return functools.partial(type(self), **vars(self._options)), (self.dataset,)

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
        dataset, options = self.dataset, self._options

        def make() -> WorkerSetup:
            here = Context.current()
            blocks = options.prefetch + BLOCKS_OF_CONSUMER
            if options.even is not None and here.world_size > 1:
                from mpwds.loader.ranks.even import MOST_AHEAD

                blocks += -(-MOST_AHEAD // options.workers)
            return WorkerSetup(
                dataset,
                options.workers,
                min(blocks, MOST_BLOCKS),
                here.rank,
                here.world_size,
                options.seed,
            )

        return make


class _Current:
    """A loader's iteration, if it is still there: the loader must end it without keeping it alive."""

    def __init__(self) -> None:
        self.iterator: Callable[[], EpochIterator | LocalIterator | None] = _nothing

    def end(self, because: str) -> None:
        iterator = self.iterator()
        if iterator is not None:
            iterator.close(because)


def _delivery_of(options: LoaderOptions, cuda: CudaAccess) -> Delivery | None:
    """The last step of an epoch, if the options ask for one."""
    if options.output != "jax" and options.device is None and not options.pin_memory:
        return None
    from mpwds.loader.output.delivery import Delivery

    return Delivery(options.output, options.device, options.pin_memory, options.prefetch, cuda)


def _finish(current: _Current, group: WorkerGroup) -> None:
    """Ends the workers when a loader is collected, or the interpreter exits."""
    with interrupts.kept(), interrupts_deferred():
        current.end("")
        group.close()


def _nothing() -> None:
    return None
