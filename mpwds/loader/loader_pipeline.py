"""Stages behind a loader, which run in the process that iterates it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpwds.loader.lengths import count_behind, count_delivered
from mpwds.loader.output.one_thread import OneThread
from mpwds.loader.ranks.even import Even, even_length, is_to_be_even
from mpwds.loader.resume.position import CountOnYield, LoaderPosition, PipelinePosition
from mpwds.loader.resume.progress import EpochProgress
from mpwds.loader.resume.resumable_stream import LoaderIterator, LoaderStream, ResumableStream
from mpwds.loader.stats.collector import Since
from mpwds.loader.stats.trainer_times import TrainerTimes, clocked
from mpwds.mistakes import explained
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.fluent import Composable, Fluent, Self
from mpwds.pipeline.parts import culprit, in_any_order
from mpwds.pipeline.stream import Stage, Stream

if TYPE_CHECKING:
    from mpwds.loader.stats.stats import LoaderStats


@explained
class Rebatching(Composable):
    """Base of loaders, and of what is behind them, for the stage that they have alone."""

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
        """Makes batches of another size, of random rows: the fast form of unbatched, shuffle and batched.

        Rows are copied in this process, whole batches at a time: into a pool of ``shuffle`` rows, and from
        there into their new batches, whose memory is used again when nothing refers to them any more. Workers
        get their memory back as soon as its rows are in the pool.

        Args:
            batchsize: Rows of a new batch.
            shuffle: Rows in the pool; below 2, their order stays as it is.
            drop_last: Whether rows that are left at the end, too few for a batch, are dropped; else they make
                a smaller one.
            initial: Rows to take in before the first is drawn (from then on two for each that is drawn, until
                the pool is full).
            seed: Determines the order, with the epoch; the loader's or the dataset's by default.
            pin_memory: Whether tensors lie in pinned memory. By default they do if this process has used CUDA
                by the time a batch is made, as it has if the loader pins memory or delivers to a device.

        Raises:
            ValueError: A number is out of range, or ``drop_last`` or ``pin_memory`` is not a boolean.
            TypeError: A number is not an integer.

        While iterating:
            ``ValueError``, ``TypeError``: An element that the workers deliver is not a batch, or its rows
            differ in shape or dtype from those before.
            :class:`~mpwds.errors.SharedMemoryError`: There is no memory for the pool or a batch.

        Example:
            >>> from mpwds import MultiLoader
            >>> samples = DataPipeline(range(10)).map(lambda n: (n, str(n))).batched(4)
            >>> with MultiLoader(samples, workers=1).rebatched(5, shuffle=10) as loader:
            ...     batches = list(loader)
            >>> sorted(number for numbers, names in batches for number in numbers.tolist())
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
            >>> len(batches[0][1])
            5
        """
        from mpwds.loader.rebatch.rebatched import Rebatched

        return self.compose(Rebatched(batchsize, shuffle, drop_last, initial, seed, pin_memory))


class LoaderPipeline(Rebatching, DataPipeline):
    """What a loader delivers, passed through stages that run here.

    The methods of ``MultiLoader`` that are named after stages make one. It is the loader with stages: each
    ``iter()`` is the loader's next epoch, and ends an unfinished one of the loader and of other pipelines
    behind it; ``set_epoch`` and ``close`` are the loader's, and so is the end of a ``with`` block. It keeps
    the loader alive. A pickled copy has a loader of its own. Stages run on the CPU: the loader's ``device``,
    and ``output="jax"``, are for what the last one yields.

    Args:
        loader: The loader.

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
        self._position = PipelinePosition()

    def __iter__(self) -> Iterator[Any]:
        loader = self.loader
        epoch = loader._next_epoch()
        if loader.even is None or not is_to_be_even(loader):
            return self._begin(epoch)
        from mpwds.loader.ranks.even_iterator import evened

        delivered = self._position.handed_over(epoch)
        elements = evened(loader, loader.even, epoch, self._begin, self._count, delivered)
        return CountOnYield(elements, self._position.run)

    def _begin(self, epoch: int) -> Iterator[Any]:
        elements = clocked(self._position.iterate(self, self.loader, epoch), self.loader._clock)
        return self.loader._hand_out(OneThread(elements), staged=True)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``iter()`` of the loader, with or without stages, epoch number ``epoch``."""
        self._position.set_epoch()
        self.loader.set_epoch(epoch)

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        from mpwds.loader.rebatch.rebatched import Rebatched

        loader = self.loader
        if context.watch is None:
            context = replace(context, watch=loader._watch)
        same_order = (loader.in_order and not in_any_order(loader.dataset)) or loader.workers < 2
        culprits = (culprit(stage) for stage in self.stages if not isinstance(stage, Rebatched))
        return ResumableStream(self._starter(context), same_order, next(filter(None, culprits), None))

    def _run_as(self, stages: list[Stage]) -> list[Stage]:
        from mpwds.loader.rebatch.regrouped import regrouped

        return regrouped(stages)

    def compose(self, *stages: Any) -> LoaderPipeline:
        extended = super().compose(*stages)
        extended._position = PipelinePosition()
        return extended

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration stands: behind the last element that was delivered; as of ``MultiLoader``.

        The dict holds, beside the states of the workers, those of the stages: of what a stage holds it names
        the batches and rows that it came in (some 10 bytes for each row of ``rebatched``'s pool, 15 for each
        element of ``shuffle``).

        Example:
            >>> from mpwds import MultiLoader
            >>> pipeline = MultiLoader(DataPipeline(range(8)).batched(4), workers=0).rebatched(3, shuffle=5)
            >>> whole = [batch.tolist() for batch in pipeline]
            >>> pipeline.set_epoch(0)
            >>> for batch in pipeline:
            ...     break
            >>> pipeline.load_state_dict(pipeline.state_dict())
            >>> [batch.tolist() for batch in pipeline] == whole[1:]
            True
        """
        return self._position.state_dict(self, self.loader)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next ``iter()`` go on where ``state_dict`` was saved, by this pipeline or one like it.

        The workers make the batches again that stages hold rows of, and what came since. A stage that is a
        plain function of an iterator, or holds what ``rebatched`` made, takes a run through the epoch from
        its start; one warning says so.

        Args:
            state_dict: What ``state_dict()`` returned, possibly after a round trip through JSON or msgpack.

        Raises:
            ValueError: The state is of another version, or of a loader that has other stages, workers, ranks
                or seeds, or another dataset; or, in ``iter()``, the epoch would have to be run again and
                ``in_order=False`` gives another order each time.
        """
        self._position.load(self, self.loader, state_dict)

    def warm_up(self, *, wait: bool = True, timeout: float | None = None) -> None:
        """Starts the loader's workers now: see :meth:`mpwds.MultiLoader.warm_up`.

        Args:
            wait: Return when all of them are ready; otherwise at once.
            timeout: Seconds to wait for them; ``None`` waits for ever.

        Raises:
            Exception: Whatever hinders them.
        """
        self.loader.warm_up(wait=wait, timeout=timeout)

    def stats(self, since: Since = "epoch") -> LoaderStats:
        """The loader's ``stats``. ``stages_s`` is the time of the stages that run here.

        Args:
            since: Of the loader's last epoch that began (``"epoch"``), or of all (``"start"``).

        Raises:
            ValueError: ``since`` is neither.
        """
        return self.loader.stats(since)

    def __repr__(self) -> str:
        return super().__repr__() + self.loader._in_short()

    def __len__(self) -> int:
        """Elements in an epoch of this rank, or what ``with_length`` says.

        With the loader's ``even`` it is the same on all ranks.

        Raises:
            TypeError: It cannot be known without running the epoch; the message says because of what.

        Example:
            >>> from mpwds import MultiLoader
            >>> len(MultiLoader(DataPipeline(range(100)).batched(10), workers=2).rebatched(32))
            4
        """
        if self._length is not None:
            return self._length
        return even_length(self.loader.even, self._count)

    def _count(self, context: Context, *, exact: bool = False) -> int:
        epochs = self._epochs
        if epochs.repetitions is None and epochs.limit is not None:
            return epochs.limit
        loader = self.loader
        count = count_delivered(loader.dataset, loader.workers, context, exact=exact)
        return count_behind(self.stages, epochs, count).elements


class LoaderStages(Rebatching, Fluent):
    """The part of a loader that puts stages behind it. Each method returns a :class:`LoaderPipeline`."""

    dataset: Any
    workers: int
    in_order: bool
    timeout: float | None
    seed: int | None
    even: Even | None
    _epoch: int
    _position: LoaderPosition

    def compose(self, *stages: Any) -> Any:
        """The loader with stages behind it.

        Args:
            stages: As those of a ``DataPipeline``.

        Raises:
            TypeError: One is no stage.

        Example:
            >>> from mpwds import MultiLoader
            >>> def doubled(source):
            ...     return (2 * element for element in source)
            >>> with MultiLoader([1, 2], workers=1).compose(doubled) as loader:
            ...     list(map(int, loader))
            [2, 4]
        """
        return LoaderPipeline(self).compose(*stages)

    def with_epoch(self, nsamples: int = -1, nbatches: int = -1) -> LoaderPipeline:
        """Makes an epoch of this many elements: the workers' epochs follow each other as long as that takes.

        Args:
            nsamples: Elements in an epoch; below 0, an epoch has no end.
            nbatches: The same; the larger of the two counts.

        Raises:
            ValueError: It is 0.

        Example:
            >>> from mpwds import MultiLoader
            >>> with MultiLoader([1, 2, 3], workers=1).with_epoch(5) as loader:
            ...     list(map(int, loader))
            [1, 2, 3, 1, 2]
        """
        return LoaderPipeline(self).with_epoch(nsamples, nbatches)

    def repeat(self, nepochs: int = -1, nbatches: int = -1) -> LoaderPipeline:
        """Makes an epoch of ``nepochs`` epochs of the workers.

        Args:
            nepochs: Number of these; without end below 1.
            nbatches: Elements after which it ends all the same; no limit below 0.

        Raises:
            ValueError: ``nbatches`` is 0.

        Example:
            >>> from mpwds import MultiLoader
            >>> with MultiLoader([1, 2], workers=1).repeat(2) as loader:
            ...     list(map(int, loader))
            [1, 2, 1, 2]
        """
        return LoaderPipeline(self).repeat(nepochs, nbatches)

    def with_length(self, n: int, silent: bool = False) -> LoaderPipeline:
        """Makes ``len()`` return ``n``, for programs that want to know a loader's length.

        Args:
            n: The length.
            silent: Whether to leave out the warning that it sets nothing else.

        Raises:
            ValueError: ``n`` is negative.

        Example:
            >>> from mpwds import MultiLoader
            >>> len(MultiLoader(lambda: iter("abc")).with_length(1000, silent=True))
            1000
        """
        return LoaderPipeline(self).with_length(n, silent)

    def __len__(self) -> int:
        """Elements in an epoch of this rank, or the dataset's length where it says one.

        With ``even`` it is the same on all ranks.

        Raises:
            TypeError: It cannot be known without running the epoch; the message says because of what.

        Example:
            >>> from mpwds import MultiLoader
            >>> len(MultiLoader(range(10), workers=2))
            10
        """
        return even_length(self.even, self._count)

    def __bool__(self) -> bool:
        return True  # and does not ask for the length

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``iter()`` epoch number ``epoch``."""

    @abstractmethod
    def warm_up(self, *, wait: bool = True, timeout: float | None = None) -> None:
        """Starts the workers before the first epoch."""

    @abstractmethod
    def close(self) -> None:
        """Ends the workers."""

    @abstractmethod
    def stats(self, since: Since = "epoch") -> LoaderStats:
        """What was delivered, and what it took."""

    @abstractmethod
    def _as_called(self) -> str:
        """The call that makes such a loader."""

    def _in_short(self) -> str:
        """What ``repr`` says of a loader that has run."""
        stats = self.stats()
        return f"  # {stats.in_short}" if stats.batches else ""

    @abstractmethod
    def _iterate(self, epoch: int, progress: EpochProgress | None = None) -> LoaderIterator:
        """The elements of an epoch, whichever is next by count.

        Args:
            epoch: Its number.
            progress: Where to begin; at its start, or where a state was loaded, by default.
        """

    @abstractmethod
    def _hand_out(self, elements: Iterator[Any], staged: bool = False) -> Iterator[Any]:
        """What the loader yields, or the last stage behind it (``staged``), as the program gets it."""

    @abstractmethod
    def _watch(self, part: Any, stream: Stream[Any], context: Context) -> Stream[Any]:
        """Watches a stage behind the loader: see ``Context.watch``."""

    @abstractmethod
    def _clock(self) -> TrainerTimes:
        """The clock of the epoch that began last."""

    def _next_epoch(self) -> int:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return epoch

    def _count(self, context: Context, *, exact: bool = False) -> int:
        count = count_delivered(self.dataset, self.workers, context, exact=exact)
        return count.elements


class _Loaded:
    """Source of a pipeline: what a loader delivers."""

    def __init__(self, loader: LoaderStages) -> None:
        self._loader = loader

    def __str__(self) -> str:
        return self._loader._as_called()

    def close(self) -> None:
        self._loader.close()

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        return LoaderStream(lambda progress: self._loader._iterate(context.epoch, progress))
