"""The state of a DataLoader: how far its epoch is, and how to begin the epoch there again."""

from __future__ import annotations

import base64
import contextlib
import copy
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset

from mpwds.loader.multi_loader import LoaderPipeline, MultiLoader
from mpwds.loader.rebatching import Rebatching
from mpwds.loader.resume.description import described
from mpwds.loader.resume.position import VERSION, check
from mpwds.loader.resume.progress import (
    EpochProgress,
    StreamProgress,
    field_of,
    pack_state,
    unpack_state,
    wrong,
)
from mpwds.loader.worker.elements import is_stateful
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.iterable_sources import IterableSource

T = TypeVar("T")


class TaskProgress(EpochProgress):
    """The progress of an epoch of tasks. One is completed if its batch was delivered, or its error raised.

    Attributes:
        below: All tasks with a lower number are completed.
        above: So are these, where batches come out of order.
        first: The number of the first task whose index the sampler gives.
    """

    def __init__(self, workers: int, below: int = 0, above: Iterable[int] = ()) -> None:
        super().__init__(0, [StreamProgress() for _ in range(max(workers, 1))])
        self.below, self.above, self.first = below, set(above), 0

    @property
    def delivered(self) -> int:
        return self.below + len(self.above)

    def complete(self, task: int, worker: int = 0, state: bytes | str | None = None) -> None:
        self.count(worker, state)
        self.above.add(task)
        while self.below in self.above:
            self.above.remove(self.below)
            self.below += 1

    def left(self, indices: Iterable[T]) -> Iterator[tuple[int, T]]:
        """Number and index of each task that is not completed now."""
        above, below = frozenset(self.above), self.below
        tasks = enumerate(indices, self.first)
        return ((task, index) for task, index in tasks if task >= below and task not in above)


@dataclass(eq=False)
class EpochRecord:
    """An epoch of a DataLoader, possibly of a state that was loaded."""

    generators: list[torch.Tensor]  # the states, at the epoch's start, of those that may give the order
    sampler_epoch: int | None  # the epoch that the sampler was told
    dataset_epoch: int | None  # the epoch of a dataset of this package
    completed: TaskProgress
    seedless: bool  # the epoch keeps the workers of the one before, so it draws no seed for them
    dataset_state: Mapping[str, Any] | None = None  # in the loaded state, if the dataset is a loader
    own_state: Mapping[str, Any] | None = None  # in it, of another dataset that has one, without workers
    sampler_states: deque[tuple[int, list[Any]]] = field(default_factory=deque)  # by the tasks before
    fetcher: Any = None  # torch's, of an iterable dataset, without workers
    resumed: bool = False  # it was loaded
    order: list[torch.Tensor] | None = None  # as ``generators``, when the first index was drawn, if others

    @classmethod
    def of_next(cls, loader: DataLoader[Any]) -> EpochRecord:
        sampler_epoch, dataset_epoch = _epoch_of(sampler_of(loader)), _dataset_epoch(loader.dataset)
        kept: Any = loader._iterator  # whose workers stay as many as they are
        completed = TaskProgress(loader.num_workers if kept is None else kept._num_workers)
        generators = [generator.get_state() for generator in _generators(loader)]
        seedless = loader.num_workers > 0 and kept is not None
        return cls(generators, sampler_epoch, dataset_epoch, completed, seedless)

    @property
    def runs_again(self) -> int:
        """The number of batches that an iterable dataset makes again from its start, to be dropped."""
        if self.dataset_state is not None or self.own_state is not None:
            return 0
        return sum(worker.delivered for worker in self.completed.streams if not worker.states)

    def continue_iterator(self) -> None:
        """Brings torch's fetcher of an iterable dataset, without workers, to where the loaded state was."""
        if self.own_state is not None and self.fetcher is not None:
            if "iterator" in self.own_state:
                self.fetcher.dataset_iter.load_state_dict(self.own_state["iterator"])
            self.fetcher.ended = self.own_state["ended"]

    def noting_order(self, loader: DataLoader[Any], indices: Iterator[T]) -> Iterator[T]:
        """The same indices. Notes from which states the first is drawn: the program may draw before it."""
        generators = _generators(loader)
        begun = [generator.get_state() for generator in generators]

        def noted() -> Iterator[T]:
            now = [generator.get_state() for generator in generators]
            self.order = None if all(map(torch.equal, begun, now)) else now
            yield from indices

        return noted()

    def go_to_order(self, loader: DataLoader[Any]) -> None:
        """Sets the generators to the states from which the first index was drawn."""
        for generator, state in zip(_generators(loader), self.order or (), strict=False):
            generator.set_state(state)

    def drawn(self, loader: DataLoader[Any], indices: Iterator[T]) -> Iterator[T]:
        """The indices that the sampler gives. Keeps the sampler's own states, if it has them."""
        if not self.keep_first_state(loader):
            return indices
        return self._watched(indices, _stateful_samplers(loader), loader.batch_size)

    def keep_first_state(self, loader: DataLoader[Any]) -> bool:
        """Keeps the sampler's own state before its first index; returns false if it has none."""
        samplers = _stateful_samplers(loader)
        if samplers and not self.sampler_states:
            with contextlib.suppress(Exception):  # before it is iterated: its indices are drawn again
                self._keep_sampler_state(0, samplers)
        return bool(self.sampler_states)

    def _watched(self, indices: Iterator[Any], samplers: list[Any], batch_size: int | None) -> Iterator[Any]:
        for number, index in enumerate(indices, self.completed.first + 1):
            # For a batch that is not full, the sampler was asked for an index after its last one.
            if batch_size is None or len(index) == batch_size:
                self._keep_sampler_state(number, samplers)
            yield index

    def _keep_sampler_state(self, number: int, samplers: list[Any]) -> None:
        self.sampler_states.append((number, [copy.deepcopy(sampler.state_dict()) for sampler in samplers]))
        self._newest_sampler_state()

    def _newest_sampler_state(self) -> tuple[int, list[Any]] | None:
        """The sampler's state before all tasks that are not completed; forgets older ones."""
        kept = self.sampler_states
        while len(kept) > 1 and kept[1][0] <= self.completed.below:
            kept.popleft()
        return kept[0] if kept else None

    def _state_of_dataset(self, loader: DataLoader[Any]) -> Mapping[str, Any] | None:
        dataset = loader.dataset
        if loader.num_workers or isinstance(dataset, Rebatching):
            return None
        if self.fetcher is None and self.own_state is not None:
            return self.own_state
        fetcher = self.fetcher
        parts: dict[str, Any] = {"dataset": dataset, "iterator": fetcher and fetcher.dataset_iter}
        state = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items() if is_stateful(part)}
        return {**state, "ended": fetcher is not None and fetcher.ended} if state else None

    def tell_epoch(self, loader: DataLoader[Any]) -> None:
        """Tells the sampler and the dataset which epoch it is, and a dataset that is a loader its state."""
        sampler, dataset = sampler_of(loader), loader.dataset
        if self.sampler_epoch is not None and _epoch_of(sampler) is not None:
            sampler.set_epoch(self.sampler_epoch)
        for number, states in self.sampler_states:
            self.completed.first = number
            _load(loader, states)
            if number == 0:
                # One that stands at the end of the epoch before gives an empty epoch, and then whole ones.
                with self.beginning(loader):
                    is_whole = next(iter(loader._index_sampler), None) is not None
                if is_whole:
                    _load(loader, states)
        if self.own_state is not None and "dataset" in self.own_state:
            dataset.load_state_dict(self.own_state["dataset"])  # type: ignore[attr-defined]  # it is stateful
        if self.dataset_state is not None:
            dataset.load_state_dict(self.dataset_state)  # type: ignore[attr-defined]  # a loader
        elif self.dataset_epoch is not None and _dataset_epoch(dataset) is not None:
            dataset.set_epoch(self.dataset_epoch)  # type: ignore[attr-defined]  # it is ours

    def take_back_seed(self, loader: DataLoader[Any]) -> None:
        """Undoes the draw of a seed, where new workers stand in for kept ones that drew none."""
        if self.seedless:
            draws_seeds = torch.default_generator if loader.generator is None else loader.generator
            draws_seeds.set_state(self.generators[_generators(loader).index(draws_seeds)])

    @contextlib.contextmanager
    def beginning(self, loader: DataLoader[Any]) -> Iterator[None]:
        """Inside, the generators stand where the epoch began. Torch's own is restored afterwards."""
        before = torch.default_generator.get_state()
        for generator, state in zip(_generators(loader), self.generators, strict=True):
            generator.set_state(state)
        try:
            yield
        finally:
            torch.default_generator.set_state(before)

    def as_state(self, loader: DataLoader[Any]) -> dict[str, Any]:
        completed = self.completed
        return {
            "version": VERSION,
            "kind": "DataLoader",
            "facts": _facts(loader),
            "generators": _encoded(self.generators),
            "order": None if self.order is None else _encoded(self.order),
            "seedless": self.seedless,
            "sampler_epoch": self.sampler_epoch,
            "dataset_epoch": self.dataset_epoch,
            "yielded": completed.delivered,
            "below": completed.below,
            "above": sorted(completed.above),
            "workers": [worker.delivered for worker in completed.streams],
            "states": [
                [index, at, unpack_state(state)]
                for index, worker in enumerate(completed.streams)
                for at, state in worker.states
            ],
            "own": self._state_of_dataset(loader),
            "samplers": self._newest_sampler_state(),
        }

    @classmethod
    def from_state(cls, loader: DataLoader[Any], state: Any) -> EpochRecord:
        """The record of a state. Raises ValueError, which says what differs, if it is another loader's."""
        check(state, "DataLoader", _facts(loader))
        generators = _decoded(loader, state, "generators")
        below, above = field_of(state, "below", int), field_of(state, "above", list)
        completed = TaskProgress(loader.num_workers, below, above)
        # There may be other workers than of a map-style dataset before.
        for worker, delivered in zip(completed.streams, field_of(state, "workers", list), strict=False):
            worker.delivered = worker.received = delivered
        for index, at, unpacked in field_of(state, "states", list):
            completed.streams[index].states.append((at, pack_state(unpacked, exactly=True)))
        if state.get("dataset") is None:  # a loader warns itself of an epoch in which nothing is left
            completed.loaded = completed.delivered
        samplers = state.get("samplers")
        return cls(
            generators,
            state.get("sampler_epoch"),
            state.get("dataset_epoch"),
            completed,
            seedless=bool(state.get("seedless")),
            dataset_state=state.get("dataset"),
            own_state=state.get("own"),
            sampler_states=deque([] if samplers is None else [tuple(samplers)]),
            resumed=True,
            order=None if state.get("order") is None else _decoded(loader, state, "order"),
        )


def _encoded(generators: list[torch.Tensor]) -> list[str]:
    return [base64.b64encode(each.numpy().tobytes()).decode() for each in generators]


def _decoded(loader: DataLoader[Any], state: Any, name: str) -> list[torch.Tensor]:
    encoded = field_of(state, name, list)
    try:
        generators = [bytearray(base64.b64decode(each, validate=True)) for each in encoded]
    except (TypeError, ValueError):
        raise wrong(name, "base64", encoded) from None
    if len(generators) != (count := len(_generators(loader))):
        raise wrong(name, f"the states of {count} torch.Generators", len(generators))
    return [torch.frombuffer(generator, dtype=torch.uint8) for generator in generators]


def _facts(loader: DataLoader[Any]) -> dict[str, Any]:
    dataset, here = loader.dataset, Context.current()
    facts: dict[str, Any] = {
        "dataset": type(dataset).__name__,
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
        "sampler": type(sampler_of(loader)).__name__,
        "world_size": here.world_size,
    }
    for part in (loader.batch_sampler, sampler_of(loader)):  # of torch, of Accelerate
        for name in ("num_replicas", "num_processes", "seed"):
            if isinstance(value := getattr(part, name, None), int):
                facts[f"{name} of the sampler"] = value
    if not loader.in_order:
        facts["rank"] = here.rank  # another has got other samples by now
    if isinstance(dataset, IterableDataset) or is_stateful(dataset):
        facts["num_workers"] = loader.num_workers  # each reads a part of its own, or has a state of its own
    if isinstance(dataset, DataPipeline) and not isinstance(dataset, Rebatching):
        facts |= {"pipeline": described(dataset), "seed": dataset.given_seed}
    if not isinstance(dataset, IterableDataset) and isinstance(dataset, Sized):
        facts["samples"] = len(dataset)
    return facts


def sampler_of(loader: DataLoader[Any]) -> Any:
    """The object that gives the order: the sampler, also a batch sampler's own, or the batch sampler."""
    if loader.batch_sampler is None:
        return loader.sampler
    inner = getattr(loader.batch_sampler, "sampler", None)
    return loader.batch_sampler if inner is None else inner


def _stateful_samplers(loader: DataLoader[Any]) -> list[Any]:
    parts = {id(part): part for part in (loader.sampler, loader.batch_sampler)}
    return list(filter(is_stateful, parts.values()))


def _epoch_of(sampler: Any) -> int | None:
    epoch = getattr(sampler, "epoch", None)
    return epoch if isinstance(epoch, int) and hasattr(sampler, "set_epoch") else None


def _dataset_epoch(dataset: Any) -> int | None:
    """The epoch that a dataset of this package would begin now; ``None`` for any other."""
    if isinstance(dataset, LoaderPipeline):
        return dataset.loader._epoch
    return dataset._epoch if isinstance(dataset, (IterableSource, MultiLoader)) else None


def _load(loader: DataLoader[Any], states: list[Any]) -> None:
    for part, state in zip(_stateful_samplers(loader), states, strict=True):
        part.load_state_dict(state)


def _generators(loader: DataLoader[Any]) -> list[torch.Generator]:
    """The generators that may give the order and the workers' seeds, each once; torch's own is the last."""
    parts = (loader, loader.sampler, loader.batch_sampler, sampler_of(loader))
    found = [*(getattr(part, "generator", None) for part in parts), torch.default_generator]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())
