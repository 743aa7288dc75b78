"""WebLoader: a DataLoader with stages after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpwds.errors import shortened
from mpwds.loader.rebatching import Prefetching, Rebatching
from mpwds.loader.resume.description import described_stages
from mpwds.loader.resume.position import VERSION, check
from mpwds.loader.resume.progress import field_of
from mpwds.pipeline.coercion import takes_any_order
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.iterable_sources import IteratorStream, skip
from mpwds.pipeline.stream import Origin, Stream
from mpwds.stats.collector import Since
from mpwds.warn import warn

if TYPE_CHECKING:
    from mpwds.stats.report import LoaderStats


class WebLoader(Prefetching, Rebatching, DataPipeline):
    """Iterates a dataset with a ``DataLoader``; the stages added to it run in this process.

    Args:
        args: Arguments of the DataLoader.
        kw: Keyword arguments of the DataLoader.

    Attributes:
        loader: The DataLoader.

    Raises:
        ValueError, TypeError: As DataLoader, for arguments that cannot be combined.

    Source:
        ``webdataset.WebLoader``.

    Example:
        >>> dataset = DataPipeline(range(6)).batched(3)
        >>> loader = WebLoader(dataset, batch_size=None, num_workers=2)
        >>> sorted(map(int, loader.unbatched()))
        [0, 1, 2, 3, 4, 5]
        >>> [len(batch) for batch in loader.rebatched(4, shuffle=6)]
        [4, 2]
    """

    def __init__(self, *args: Any, **kw: Any) -> None:
        from mpwds.loader.dataloader.data_loader import DataLoader

        loader: DataLoader[Any] = DataLoader(*args, **kw)
        super().__init__(_Loaded(loader))
        self.loader = loader
        self._call = f"WebLoader({loader.dataset!r}, num_workers={loader.num_workers})"
        self._run: _Iteration | None = None
        self._resumed: _Iteration | None = None

    def __iter__(self) -> Iterator[Any]:
        epoch, resumed = self._epoch, self._resumed
        begun = self._start_of_next() if resumed is None else resumed.begun
        delivered = resumed.delivered if resumed is not None and resumed.epoch == epoch else 0
        try:
            elements = super().__iter__()
            if delivered:
                warn(
                    f"the stages after a WebLoader resume by running the first {delivered} elements of the "
                    "epoch again",
                    UserWarning,
                )
                skip(elements, delivered)
        except BaseException:
            if resumed is not None:  # the next attempt continues it, too
                self._epoch = epoch
                self.loader.load_state_dict(begun)
            raise
        run, self._resumed = _Iteration(epoch, begun, delivered), None
        self._run = run
        return run.counted(elements)

    def _starter(self, context: Context) -> Callable[[], Stream[Any]]:
        return super()._starter(context.of_own_elements())

    def set_epoch(self, epoch: int) -> None:
        """Makes the next ``iter()`` epoch number ``epoch``, also for the dataset and its samplers."""
        super().set_epoch(epoch)
        self.loader.set_epoch(epoch)

    def stats(self, since: Since = "epoch") -> LoaderStats:
        """See :meth:`mpwds.DataLoader.stats`. Stages that run here take part of ``elsewhere_s``."""
        return self.loader.stats(since)

    def compose(self, *stages: Any) -> WebLoader:
        extended = super().compose(*stages)
        extended._run = extended._resumed = None
        return extended

    def state_dict(self) -> dict[str, Any]:
        """The position in the epoch: without stages, the ``DataLoader``'s state.

        With stages it is the DataLoader's state at the epoch's start, and the number of elements delivered.

        Example:
            >>> loader = WebLoader(range(6), batch_size=2, shuffle=True).unbatched()
            >>> numbers = iter(loader)
            >>> first, state = int(next(numbers)), loader.state_dict()
            >>> state["delivered"], len(state["loader"]["generators"])
            (1, 1)
        """
        run, facts = self._run, self._facts()
        if run is None or run.finished:
            run = _Iteration(self._epoch, self._start_of_next())
        return {
            "version": VERSION,
            "kind": "WebLoader",
            "facts": facts,
            "epoch": run.epoch,
            "delivered": run.delivered if facts["stages"] else 0,
            "loader": run.begun if facts["stages"] else self.loader.state_dict(),
        }

    def _facts(self) -> dict[str, Any]:
        return {"stages": described_stages(self.stages, self.given_epochs)}

    @shortened
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next ``iter()`` continue where ``state_dict`` was saved, as ``DataLoader`` does.

        With stages, the epoch runs again from its start, and elements delivered before are dropped; one
        warning says so. With ``repeat`` or ``with_epoch``, pass a ``generator`` to the DataLoader: without
        it, the DataLoader's later epochs have another order.

        Args:
            state_dict: What ``state_dict()`` returned.

        Raises:
            ValueError: It is the state of another loader; the message says what differs.
        """
        check(state_dict, "WebLoader", self._facts())
        epoch, delivered = field_of(state_dict, "epoch", int), field_of(state_dict, "delivered", int)
        any_order = any(map(takes_any_order, (self, self.loader.dataset)))
        if delivered and (any_order or not self.loader.in_order):
            raise ValueError(
                "the epoch would have to be run again from its start, and with in_order=False batches come "
                "in another order then: use in_order=True, or begin the epoch again"
            )
        begun = field_of(state_dict, "loader", dict)
        self.loader.load_state_dict(begun)
        self._epoch = epoch
        self._run = self._resumed = _Iteration(epoch, begun, delivered)

    def _start_of_next(self) -> dict[str, Any]:
        from mpwds.loader.dataloader.state import EpochRecord

        return EpochRecord.of_next(self.loader).as_state(self.loader)


@dataclass
class _Iteration:
    """One iteration: its epoch, the DataLoader's state when it began, and how far it is."""

    epoch: int
    begun: dict[str, Any]
    delivered: int = 0
    finished: bool = False

    def counted(self, elements: Iterator[Any]) -> Iterator[Any]:
        for element in elements:
            self.delivered += 1
            yield element
        self.finished = True


class _Loaded(Origin):
    """Source of a pipeline: the batches that a DataLoader delivers. They cannot be made again."""

    addressable = False

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __str__(self) -> str:
        return "DataLoader"

    def close(self) -> None:
        self._loader.close()

    def stream(self, context: Context = ALONE) -> IteratorStream:
        from mpwds.loader.dataloader.iterator import DataLoaderIterator

        batches = iter(self._loader)
        if isinstance(batches, DataLoaderIterator):
            batches = batches.of_one_epoch()
        return IteratorStream(batches, "that the workers delivered")
