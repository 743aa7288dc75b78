"""Iterating a DataLoader without workers: torch's own iterator, which here counts what it delivers."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from mpwds.loader.data_loader_state import is_iterable

if TYPE_CHECKING:
    from mpwds.loader.data_loader import DataLoader
    from mpwds.loader.data_loader_state import EpochRecord


class SingleProcessIterator(_SingleProcessDataLoaderIter):
    """One epoch, in this process.

    Args:
        loader: The loader.
        record: What of the epoch was delivered before. Of a map-style dataset these samples are not fetched
            again; an iterable one runs again from its start.
    """

    def __init__(self, loader: DataLoader[Any], record: EpochRecord) -> None:
        super().__init__(loader)
        self._profile_name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        self._record = record
        delivered = record.answered.count
        if is_iterable(loader.dataset):
            for number in range(delivered):
                self._make_again(number, delivered)
        elif record.loaded is not None:
            left = (index for _, index in record.answered.left(self._sampler_iter))
            # The first one now, while the generator that the order is drawn from stands where it did.
            self._sampler_iter = chain(list(islice(left, 1)), left)
        self._num_yielded = delivered

    def _next_data(self) -> Any:
        answered = self._record.answered
        try:
            batch = super()._next_data()  # type: ignore[no-untyped-call]  # torch gives it no types
        except StopIteration:
            self._record.finish()
            raise
        except Exception:
            answered.add(answered.below)
            raise
        answered.add(answered.below)
        return batch

    def _make_again(self, number: int, delivered: int) -> None:
        try:
            super()._next_data()  # type: ignore[no-untyped-call]  # torch gives it no types
        except StopIteration:
            raise RuntimeError(
                f"the dataset ended after {number} batches, {delivered} were to be skipped: it has changed, "
                "or gives other samples each time it runs, so the epoch cannot be continued"
            ) from None
        except Exception:
            pass  # it was raised where the batch was first made
