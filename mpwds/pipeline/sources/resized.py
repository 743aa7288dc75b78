"""Datasets of another length than their own, under webdataset's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

from mpwds.pipeline.dataset import DataPipeline


class ResizedDataset(DataPipeline):
    """A dataset cut or repeated to a number of elements: ``with_epoch`` and ``with_length`` in one.

    Args:
        dataset: What a pipeline begins at: another pipeline, a list, an iterable.
        length: Elements in an epoch, in each worker; ``len(dataset)`` by default.
        nominal: What ``len()`` returns; ``length`` by default.

    Raises:
        TypeError: ``length`` is not given and ``dataset`` has no length.
        ValueError: ``length`` is below 1, or ``nominal`` negative.

    Source:
        ``webdataset.ResizedDataset`` up to 0.1, whose epochs go on where the last one ended; here each epoch
        starts the dataset anew, as ``with_epoch`` does.

    Example:
        >>> dataset = ResizedDataset([1, 2, 3], length=5, nominal=100)
        >>> list(dataset), len(dataset)
        ([1, 2, 3, 1, 2], 100)
    """

    def __init__(self, dataset: Any, length: int | None = None, nominal: int | None = None) -> None:
        super().__init__(dataset)
        length = len(dataset) if length is None else length
        self.with_epoch(max(length, 0))
        self.with_length(length if nominal is None else nominal, silent=True)


ChoppedDataset = ResizedDataset


def with_epoch(dataset: Any, length: int) -> DataPipeline:
    """A dataset of ``length`` elements an epoch: ``DataPipeline(dataset).with_epoch(length)``.

    Args:
        dataset: What a pipeline begins at. It is left as it is.
        length: Elements in an epoch, in each worker.

    Source:
        ``webdataset.with_epoch``.

    Example:
        >>> list(with_epoch("abc", 5))
        ['a', 'b', 'c', 'a', 'b']
    """
    return DataPipeline(dataset).with_epoch(length)


def with_length(dataset: Any, length: int) -> DataPipeline:
    """A dataset whose ``len()`` is ``length``: ``DataPipeline(dataset).with_length(length, silent=True)``.

    Args:
        dataset: What a pipeline begins at. It is left as it is.
        length: The length.

    Source:
        ``webdataset.with_length``.

    Example:
        >>> len(with_length("abc", 1000))
        1000
    """
    return DataPipeline(dataset).with_length(length, silent=True)


def repeatedly(
    source: Iterable[Any],
    nepochs: int | None = None,
    nbatches: int | None = None,
    nsamples: int | None = None,
    batchsize: Callable[[Any], int] | None = None,
) -> Iterator[Any]:
    """Yields what ``source`` yields, again and again.

    Args:
        source: An iterable, such as a loader.
        nepochs: How often to iterate it; without end by default.
        nbatches: Elements after which to end.
        nsamples: Samples after which to end, where the elements are batches.
        batchsize: The number of samples in a batch; by default the length of its first column.

    Source:
        ``webdataset.utils.repeatedly``, which hangs on a source that is empty.

    Example:
        >>> list(repeatedly("ab", nbatches=5))
        ['a', 'b', 'a', 'b', 'a']
    """
    epoch = batches = samples = 0
    while True:
        before = batches
        for batch in source:
            yield batch
            batches += 1
            if nbatches is not None and batches >= nbatches:
                return
            if nsamples is not None:
                samples += guess_batchsize(batch) if batchsize is None else batchsize(batch)
                if samples >= nsamples:
                    return
        epoch += 1
        if batches == before or (nepochs is not None and epoch >= nepochs):
            return


def guess_batchsize(batch: Any) -> int:
    """The number of samples in a batch: the length of its first column.

    Example:
        >>> guess_batchsize(([1, 2, 3], ["a", "b", "c"]))
        3
    """
    columns = list(batch.values()) if isinstance(batch, dict) else batch
    column: Sized = columns[0]
    return len(column)
