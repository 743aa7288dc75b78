"""MultiLoader: batches of a dataset, made by worker processes."""

from __future__ import annotations

import copy
import functools
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakSet

from mpwds.closing import Closes
from mpwds.errors import shorten, shortened
from mpwds.loader.engine import options as checks
from mpwds.loader.engine.epoch import EpochBatches, EpochIterator, finish, leave_all
from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.engine.local_worker import Output
from mpwds.loader.engine.options import BLOCKS_OF_CONSUMER, Even, FinalOutput, LoaderOptions, OnWorkerDeath
from mpwds.loader.launching.launchers import launcher_of
from mpwds.loader.processes.setup import WorkerSetup
from mpwds.loader.rebatching import Prefetching, Rebatching
from mpwds.loader.resume.position import DeliveredCounter, LoaderPosition, beginning, keeps_order, seed_of
from mpwds.loader.resume.progress import AfterEnd, EpochProgress, own_streams
from mpwds.loader.worker.elements import CountOf, as_dataset, count_delivered
from mpwds.names import service
from mpwds.pipeline.coercion import takes_any_order
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.epochs import is_repetition
from mpwds.pipeline.fluent import Fluent
from mpwds.pipeline.iterable_sources import TorchIterable
from mpwds.pipeline.stream import LengthUnknown, Part, Stream, not_for_workers
from mpwds.sharedmem.arena import MOST_BLOCKS
from mpwds.sharedmem.lease import CopiedBatches
from mpwds.stats.collector import ConsumerTimer, Since, StatsCollector
from mpwds.suggestions import suggest_arguments
from mpwds.warn import warn_if_dropped

# Features are imported where they are asked for: a plain loader starts without them.
if TYPE_CHECKING:
    from mpwds.loader.output import OutputConverter
    from mpwds.loader.stages import StagesStream
    from mpwds.sharedmem.cuda import CudaAccess
    from mpwds.stats.report import LoaderStats


class MultiLoader(Rebatching, Fluent, TorchIterable, Closes):
    """Iterates a dataset in worker processes and delivers its elements here, through shared memory.

    Each ``iter()`` is an epoch, and ends an unfinished one. The loader delivers what the dataset yields,
    batches or single samples: any nesting of dict, list, tuple, namedtuple and dataclass. Arrays and tensors
    in it are writable views of shared memory, which is reused when no part of them is alive. A script needs
    no ``if __name__ == "__main__"`` guard, and the dataset may hold lambdas.

    The methods named after stages (``unbatched``, ``shuffle``, ``map``, ...) add stages after the workers,
    which run in this process, on the CPU; ``rebatched`` is the fast way to shuffle and batch again. Where a
    program requires torch's loader, ``mpwds.DataLoader(loader, batch_size=None)`` delivers the same.

    Workers start with the first epoch and stay until :meth:`close`, the end of a ``with`` block, the
    loader's collection or the end of this process, however it ends. In an interactive session, ``iter()``
    restarts them if the dataset, or a global variable or function that its code calls, has changed. It warns
    if a function that was handed to the pipeline has been defined again since: make the dataset again, too.
    Use a loader in one thread at a time, and not in a fork of its process.

    Args:
        dataset: A pipeline of this package (its shards are split over the workers); a map-style dataset or
            list (split by index); or any other iterable, torch ``IterableDataset``,
            ``webdataset.WebDataset`` or function that returns an iterator. Each worker iterates all of the
            latter, which divide themselves by ``torch.utils.data.get_worker_info()`` or the variables
            ``WORKER`` and ``NUM_WORKERS``. All workers share one copy of the dataset's arrays and tensors;
            those in shared memory or a mapped file are not copied (see :func:`mpwds.share`).
        workers: Number of worker processes. 0 does the work in this process, with the results of one worker.
        in_order: Workers take turns: the order depends only on dataset, seed, epoch, and the numbers of ranks
            and workers. Otherwise the first batch to arrive is next, and a slow worker does not delay others.
        prefetch: Batches that each worker prepares ahead (of batches up to 32 kB, about 200 kB). If the loop
            keeps more than ``prefetch + 1`` batches of one worker, further ones are copied out of its memory.
        start_method: ``"spawn"`` starts fresh interpreters. ``"forkserver"`` forks one fresh interpreter
            that has imported what the dataset needs, which is faster. ``"fork"`` forks this process. ``None``
            is ``"forkserver"``; or ``"spawn"`` if a module that the dataset needs starts threads, opens files
            or makes random generators when it is imported; or, with a warning, ``"fork"`` if the dataset
            cannot be pickled.
        timeout: Seconds to wait for a batch before :class:`~mpwds.errors.WorkerTimeout`; ``None`` waits
            for ever.
        output: Arrays become ``"torch"`` tensors, ``"numpy"`` arrays or ``"jax"`` arrays, which share
            NumPy's memory where jax can (see ``mpwds.loader.output``).
        seed: Overrides the dataset's seed. For datasets that are not pipelines of this package, it seeds
            ``random``, ``numpy.random`` and torch in each worker and epoch (``None`` counts as 0).
        persistent: Keep workers between epochs.
        on_worker_death: When a worker is killed or exits, ``"raise"`` :class:`~mpwds.errors.WorkerDied`, or
            ``"restart"`` it with a warning: a new process continues where it was, so every element comes
            once, in the same order if ``in_order``. Three deaths in a row before the same batch are an error.
        even: With several ranks (processes that train together), each gets the same number of batches in an
            epoch, also after stages. ``"drop"``: as many as the rank with the fewest has. ``"pad"``: as many
            as the rank with the most has; the others deliver their last batch again. ``"wrap"``: the same,
            but the others make another pass in another order, through other shards if these are shuffled. The
            last batch may be smaller on some ranks. Where the numbers are not known in advance, the ranks
            agree on them by ``torch.distributed``: all of them have to iterate the loader, and up to 5
            batches are made ahead. See ``docs/guides/training/distributed.md``. With ``streams``, each stream
            gets the same number of batches, so that they are the same ones on any number of ranks.
        pin_memory: Deliver tensors in pinned memory, so that ``tensor.to(device, non_blocking=True)`` does
            not wait. Dropping a batch's last tensor records an event on the current streams, and the memory
            is reused once that completes: if you copy on another stream, drop the batch there too (inside
            ``with torch.cuda.stream(...)``), or use ``device``. Without CUDA, or if it refuses, there is one
            warning, and nothing is pinned.
        device: Deliver tensors on this CUDA device (``"cuda"``, ``"cuda:1"``, a ``torch.device``), copied
            from pinned memory on their own stream, up to ``prefetch`` batches ahead; other objects stay as
            they are. ``"cpu"`` is the same as ``None``. Behind stages, ``device``, ``pin_memory`` and
            ``output="jax"`` apply to the elements of the last one.
        progress: Show a line with the batches delivered, samples per second and the bottleneck that
            :meth:`stats` finds. Needs tqdm (``pip install 'mpwds[progress]'``).
        streams: Deal the dataset, which must be a pipeline of this package, to so many streams for all ranks
            together. A stream has its own shards, ``shuffle`` buffer, random numbers and state, and workers
            only carry them. So the order does not depend on the numbers of workers and ranks, and a state can
            be loaded under others: see ``docs/guides/training/elastic.md``. The number of ranks must divide
            it, and a rank has at most as many workers as streams. With ``in_order=False``, a worker that is
            free takes the next stream. ``None`` makes one for each worker.
        remote: Servers (``mpwds serve``) of the same dataset, whose workers make parts of the epoch beside
            this machine's ``workers``: URLs, or what else ``RemoteLoader`` takes as ``urls``.
        keys: Folder with the keys for them.

    Raises:
        ValueError: An argument is out of range, a switch is not a boolean, or ``pin_memory`` or ``device``
            was combined with an ``output`` other than ``"torch"``.
        RuntimeError: This machine has no such ``device``.
        TypeError: ``dataset`` is not iterable.
        ImportError: The package that ``output`` needs, or tqdm for ``progress``, is not installed.

    While iterating:
        The exception of a stage: raised here with its own type, the worker's traceback as its cause.
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

    workers: int
    in_order: bool
    prefetch: int
    timeout: float | None
    output: FinalOutput
    seed: int | None
    even: Even | None
    pin_memory: bool
    device: Any
    progress: bool
    streams: int | None
    _cuda: ClassVar[CudaAccess | None] = None  # torch's
    _setup_class: ClassVar[type[WorkerSetup]] = WorkerSetup
    _remote: Any = None  # servers that have some of its workers: ``feed.client.remote_loader.Remote``

    @suggest_arguments
    def __init__(
        self,
        dataset: Any,
        workers: int = 4,
        *,
        in_order: bool = True,
        prefetch: int = 2,
        start_method: str | None = None,
        timeout: float | None = None,
        output: FinalOutput = "torch",
        seed: int | None = None,
        persistent: bool = True,
        on_worker_death: OnWorkerDeath = "raise",
        even: Even | None = None,
        pin_memory: bool = False,
        device: Any = None,
        progress: bool = False,
        streams: int | None = None,
        remote: str | Sequence[str] | Callable[[], Sequence[str]] | None = None,
        keys: str | os.PathLike[str] | None = None,
    ) -> None:
        self._options = checks.options_of(LoaderOptions, locals())
        vars(self).update(vars(self._options))
        self.dataset = as_dataset(dataset)
        if self.streams is not None:
            from mpwds.loader.resume.streams import check_streams

            check_streams(self.dataset, self.streams, self.workers, self.even, self.in_order)
        if self._options.remote is not None:
            connect = service("workers_of_servers")
            self._remote = self._remote or connect(self.dataset, self._options)  # a copy has it
            self.workers += len(self._remote.slots)
        self._converter: OutputConverter | None = None
        if self.output == "jax" or self.device is not None or self.pin_memory:
            from mpwds.loader.output import OutputConverter

            self._converter = OutputConverter(
                self.output, self.device, self.pin_memory, self.prefetch, self._cuda
            )
        if self.progress:
            from mpwds.stats.progress_bar import require_tqdm

            require_tqdm()
        received: Output = "numpy" if self.output == "jax" else self.output
        copies = CopiedBatches(None if self._converter is None else self._converter.pinning)
        self._epoch = 0
        self._position = LoaderPosition()
        self._iterations: WeakSet[EpochIterator] = WeakSet()
        self._group = self._make_group(received, copies)
        count_buffered = functools.partial(buffered_by, self.dataset, self.streams, self.workers)
        self._statistics = StatsCollector(self._group, count_buffered, in_order=self.in_order)
        self._finalizer = weakref.finalize(self, finish, self._iterations, self._group)
        if self._remote is not None:
            self._remote.watch(self)

    def _make_group(self, output: Output, copies: CopiedBatches) -> WorkerGroup:
        options = replace(self._options, workers=max(self.workers, 1))
        make = functools.partial(make_setup, self.dataset, options, self._setup_class)
        if self.workers == 0:
            from mpwds.loader.engine.in_process import InProcessGroup

            return InProcessGroup(make, output, copies)
        make_group = WorkerGroup if self._remote is None else self._remote.group
        launcher = launcher_of(self._options.start_method)
        return make_group(make, launcher, output, copies, warn_of_copies=self.even is None)

    @shortened
    def __iter__(self) -> Iterator[Any]:
        """Begins the next epoch, and ends the one before if it is unfinished."""
        if self._makes_rounds:
            with beginning(self, self._position) as epoch:
                batches = self._begin_rounds(epoch)
        else:
            batches = self._iterate(self._begin, self._count, self._position, self.workers)
        return DeliveredCounter(batches, self._position.last) if self._takes_ahead() else batches

    def _begin(self, epoch: int, _takes_ahead: bool) -> Iterator[Any]:
        batches = self._iterate_workers(epoch)
        if self._takes_ahead() and not is_repetition(epoch):
            batches.progress.take_ahead()
        return self._convert(batches)

    def _begin_rounds(self, epoch: int) -> Iterator[Any]:
        from mpwds.loader.rounds import in_rounds

        assert self.even is not None
        assert self.streams is not None
        here = self._here(epoch)
        batches = self._iterate_workers(epoch, after_end="" if self.even == "drop" else self.even)
        batches.progress.take_ahead()
        return self._convert(in_rounds(batches, self.even, self.dataset, self.streams, here, self.timeout))

    @property
    def _makes_rounds(self) -> bool:
        """True if streams are made equally long, whatever the number of ranks."""
        return self.streams is not None and self.even is not None

    def _takes_ahead(self) -> bool:
        to_device = self._converter is not None and self._converter.to_device is not None
        return to_device or self._makes_rounds or self._is_even()

    def _iterate_workers(
        self,
        epoch: int,
        progress: EpochProgress | None = None,
        after_end: AfterEnd = "",
        staged: bool = False,
    ) -> EpochIterator:
        leave_all(self._iterations, "another iteration of this loader has begun")
        progress = self._position.begin(self, epoch, progress)
        progress.after_end = after_end
        times = self._times()
        self._statistics.begin(times, epoch)
        iterator = EpochIterator(
            self,
            progress,
            times,
            self._group,
            in_order=self.in_order and not takes_any_order(self.dataset),
            timeout=self._options.timeout,
            persistent=self._options.persistent,
            restarts=self._options.on_worker_death == "restart" and self.workers > 0,
            moves_streams=self.streams is not None and self.workers > 0,
            staged=staged,
        )
        self._iterations.add(iterator)
        for _ in zip(range(progress.passed), iterator, strict=False):
            pass
        return iterator

    def _convert(self, elements: EpochBatches, staged: bool = False) -> Iterator[Any]:
        return elements if self._converter is None else self._converter.converted(elements, staged)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers that run on this machine; empty before the first epoch and after
        :meth:`close`. The statistics have those of servers, too: :meth:`stats` lists all ``workers``."""
        return self._group.pids

    def compose(self, *stages: Any) -> Any:
        """The loader with stages after it: see :meth:`mpwds.DataPipeline.compose`."""
        return LoaderPipeline(self).compose(*stages)

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> LoaderPipeline:
        """Makes an epoch of this many elements. See :meth:`mpwds.DataPipeline.with_epoch`."""
        extended = LoaderPipeline(self).with_epoch(nsamples, nbatches)
        warn_if_dropped(MultiLoader, extended.given_epochs)
        return extended

    def repeat(self, nepochs: int = -1, nbatches: int = -1) -> LoaderPipeline:
        """Makes an epoch of ``nepochs`` epochs of the workers. See :meth:`mpwds.DataPipeline.repeat`."""
        extended = LoaderPipeline(self).repeat(nepochs, nbatches)
        warn_if_dropped(MultiLoader, extended.given_epochs)
        return extended

    def with_length(self, n: int, silent: bool = False) -> LoaderPipeline:
        """Makes ``len()`` return ``n``. See :meth:`mpwds.DataPipeline.with_length`."""
        warn_if_dropped(MultiLoader, f"with_length({n})")
        return LoaderPipeline(self).with_length(n, silent)

    def __len__(self) -> int:
        """Elements in an epoch of this rank, or the ``len()`` of a dataset that has one.

        With ``even`` it is the same on all ranks.

        Raises:
            TypeError: The number is not known without running the epoch; the message says why.

        Example:
            >>> from mpwds import MultiLoader
            >>> len(MultiLoader(range(10), workers=2))
            10
        """
        if self.even is not None and self.streams is not None:
            from mpwds.loader.rounds import even_length

            return even_length(self.even, self.dataset, self.streams, self._here(self._epoch))
        return self._length_of(self._count)

    def __bool__(self) -> bool:
        return True  # and does not ask for the length

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``iter()`` epoch number ``epoch``. Without it, epochs count up from 0."""
        epoch = checks.integer("MultiLoader", "epoch", epoch, at_least=0)
        self._position.set_epoch()
        self._epoch = epoch

    def stats(self, since: Since = "epoch") -> LoaderStats:
        """Batches delivered, the trainer's waiting, the workers' work, and the bottleneck, at any time.

        Args:
            since: ``"epoch"`` counts since the last epoch began, ``"start"`` since the loader was made.

        Raises:
            ValueError: ``since`` has another value.

        Example:
            >>> from mpwds import MultiLoader
            >>> with MultiLoader([1, 2, 3], workers=2) as loader:
            ...     batches = list(loader)
            >>> stats = loader.stats()
            >>> stats.batches, [worker.batches for worker in stats.workers]
            (3, [2, 1])
        """
        return self._statistics.stats(since)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last element delivered; when the loop has ended, the next epoch's start.

        Call it at any time between two ``next()``, also after ``break`` or an error.

        Returns:
            A dict that can be saved by pickle, JSON or msgpack. It holds, for each worker, the number of
            elements delivered, and the state of its pipeline about a second ago (3 kB for a ``shuffle``, and
            some 10 bytes for each element that the pipeline holds).

        Example:
            >>> loader = MultiLoader([10, 20, 30], workers=0, output="numpy")
            >>> for element in loader:
            ...     break
            >>> loader.load_state_dict(loader.state_dict())
            >>> [int(element) for element in loader]
            [20, 30]
        """
        return self._position.state_dict(self)

    @shortened
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next ``iter()`` continue where ``state_dict`` was saved, by this loader or one like it.

        The workers repeat and drop their work since the last state, about a second. They run the epoch again
        from its start, with a warning, if the dataset has no state (it is a pipeline with a stage that is a
        plain function of an iterator; or it is no pipeline of this package, and neither it nor its iterator
        has ``state_dict()`` and ``load_state_dict(state)``), or if the state is another rank's (some trainers
        save one for all). An ``iter()`` that raises leaves the loaded state to the next one.

        Args:
            state_dict: What ``state_dict()`` returned, possibly after a round trip through JSON or msgpack.

        Raises:
            ValueError: The state is of another version, or of a loader with another number of workers or
                ranks, another seed, ``in_order`` or dataset; or of another rank, with ``in_order=False``.
                Functions of a pipeline are compared by their names, lambdas by their code.
        """
        leave_all(self._iterations, "a state was loaded")
        self._epoch = self._position.load(self, state_dict)

    def warm_up(self, *, wait: bool = True, timeout: float | None = None) -> None:
        """Starts the workers now, unless they run already.

        Args:
            wait: Return when all of them have imported and unpickled the dataset; otherwise at once, even if
                no worker runs yet because its modules are being imported.
            timeout: Seconds to wait for them; ``None`` waits for ever.

        Raises:
            Exception: What unpickling the dataset raised in a worker.
            WorkerDied, WorkerTimeout: A worker ended, or was not ready within ``timeout`` seconds.
            TypeError: The dataset cannot be sent to workers in the way that ``start_method`` says.

        Example:
            >>> with MultiLoader([1, 2], workers=2) as loader:
            ...     loader.warm_up()
            ...     len(loader.worker_pids)
            2
        """
        checks.timeout("warm_up", timeout)
        if self.workers == 0:
            return
        try:
            self._group.start(wait)
            if wait:
                self._group.wait_until_ready(timeout)
        except BaseException as error:
            self.close()
            shorten(error)
            raise

    def close(self) -> None:
        """Ends the workers, within about half a second. Iterating again starts new ones."""
        leave_all(self._iterations, "the loader was closed")
        self._group.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are loaders with the same options and no workers yet."""
        return make_copy, (type(self), copy.copy(self._remote), (self.dataset,), vars(self._options))

    def __repr__(self) -> str:
        return self._as_called() + self._in_short()

    def _as_called(self) -> str:
        return f"MultiLoader({self.dataset!r}, workers={self.workers})"

    def _times(self) -> ConsumerTimer:
        if not self.progress:
            return ConsumerTimer()
        from mpwds.stats.progress_bar import ShownTimer

        return ShownTimer(self)

    def _in_short(self) -> str:
        """The part of ``repr`` about a loader that has run."""
        stats = self.stats()
        return f"  # {stats.in_short}" if stats.batches else ""

    def _iterate(
        self,
        begin: Callable[[int, bool], Iterator[Any]],
        count: CountOf,
        position: LoaderPosition,
        workers: int = 0,
    ) -> Iterator[Any]:
        """Begins the next epoch, an even one if the loader asks for that: ``window_of(workers)`` at once."""
        with beginning(self, self._position, position) as epoch:
            if self.even is None or not self._is_even():
                return begin(epoch, False)
            from mpwds.loader.even import evened, window_of

            here = self._here(epoch)
            delivered, has_moved = position.delivered_before(epoch), position.has_moved(epoch)
            window = window_of(workers)
            return evened(self.even, here, begin, count, delivered, has_moved, self.timeout, window)

    def _count(self, context: Context, exact: bool) -> int:
        return count_delivered(self.dataset, self._contexts(context), exact).elements

    def _contexts(self, context: Context) -> list[Context]:
        if (
            self._remote is not None
            and self.streams is None
            and context.rank != Context.current().rank
            and not self._remote.is_alike_on_ranks
        ):
            raise LengthUnknown(
                "servers may give another rank another number of workers (pass streams=, or workers= and a "
                "fixed list of servers)"
            )
        return contexts_of(self.streams, self.workers, context)

    def _length_of(self, count: CountOf) -> int:
        here = self._here(self._epoch)
        if self.even is None:
            return count(here, False)
        from mpwds.loader.even import even_length

        return even_length(self.even, count, here)

    def _here(self, epoch: int) -> Context:
        return replace(Context.current(epoch), seed=self.seed)

    def _is_even(self) -> bool:
        """True if the loader makes its epochs even on all ranks."""
        if self.even is None:
            return False
        from mpwds.loader.even import world_size

        return world_size() > 1


class LoaderPipeline(Prefetching, Rebatching, DataPipeline):
    """A loader with stages after it, made by the methods of ``MultiLoader`` that are named after stages.

    Stages run in this process. Each ``iter()`` is the loader's next epoch, and ends an unfinished one of the
    loader and of other pipelines after it. ``set_epoch``, ``close`` and the end of a ``with`` block act on
    the loader, which the pipeline keeps alive. A pickled copy has its own loader.

    Attributes:
        loader: The loader.

    Example:
        >>> from mpwds import MultiLoader
        >>> numbers = DataPipeline(range(8)).batched(2)
        >>> with MultiLoader(numbers, workers=2, output="numpy").unbatched().batched(4) as loader:
        ...     [batch.tolist() for batch in loader]
        [[0, 2, 1, 3], [4, 6, 5, 7]]
    """

    def __init__(self, loader: MultiLoader) -> None:
        super().__init__(LoaderSource(loader), seed=seed_of(loader))
        self.loader = loader
        self._call = loader._as_called()
        self._position = LoaderPosition()

    @shortened
    def __iter__(self) -> Iterator[Any]:
        loader, position = self.loader, self._position
        elements = loader._iterate(self._begin, self._count, position)
        return DeliveredCounter(elements, position.last) if loader._is_even() else elements

    def _begin(self, epoch: int, takes_ahead: bool) -> Iterator[Any]:
        from mpwds.loader.stages import StagesIterator

        loader, stream = self.loader, self.stream(Context.current(epoch))
        if not is_repetition(epoch):  # another pass, to make an epoch even
            # A later step may take elements ahead, and counts those that the program gets.
            got = self._position.delivered_before(epoch) if loader._is_even() else None
            if (loaded := self._position.take_loaded(epoch)) is not None:
                stream.load_state_dict(loaded)
            stream.got, stream.keeps_states, self._position.last = got, takes_ahead, stream
        loader._statistics.times.runs_ahead = any(stage.runs_ahead for stage in self.stages)
        elements = StagesIterator(stream.elements(), lambda: loader._statistics.times)
        return loader._convert(elements, staged=True)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``iter()`` of the loader, with or without stages, epoch ``epoch``."""
        self._position.set_epoch()
        self.loader.set_epoch(epoch)

    def stream(self, context: Context = ALONE) -> StagesStream:
        from mpwds.loader.stages import StagesStream

        loader = self.loader
        if context.watch is None:
            context = replace(context, watch=loader._statistics.watch)
        if loader.streams is None:
            context = context.of_own_elements()
        same_order = keeps_order(loader) and not any(map(takes_any_order, (loader.dataset, self)))
        return StagesStream(self._starter(context), context.epoch, same_order)

    def compose(self, *stages: Any) -> LoaderPipeline:
        extended = super().compose(*stages)
        extended._position = LoaderPosition()
        return extended

    def state_dict(self) -> dict[str, Any]:
        """The position after the last element that was delivered: see :meth:`mpwds.MultiLoader.state_dict`.

        The dict also holds the stages' states, which name the batches and rows that stages hold: 10 bytes for
        each row of ``rebatched``'s pool, 25 for each of ``shuffle``.
        """
        return self._position.state_dict(self.loader, self._described())

    @shortened
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next ``iter()`` continue where ``state_dict`` was saved, by this pipeline or one like it.

        The workers make the batches again that stages hold rows of. The epoch runs again from its start, with
        a warning, if a stage is a plain function of an iterator or holds batches of ``rebatched``. With
        ``streams``, other ranks may go on with what stages hold of each stream, in another order.

        Raises:
            ValueError: As for :meth:`mpwds.MultiLoader.load_state_dict`; or the stages differ, or cannot go
                on on other ranks; or, in ``iter()``, the epoch would have to run again although
                ``in_order=False`` changes its order, or other ranks began it.
        """
        self.loader._epoch = self._position.load(self.loader, state_dict, self._described())

    def _described(self) -> list[str]:
        from mpwds.loader.resume.description import described_stages

        return described_stages(self.stages, self.given_epochs)

    def warm_up(self, *, wait: bool = True, timeout: float | None = None) -> None:
        """Starts the loader's workers now: see :meth:`mpwds.MultiLoader.warm_up`."""
        self.loader.warm_up(wait=wait, timeout=timeout)

    def stats(self, since: Since = "epoch") -> LoaderStats:
        """The loader's statistics: see :meth:`mpwds.MultiLoader.stats`. The stages took ``stages_s``."""
        return self.loader.stats(since)

    def __repr__(self) -> str:
        return super().__repr__() + self.loader._in_short()

    def __len__(self) -> int:
        """Elements in an epoch, as those of a ``MultiLoader``, or the length set by ``with_length``."""
        if self.given_length is not None:
            return self.given_length
        return self.loader._length_of(self._count)

    def _count(self, context: Context, exact: bool) -> int:
        epochs = self.given_epochs
        if epochs.repetitions is None and epochs.limit is not None:
            return epochs.limit
        count = count_delivered(self.loader.dataset, self.loader._contexts(context), exact)
        return epochs.count_of(self.stages, count).elements


class LoaderSource:
    addressable = False  # batches are fetched only while a state of this pipeline itself is loaded

    def __init__(self, loader: MultiLoader) -> None:
        self._loader = loader

    def __str__(self) -> str:
        return self._loader._as_called()

    def close(self) -> None:
        self._loader.close()

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        from mpwds.loader.stages import LoaderStream

        loader = self._loader
        if context.workers > 1:
            raise not_for_workers(self)
        remakes = not takes_any_order(loader.dataset)
        numbers = own_streams(loader.streams, loader.workers, context)
        return LoaderStream(
            lambda progress: loader._iterate_workers(context.epoch, progress, staged=True), numbers, remakes
        )


def contexts_of(streams: int | None, workers: int, here: Context) -> list[Context]:
    """The contexts of the streams that a loader carries on this rank."""
    own = own_streams(streams, workers, here)
    if streams is None:
        return [replace(here, worker=stream, workers=len(own)) for stream in own]
    return [replace(here.alike_on_ranks(), worker=stream, workers=streams) for stream in own]


def buffered_by(dataset: Any, streams: int | None, workers: int) -> int:
    """Elements that the buffers of all streams of a loader hold, at the most."""
    if not isinstance(dataset, Part):
        return 0
    return sum(map(dataset.capacity, contexts_of(streams, workers, Context.current())))


def make_copy(
    kind: type[MultiLoader], remote: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> MultiLoader:
    """A loader with the servers of another one, which are not connected to yet."""
    loader = kind.__new__(kind)
    loader._remote = remote
    loader.__init__(*arguments, **options)  # type: ignore[misc]  # it has none of its own
    return loader


def make_setup(
    dataset: Any, options: LoaderOptions, setup_class: type[WorkerSetup] = WorkerSetup
) -> WorkerSetup:
    """The setup of a loader's workers, for this process' rank."""
    here = Context.current()
    blocks = options.prefetch + BLOCKS_OF_CONSUMER
    ahead = 0
    if options.even is not None and options.streams is not None:
        ahead = options.streams // here.world_size if options.even == "drop" else 1
    elif options.even is not None and here.world_size > 1:
        from mpwds.loader.even import window_of

        ahead = window_of(options.workers) + 1
    blocks += -(-ahead // options.workers)
    blocks = min(blocks, MOST_BLOCKS)
    place = here.rank, here.world_size, options.seed, options.streams
    return setup_class(dataset, options.workers, blocks, *place)
