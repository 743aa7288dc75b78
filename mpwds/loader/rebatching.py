"""The stages that only loaders have, and pipelines after them."""

from __future__ import annotations

from mpwds.pipeline.filter import Filter
from mpwds.pipeline.stream import Composable, FromWorkers, Self
from mpwds.suggestions import suggest_arguments


@suggest_arguments
class Rebatching(FromWorkers):
    """Base of loaders, and of pipelines after them, for the stage that only they have."""

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
            >>> from mpwds import DataPipeline, MultiLoader
            >>> samples = DataPipeline(range(10)).map(lambda n: (n, str(n))).batched(4)
            >>> with MultiLoader(samples, workers=1).rebatched(5, shuffle=10) as loader:
            ...     batches = list(loader)
            >>> sorted(number for numbers, names in batches for number in numbers.tolist())
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        """
        from mpwds.pipeline.rebatch.rebatched import Rebatched

        return self.compose(Rebatched(batchsize, shuffle, drop_last, initial, seed, pin_memory))

    def _run_as(self, stages: list[Filter]) -> list[Filter]:
        """The stages of a pipeline after a loader, as they run: see ``Regrouped``."""
        if len(stages) < 3:
            return stages
        from mpwds.pipeline.rebatch.rebatched import regrouped

        return regrouped(stages)


@suggest_arguments
class Prefetching(Composable):
    """Base of pipelines after loaders, for the stage that only they have."""

    def prefetch(self: Self, n: int = 2) -> Self:
        """Makes the next elements in a thread while the training loop works on one.

        The stages before it run in that thread, and so does the loader's iteration. It does what
        ``prefetch`` of tf.data and ``Prefetcher`` of torchdata.nodes do. ``map(f, threads=n)`` makes several
        elements at a time, which helps a function that waits.

        The thread takes the stages' state before each element: 0.8 ms for a pool of 5,000 rows.

        Args:
            n: The most elements to make ahead. If they hold the loader's batches, raise its ``prefetch`` by
                as many: otherwise the batches are copied.

        Raises:
            ValueError, TypeError: ``n`` is below 1, or no integer.

        While iterating:
            :class:`~mpwds.errors.SharedRandomError`: A function before it draws from ``random``,
            ``numpy.random`` or torch, whose generators the training loop shares. Calls for an epoch's first
            element are checked; later ones would take too long to check.

        Example:
            >>> from mpwds import DataPipeline, MultiLoader
            >>> with MultiLoader(DataPipeline(range(8)).batched(2), workers=1, output="numpy") as loader:
            ...     [batch.tolist() for batch in loader.rebatched(4).prefetch()]
            [[0, 1, 2, 3], [4, 5, 6, 7]]
        """
        from mpwds.loader.prefetched import Prefetched

        return self.compose(Prefetched(n))
