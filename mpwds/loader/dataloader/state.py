"""Where a DataLoader's epoch stands, and how an epoch is begun there again."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mpwds.loader.dataloader.completed_tasks import Answered
from mpwds.loader.dataloader.dividing import has_workers
from mpwds.loader.loader_pipeline import LoaderPipeline, LoaderStages
from mpwds.loader.resume.progress import warn_of_empty_epoch
from mpwds.loader.resume.state import VERSION, field, wrong
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.parts import IterableSource

if TYPE_CHECKING:
    from mpwds.loader.dataloader.data_loader import DataLoader


class EpochRecord:
    """An epoch of a DataLoader.

    Args:
        generator: State of the generator that gives the order, at the epoch's start.
        sampler_epoch: The epoch that its sampler was told, if it has one.
        dataset_epoch: The epoch of a dataset of ours.
        answered: The tasks whose batches were delivered, or whose errors raised.
        dataset_state: Where the dataset goes on by itself, if it is a loader and a state says where.

    Attributes:
        finished: The epoch is at its end.
        seedless: No seed for workers is drawn from the generator: the epoch has those of the one before.
        loaded: If it comes from a state, the number of tasks that were answered there.
    """

    def __init__(
        self,
        generator: Any,
        sampler_epoch: int | None,
        dataset_epoch: int | None,
        answered: Answered,
        dataset_state: Mapping[str, Any] | None = None,
    ) -> None:
        self.generator = generator
        self.sampler_epoch = sampler_epoch
        self.dataset_epoch = dataset_epoch
        self.answered = answered
        self.dataset_state = dataset_state
        self.finished = False
        self.seedless = False
        self.loaded: int | None = None

    @classmethod
    def of_next(cls, loader: DataLoader[Any], finished: bool = False) -> EpochRecord:
        """The start of the epoch that the loader would begin now, or what stands for the end of the last."""
        record = cls(
            _generator(loader).get_state(),
            _epoch_of(_sampler(loader)),
            _next_epoch(loader.dataset),
            Answered(),
        )
        record.finished = finished
        record.seedless = loader.keeps_iterator
        return record

    def finish(self) -> None:
        """The epoch is at its end."""
        nothing_came = not self.finished and self.loaded and self.answered.count == self.loaded
        if nothing_came and self.dataset_state is None:  # a loader says so itself
            warn_of_empty_epoch()
        self.finished = True

    @property
    def runs_again(self) -> int:
        """The batches that an iterable dataset is to make again, and that are dropped."""
        return 0 if self.dataset_state is not None else self.answered.count

    def tell_epoch(self, loader: DataLoader[Any]) -> None:
        """Tells the loader's sampler and dataset which epoch it is, if they count, and where in it to go on.

        Raises:
            ValueError: The dataset's state is that of another.
        """
        sampler, dataset = _sampler(loader), loader.dataset
        if self.sampler_epoch is not None and _epoch_of(sampler) is not None:
            sampler.set_epoch(self.sampler_epoch)
        if self.dataset_state is not None:
            dataset.load_state_dict(self.dataset_state)  # type: ignore[attr-defined]  # a loader
        elif self.dataset_epoch is not None and _next_epoch(dataset) is not None:
            dataset.set_epoch(self.dataset_epoch)  # type: ignore[attr-defined]  # it is ours

    def take_back_seed(self, loader: DataLoader[Any]) -> None:
        """Where new workers stand in for some that were kept: undoes the draw of a seed for them."""
        if self.seedless:
            _generator(loader).set_state(self.generator)

    @contextlib.contextmanager
    def beginning(self, loader: DataLoader[Any]) -> Iterator[None]:
        """Inside, the epoch begins as it did then.

        The user's generator goes on from there. torch's own, which gives the order where the loader has none,
        is put back: the program's other random numbers are no business of the loader's.
        """
        generator = _generator(loader)
        before = generator.get_state()
        generator.set_state(self.generator)
        try:
            yield
        finally:
            if loader.generator is None:
                generator.set_state(before)

    def as_state(self, loader: DataLoader[Any]) -> dict[str, Any]:
        """The loader's state."""
        answered = self.answered
        return {
            "version": VERSION,
            "kind": "DataLoader",
            "facts": _facts(loader),
            "generator": base64.b64encode(self.generator.numpy().tobytes()).decode(),
            "seedless": self.seedless,
            "sampler_epoch": self.sampler_epoch,
            "dataset_epoch": self.dataset_epoch,
            "yielded": answered.count,
            "below": answered.below,
            "above": sorted(answered.above),
            "workers": [answered.workers[worker] for worker in range(max(loader.num_workers, 1))],
        }

    @classmethod
    def from_state(cls, loader: DataLoader[Any], state: Any) -> EpochRecord:
        """The record of a state.

        Raises:
            ValueError: It is none, or that of another loader.
        """
        import torch

        if not isinstance(state, Mapping):
            raise ValueError(f"a loader's state is the dict that state_dict() gave, got {state!r}")
        if (state.get("kind"), state.get("version")) != ("DataLoader", VERSION):
            raise ValueError(
                f"the state of a {state.get('kind')}, version {state.get('version')}, loaded into a "
                f"DataLoader of a mpwds that reads version {VERSION}"
            )
        now, before = _facts(loader), field(state, "facts", dict)
        for name, value in now.items():
            if before.get(name) != value:
                raise ValueError(
                    f"the state was saved by a DataLoader with {name}={before.get(name)!r}, here it is "
                    f"{value!r}: load it into a loader that is made as that one was, or begin the epoch anew"
                )
        try:
            data = bytearray(base64.b64decode(field(state, "generator", str), validate=True))
        except ValueError:
            raise wrong("generator", "base64", state["generator"]) from None
        answered = Answered(
            field(state, "below", int), field(state, "above", list), field(state, "workers", list)
        )
        generator = torch.frombuffer(data, dtype=torch.uint8)
        own = state.get("dataset")
        record = cls(generator, state.get("sampler_epoch"), state.get("dataset_epoch"), answered, own)
        record.loaded = answered.count
        record.seedless = bool(state.get("seedless"))
        return record


def own_state(dataset: Any) -> dict[str, dict[str, Any]]:
    """What a state says of where the dataset itself stands: a loader, which goes on there by itself."""
    return {"dataset": dataset.state_dict()} if has_workers(dataset) else {}


def start_of_next(loader: DataLoader[Any]) -> dict[str, Any]:
    """The state before the epoch that the loader would begin now."""
    return EpochRecord.of_next(loader).as_state(loader)


def is_iterable(dataset: Any) -> bool:
    """Whether a dataset is iterated, not asked for samples by index."""
    from torch.utils.data import IterableDataset

    return isinstance(dataset, IterableDataset)


def _facts(loader: DataLoader[Any]) -> dict[str, Any]:
    dataset, here = loader.dataset, Context.current()
    facts: dict[str, Any] = {
        "dataset": type(dataset).__name__,
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
        "sampler": type(_sampler(loader)).__name__,
        "world_size": here.world_size,
    }
    if not loader.in_order:
        facts["rank"] = here.rank  # another has got other samples by now
    if is_iterable(dataset):
        facts["num_workers"] = loader.num_workers  # each reads its own part
    elif hasattr(dataset, "__len__"):
        facts["samples"] = len(dataset)
    return facts


def _sampler(loader: DataLoader[Any]) -> Any:
    """What gives the order: the sampler, or the user's batch sampler."""
    inner = getattr(loader.batch_sampler, "sampler", None)
    return loader.batch_sampler if loader.batch_sampler is not None and inner is None else loader.sampler


def _next_epoch(dataset: Any) -> int | None:
    """The number of the epoch that a dataset of ours would begin now."""
    if isinstance(dataset, LoaderPipeline):
        return dataset.loader._epoch
    return dataset._epoch if isinstance(dataset, (DataPipeline, IterableSource, LoaderStages)) else None


def _epoch_of(sampler: Any) -> int | None:
    epoch = getattr(sampler, "epoch", None)
    return epoch if isinstance(epoch, int) and hasattr(sampler, "set_epoch") else None


def _generator(loader: DataLoader[Any]) -> Any:
    import torch

    return torch.default_generator if loader.generator is None else loader.generator
