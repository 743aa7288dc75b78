"""Stages behind a loader, which run in the process that iterates it."""

from __future__ import annotations

import random
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpwds.loader.engine.epoch import TAKE_TURNS, EpochIterator
from mpwds.loader.engine.options import Even, integer
from mpwds.loader.ranks.lengths import CountOf, count_delivered, even_length
from mpwds.loader.resume.position import CountOnYield, LoaderPosition, Resumable, beginning
from mpwds.loader.resume.progress import EpochProgress
from mpwds.loader.resume.state import described_stages
from mpwds.pipeline.coercion import takes_any_order
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.fluent import Composable, Fluent, Self
from mpwds.pipeline.stream import Stream
from mpwds.stats.collector import ConsumerTimer, Since, StatsCollector
from mpwds.suggestions import suggest_arguments
from mpwds.tracebacks import shorten
from mpwds.warn import warn_if_dropped

if TYPE_CHECKING:
    from mpwds.loader.resume.resumable_stream import StagesStream
    from mpwds.stats.report import LoaderStats

_TIME_EVERY_NS = 100_000


@suggest_arguments
class Rebatching(Composable):
    """Base of loaders, and of pipelines behind them, for the stage that only they have."""

    def rebatched(
        self: Self,
        batchsize: int,
        shuffle: int = 0,
        drop_last: bool = False,
        *,
        initial: int = 100,
        seed: int | None = None,
        pin_memory: bool | None = None,
    ) -> Self:
        """Makes batches of another size from random rows: the fast form of unbatched, shuffle and batched.

        This process copies rows into a pool, and from there into new batches, whose memory is reused when
        nothing refers to them any more.

        Args:
            batchsize: Rows of a new batch.
            shuffle: Rows in the pool; below 2, the order stays as it is.
            drop_last: Drop the last batch if it is smaller.
            initial: Rows in the pool when the first is drawn; then two come in for each that is drawn.
            seed: Determines the order, with the epoch; the loader's or the dataset's by default.
            pin_memory: Put tensors into pinned memory; by default, if this process has used CUDA.

        Raises:
            ValueError: A number is out of range, or ``drop_last`` or ``pin_memory`` is not a boolean.
            TypeError: A number is not an integer.

        While iterating:
            ``ValueError``, ``TypeError``: An element of the workers is not a batch, or its rows differ from
            earlier ones. :class:`~mpwds.errors.SharedMemoryError`: Memory is too small.

        Example:
            >>> from mpwds import MultiLoader
            >>> samples = DataPipeline(range(10)).map(lambda n: (n, str(n))).batched(4)
            >>> with MultiLoader(samples, workers=1).rebatched(5, shuffle=10) as loader:
            ...     batches = list(loader)
            >>> sorted(number for numbers, names in batches for number in numbers.tolist())
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        """
        from mpwds.loader.rebatch.rebatched import Rebatched

        return self.compose(Rebatched(batchsize, shuffle, drop_last, initial, seed, pin_memory))


class LoaderPipeline(Rebatching, DataPipeline):
    """A loader with stages behind it, made by the methods of ``MultiLoader`` that are named after stages.

    Stages run in this process. Each ``iter()`` is the loader's next epoch, and ends an unfinished one of the
    loader and of other pipelines behind it. ``set_epoch``, ``close`` and the end of a ``with`` block act on
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

    def __init__(self, loader: LoaderStages) -> None:
        dataset = loader.dataset
        seed = dataset._seed if loader.seed is None and isinstance(dataset, DataPipeline) else loader.seed
        super().__init__(_Loaded(loader), seed=seed)
        self.loader = loader
        self._call = loader._as_called()
        self._position = LoaderPosition()

    def __iter__(self) -> Iterator[Any]:
        loader, position = self.loader, self._position
        try:
            elements = loader._iterate_evenly(self._begin, self._count, position)
        except (Exception, KeyboardInterrupt) as error:
            shorten(error)
            raise
        return CountOnYield(elements, position.last) if loader._is_even() else elements

    def _begin(self, epoch: int) -> Iterator[Any]:
        loader, stream = self.loader, self.stream(Context.current(epoch))
        elements = self._position.begin_stages(stream, ahead=loader._is_even())
        return loader._hand_out(StagesIterator(elements, lambda: loader._statistics.times), staged=True)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``iter()`` of the loader, with or without stages, epoch ``epoch``."""
        self._position.set_epoch()
        self.loader.set_epoch(epoch)

    def stream(self, context: Context = ALONE) -> StagesStream:
        from mpwds.loader.resume.resumable_stream import StagesStream

        loader = self.loader
        if context.watch is None:
            context = replace(context, watch=loader._statistics.watch)
        same_order = (loader.in_order and not takes_any_order(loader.dataset)) or loader.workers < 2
        return StagesStream(self._starter(context), context.epoch, same_order)

    def _run_as(self, stages: list[Filter]) -> list[Filter]:
        if len(stages) < 3:
            return stages
        from mpwds.loader.rebatch.regrouped import regrouped

        return regrouped(stages)

    def compose(self, *stages: Any) -> LoaderPipeline:
        extended = super().compose(*stages)
        extended._position = LoaderPosition()
        return extended

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last element that was delivered: see :meth:`mpwds.MultiLoader.state_dict`.

        The dict also holds the stages' states, which name the batches and rows that stages hold: 10 bytes for
        each row of ``rebatched``'s pool, 25 for each of ``shuffle``.
        """
        return self._position.state_dict(self.loader, self._described())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next ``iter()`` continue where ``state_dict`` was saved, by this pipeline or one like it.

        The workers make the batches again that stages hold rows of. The epoch runs again from its start, with
        a warning, if a stage is a plain function of an iterator or holds batches of ``rebatched``.

        Raises:
            ValueError: As for :meth:`mpwds.MultiLoader.load_state_dict`; or the stages differ; or, in
                ``iter()``, the epoch would have to run again although ``in_order=False`` changes its order.
        """
        self.loader._epoch = self._position.load(self.loader, state_dict, self._described())

    def _described(self) -> list[str]:
        return described_stages(self.stages, self._epochs)

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
        if self._length is not None:
            return self._length
        return even_length(self.loader.even, self._count)

    def _count(self, context: Context, exact: bool) -> int:
        epochs = self._epochs
        if epochs.repetitions is None and epochs.limit is not None:
            return epochs.limit
        count = count_delivered(self.loader.dataset, self.loader.workers, context, exact)
        return epochs.count_of(self.stages, count).elements


class LoaderStages(Rebatching, Fluent, Resumable):
    """The part of a loader that puts stages behind it, and what these use of the loader."""

    timeout: float | None
    even: Even | None
    _position: LoaderPosition
    _statistics: StatsCollector

    def compose(self, *stages: Any) -> Any:
        """The loader with stages behind it: see :meth:`mpwds.DataPipeline.compose`."""
        return LoaderPipeline(self).compose(*stages)

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> LoaderPipeline:
        """Makes an epoch of this many elements. See :meth:`mpwds.DataPipeline.with_epoch`."""
        extended = LoaderPipeline(self).with_epoch(nsamples, nbatches)
        warn_if_dropped(LoaderStages, extended._epochs)
        return extended

    def repeat(self, nepochs: int = -1, nbatches: int = -1) -> LoaderPipeline:
        """Makes an epoch of ``nepochs`` epochs of the workers. See :meth:`mpwds.DataPipeline.repeat`."""
        extended = LoaderPipeline(self).repeat(nepochs, nbatches)
        warn_if_dropped(LoaderStages, extended._epochs)
        return extended

    def with_length(self, n: int, silent: bool = False) -> LoaderPipeline:
        """Makes ``len()`` return ``n``. See :meth:`mpwds.DataPipeline.with_length`."""
        warn_if_dropped(LoaderStages, f"with_length({n})")
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
        return even_length(self.even, self._count)

    def __bool__(self) -> bool:
        return True  # and does not ask for the length

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``iter()`` epoch number ``epoch``. Without it, epochs count up from 0."""
        epoch = integer("MultiLoader", "epoch", epoch, at_least=0)
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

    @abstractmethod
    def warm_up(self, *, wait: bool = True, timeout: float | None = None) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _as_called(self) -> str:
        """The call that makes such a loader, for ``repr``."""

    @abstractmethod
    def _iterate(self, epoch: int, progress: EpochProgress | None = None) -> EpochIterator:
        """Begins an epoch: at a progress, by default at its start or where a state was loaded."""

    @abstractmethod
    def _hand_out(self, elements: Iterator[Any], staged: bool = False) -> Iterator[Any]:
        """The last step: converts elements, of the last stage if ``staged``, to the loader's output."""

    def _in_short(self) -> str:
        """The part of ``repr`` about a loader that has run."""
        stats = self.stats()
        return f"  # {stats.in_short}" if stats.batches else ""

    def _iterate_evenly(
        self, begin: Callable[[int], Iterator[Any]], count: CountOf, position: LoaderPosition
    ) -> Iterator[Any]:
        """Begins the next epoch, an even one if the loader asks for that."""
        with beginning(self, self._position, position) as epoch:
            if self.even is None or not self._is_even():
                return begin(epoch)
            from mpwds.loader.ranks.even import evened

            here = replace(Context.current(epoch), seed=self.seed)
            return evened(self.even, here, begin, count, position.handed_over(epoch), self.timeout)

    def _count(self, context: Context, exact: bool) -> int:
        return count_delivered(self.dataset, self.workers, context, exact).elements

    def _is_even(self) -> bool:
        """True if the loader makes its epochs even on all ranks."""
        if self.even is None:
            return False
        from mpwds.loader.ranks.even import world_size

        return world_size() > 1


class StagesIterator(Iterator[Any]):
    """The elements of the last stage behind a loader, for one thread at a time, and timed.

    Timing takes about a microsecond, more than small elements take. So an element is timed about every tenth
    of a millisecond, at random distances, and stands for those since the one before.
    """

    def __init__(self, elements: Generator[Any, None, None], clock: Callable[[], ConsumerTimer]) -> None:
        self._elements = elements
        self._clock = clock
        self._lock = threading.Lock()
        self._random = random.Random(0)  # of its own: a user's numbers stay as they are
        self._untimed = 0
        self._weight = 1
        self._since_ns = time.monotonic_ns()

    def __next__(self) -> Any:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(TAKE_TURNS)
        try:
            if self._untimed:
                self._untimed -= 1
                return next(self._elements)
            return self._timed()
        except (Exception, KeyboardInterrupt) as error:
            shorten(error)
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        self._elements.close()

    def _timed(self) -> Any:
        clock = self._clock()
        clock.stages_began()
        try:
            element = next(self._elements)
        finally:
            clock.stages_ended(self._weight)
        now_ns = time.monotonic_ns()
        each_ns = max(1.0, (now_ns - self._since_ns) / self._weight)
        # From 0 to twice the mean: what is done once in so many elements is neither always met nor never.
        self._untimed = int(self._random.uniform(0, 2 * _TIME_EVERY_NS / each_ns))
        self._weight, self._since_ns = 1 + self._untimed, now_ns
        return element


class _Loaded:
    """Source of a pipeline: the batches that a loader delivers."""

    def __init__(self, loader: LoaderStages) -> None:
        self._loader = loader

    def __str__(self) -> str:
        return self._loader._as_called()

    def close(self) -> None:
        self._loader.close()

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        from mpwds.loader.resume.resumable_stream import LoaderStream

        return LoaderStream(lambda progress: self._loader._iterate(context.epoch, progress))
