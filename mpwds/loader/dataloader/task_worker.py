"""The worker of a DataLoader: fetches samples by index or in order, collates them, and sends the batches."""

from __future__ import annotations

import operator
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, ClassVar

from mpwds.imports import after_import
from mpwds.loader.dataloader import torch_collate
from mpwds.loader.engine import failures, protocol
from mpwds.loader.engine.channel import Channel, ChannelClosed
from mpwds.loader.processes.setup import WorkerSetup
from mpwds.loader.worker import startup
from mpwds.loader.worker.counters import StatusPage
from mpwds.loader.worker.elements import sample_counter
from mpwds.loader.worker.meter import Meter
from mpwds.loader.worker.sending import BatchSender, Commands, EpochStopped
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.parts import IterableSource, iterates_itself

CollateFunction = Callable[[Any], Any]

_WORD = 0xFFFFFFFF


class Exhausted(Exception):
    """An iterable dataset has no more samples."""


@dataclass
class FetchingSetup(WorkerSetup):
    """The setup of a DataLoader's workers.

    Args:
        base_seed: Worker ``i`` is seeded with ``base_seed + i``.
        iterable: The dataset is iterated; otherwise it is asked for samples by index.
        batches: A task is a batch, given as a list of indices; otherwise it is one sample.
        collate_fn: Collates a list of samples, or converts one sample; ``None`` is torch's default.
        drop_last: Leave out an incomplete last batch of an iterable dataset.
        worker_init_fn: Called with the worker's index before anything is fetched.
        collate_functions: The trainer's additions to torch's table of collate functions.
    """

    serves: ClassVar[str] = f"{__name__}:TaskWorker"

    base_seed: int = 0
    iterable: bool = False
    batches: bool = True
    collate_fn: CollateFunction | None = None
    drop_last: bool = False
    worker_init_fn: Callable[[int], object] | None = None
    collate_functions: dict[Any, Callable[..., Any]] = field(default_factory=dict)

    def fetcher(self, context: Context) -> Callable[[Any], Any]:
        """The function that does an epoch's tasks: it fetches and collates.

        It raises ``Exhausted`` when an iterable dataset has no more samples.
        """
        collate = self.collate_fn or (torch_collate.collate if self.batches else torch_collate.convert)
        if self.iterable:
            samples = self._samples(context)
            if self.batches:
                return _batch_fetcher(samples, collate, self.drop_last)
            return _fetcher(samples, collate)
        return _by_index(self.dataset, collate, self.batches)

    def _samples(self, context: Context) -> Iterator[Any]:
        dataset = self.dataset
        if not isinstance(dataset, (DataPipeline, IterableSource)):
            return iter(dataset)
        if iterates_itself(dataset):
            dataset.set_epoch(context.epoch)
            return iter(dataset)
        deferred = self.collate_fn is None and not self.batches
        return (element for _, element in dataset.stream(replace(context, deferred=deferred)))


def _by_index(dataset: Any, collate: CollateFunction, batches: bool) -> Callable[[Any], Any]:
    def fetch(index: Any) -> Any:
        return collate(dataset[index])

    def fetch_batch(indices: Any) -> Any:
        return collate([dataset[index] for index in indices])

    def fetch_batch_at_once(indices: Any) -> Any:
        return collate(dataset.__getitems__(indices))

    if not batches:
        return fetch
    return fetch_batch_at_once if getattr(dataset, "__getitems__", None) else fetch_batch


def _fetcher(samples: Iterator[Any], collate: CollateFunction) -> Callable[[Any], Any]:
    def fetch(_: Any) -> Any:
        try:
            sample = next(samples)
        except StopIteration:
            raise Exhausted from None
        return collate(sample)

    return fetch


def _batch_fetcher(samples: Iterator[Any], collate: CollateFunction, drop_last: bool) -> Callable[[Any], Any]:
    ended = False

    def fetch(indices: Any) -> Any:
        nonlocal ended
        batch: list[Any] = []
        if not ended:
            for _ in indices:
                try:
                    batch.append(next(samples))
                except StopIteration:
                    ended = True
                    break
        if not batch or (drop_last and len(batch) < len(indices)):
            raise Exhausted
        return collate(batch)

    return fetch


@dataclass
class TaskWorker:
    """Does the tasks of worker ``index``."""

    index: int
    setup: FetchingSetup
    channel: Channel
    commands: Commands
    sender: BatchSender
    status: StatusPage
    meter: Meter
    _failure: Exception | None = None

    def __post_init__(self) -> None:
        self.sender.arrays_as_they_are = True
        self.meter.writes_each = True
        if self.setup.batches:
            self.meter.samples_in = sample_counter(None)

    def run(self) -> None:
        """Runs epochs until the trainer closes the channel, which raises ``ChannelClosed``."""
        start = self.commands.wait_for_start()
        self._begin()
        while True:
            with self.meter.epoch():
                sent = self._run_epoch(start["epoch"], start["generation"])
            self.channel.send({"kind": protocol.END, "generation": start["generation"], "sent": sent})
            start = self.commands.wait_for_start()

    def _begin(self) -> None:
        setup = self.setup
        seed_worker(setup.base_seed, self.index)
        startup.announce_to_torch(self.index, setup.workers, setup.base_seed + self.index, setup.dataset)
        torch_collate.take_functions(setup.collate_functions)
        try:
            if setup.worker_init_fn is not None:
                setup.worker_init_fn(self.index)
        except Exception as error:
            self._failure = error

    def _run_epoch(self, epoch: int, generation: int) -> int:
        """Does the tasks of an epoch; returns how many."""
        fetch = self._make_fetch(epoch)
        sent = 0
        while (task := self.commands.wait_for_task(generation)) is not None:
            self.meter.making()
            try:
                index = pickle.loads(task)
                self._send(fetch(index), index, generation, sent)
            except (Exhausted, EpochStopped):
                break
            except ChannelClosed:
                raise
            except StopIteration as error:
                # Raised in the trainer, StopIteration would end the epoch there silently.
                refusal = RuntimeError(
                    "the dataset or collate_fn raised StopIteration, which does not end it"
                )
                refusal.__cause__ = error
                self._send_failure(refusal, generation, sent)
            except Exception as error:
                self._send_failure(error, generation, sent)
            sent += 1
        return sent

    def _send(self, batch: Any, index: Any, generation: int, sequence: int) -> None:
        self.meter.made()
        samples = None
        if not self.setup.iterable:
            samples = operator.length_hint(index, 1) if self.setup.batches or isinstance(index, list) else 1
        self.sender.send(batch, generation, sequence, samples=samples)

    def _send_failure(self, error: Exception, generation: int, sequence: int) -> None:
        fields = {"kind": protocol.FAILED, "generation": generation, "sequence": sequence}
        self.channel.send({**fields, **failures.describe(error)})

    def _make_fetch(self, epoch: int) -> Callable[[Any], Any]:
        setup = self.setup
        failure = self._failure
        if failure is None:
            try:
                return setup.fetcher(
                    Context(
                        epoch=epoch,
                        rank=setup.rank,
                        world_size=setup.world_size,
                        worker=self.index,
                        workers=setup.workers,
                        owns_process=True,
                        on_shard=self.status.write_shard,
                        watch=self.meter.watch,
                    )
                )
            except Exception as error:
                failure = error

        def fail(_: Any) -> Any:
            raise failure

        return fail


def seed_worker(base_seed: int, worker: int) -> None:
    """Seeds ``random``, ``numpy.random`` and torch as torch's DataLoader does, each when it is imported."""
    seed = base_seed + worker
    random.seed(seed)

    def seed_numpy(numpy_random: ModuleType) -> None:
        # torch has rebuilt how NumPy makes 128 bits of these.
        words = [worker, base_seed & _WORD, base_seed >> 32, 0]
        numpy_random.seed(numpy_random.SeedSequence(words).generate_state(4))

    def seed_torch(torch_random: ModuleType) -> None:
        if sys.modules.get("torch.cuda") is not None:  # torch is there already, not being imported
            torch_random.manual_seed(seed)
        else:
            torch_random.default_generator.manual_seed(seed)

    after_import("numpy.random", seed_numpy)
    after_import("torch.random", seed_torch)
