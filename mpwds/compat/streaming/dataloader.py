"""mosaicml-streaming's StreamingDataLoader."""

from __future__ import annotations

from typing import Any

from mpwds.compat.streaming.dataset import StreamingDataset
from mpwds.loader.dataloader.data_loader import DataLoader


class StreamingDataLoader(DataLoader[Any]):
    """``mpwds.DataLoader``, which resumes a ``StreamingDataset`` without reading delivered batches again.

    Give both the same ``batch_size``; the number of workers may be another one then. Otherwise, with
    ``in_order=False``, after stages or a subclass' methods, which may drop samples, and with other datasets,
    it resumes as ``mpwds.DataLoader`` does.

    Source:
        ``streaming.StreamingDataLoader`` (mosaicml-streaming 0.13).
    """

    def state_dict(self) -> dict[str, Any]:
        """The position in the epoch, after the last batch delivered; at its end, the start of the next."""
        state, dataset = super().state_dict(), self.dataset
        if (
            not isinstance(dataset, StreamingDataset)
            or dataset.batch_size != self.batch_size
            or not self.in_order
            or dataset.may_drop_samples
        ):
            return state
        samples = state["yielded"] * dataset.batch_size * dataset.ranks
        return dataset.state_dict(samples, False, state["dataset_epoch"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next epoch continue where ``state_dict`` was saved. Raises as the dataset's."""
        if "sample_in_epoch" not in state_dict:
            super().load_state_dict(state_dict)
            return
        self.close()
        self.dataset.load_state_dict(state_dict)  # type: ignore[attr-defined]
        self._begin_afresh()
