"""The worker of a DataLoader: fetches samples by index or in order, collates them, and sends the batches."""

from __future__ import annotations

import operator
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from types import ModuleType
from typing import Any, ClassVar

from mpwds.imports import after_import
from mpwds.loader.dataloader import torch_collate
from mpwds.loader.messages import protocol
from mpwds.loader.messages.channel import ChannelClosed
from mpwds.loader.processes.setup import WorkerSetup
from mpwds.loader.resume.progress import Position, made_fewer, pack_state, unpack_state
from mpwds.loader.worker.elements import WorkerIterator, is_stateful
from mpwds.loader.worker.sending import EpochStopped
from mpwds.loader.worker.worker import Worker, announce_to_torch
from mpwds.pipeline.context import Context
from mpwds.pipeline.error_context import not_an_end
from mpwds.pipeline.filter import rows_in
from mpwds.pipeline.iterable_sources import IterableSource, iter_elements, iterates_itself


class Exhausted(Exception):
    """An iterable dataset has no more samples."""


@dataclass
class FetchingSetup(WorkerSetup):
    serves: ClassVar[str] = f"{__name__}:TaskWorker"
    arrays_as_they_are: ClassVar[bool] = True

    base_seed: int = 0  # worker i is seeded with base_seed + i
    iterable: bool = False  # otherwise the dataset is asked for samples by index
    batches: bool = True  # a task is a list of indices, otherwise one
    collate_fn: Callable[[Any], Any] | None = None  # None is torch's default
    drop_last: bool = False
    worker_init_fn: Callable[[int], object] | None = None
    collate_functions: dict[Any, Callable[..., Any]] = field(default_factory=dict)  # added to torch's table

    def fetcher(self, samples: Iterator[Any]) -> Callable[[Any], Any]:
        """The function that does an epoch's tasks: it fetches by index, or the next samples, and collates."""
        dataset = self.dataset
        collate = self.collate_fn or (torch_collate.collate if self.batches else torch_collate.convert)
        if self.iterable:
            if self.batches:
                return _batches_of(samples, collate, self.drop_last)
            return lambda _: collate(_next_of(samples))
        if not self.batches:
            return lambda index: collate(dataset[index])
        if getattr(dataset, "__getitems__", None):
            return lambda indices: collate(dataset.__getitems__(indices))
        return lambda indices: collate([dataset[index] for index in indices])

    def samples(self, context: Context, position: Position) -> WorkerIterator:
        """The samples of an iterable dataset, from a state on."""
        deferred = self.collate_fn is None and not self.batches
        context = replace(context, deferred=deferred, tells_epoch=False)  # as torch does not
        return WorkerIterator(self.dataset, context, Position(state=position.state), _iterated)


def _iterated(dataset: Any, context: Context) -> Iterator[Any]:
    if not isinstance(dataset, IterableSource):
        return iter(dataset)
    if iterates_itself(dataset):
        dataset.set_epoch(context.epoch)
        return iter(dataset)
    return iter_elements(dataset.stream(context))


def samples_of(index: Any, batches: bool) -> int:
    """The number of samples for which an index stands; ``batches``: it is that of a batch."""
    return operator.length_hint(index, 1) if batches or isinstance(index, list) else 1


def _next_of(samples: Iterator[Any]) -> Any:
    try:
        return next(samples)
    except StopIteration:
        raise Exhausted from None


def _batches_of(
    samples: Iterator[Any], collate: Callable[[Any], Any], drop_last: bool
) -> Callable[[Any], Any]:
    ended = False

    def fetch(indices: Any) -> Any:
        nonlocal ended
        batch = [] if ended else list(islice(samples, len(indices)))
        ended = len(batch) < len(indices)
        if not batch or (drop_last and ended):
            raise Exhausted
        return collate(batch)

    return fetch


@dataclass
class TaskWorker(Worker):
    setup: FetchingSetup
    _failure: Exception | None = None
    _samples: WorkerIterator | None = None

    def run(self) -> None:
        setup = self.setup
        self.meter.writes_each = True
        if setup.batches:
            self.meter.samples_in = rows_in
        seed_worker(setup.base_seed, self.index)
        announce_to_torch(self.index, setup.workers, setup.base_seed + self.index, setup.dataset)
        torch_collate.take_functions(setup.collate_functions)
        try:
            if setup.worker_init_fn is not None:
                setup.worker_init_fn(self.index)
        except Exception as error:
            self._failure = error
        super().run()

    def _run_epoch(self, start: dict[str, Any]) -> None:
        generation, [[_, *position]] = start["generation"], start["streams"]
        sent = position[0]
        self._samples = None
        fetch: Callable[[Any], Any] | None = None
        with self.meter.epoch():
            while (task := self.commands.wait_for_task(generation)) is not None:
                self.meter.making()
                try:
                    index = pickle.loads(task)
                    if fetch is None:  # inside, because each task fails if it cannot be made
                        fetch = self._make_fetch(start["epoch"], Position(*position), index)
                    self._send_batch(fetch(index), index, generation, sent)
                except (Exhausted, EpochStopped):
                    break
                except ChannelClosed:
                    raise
                except Exception as error:
                    fields = {"kind": protocol.FAILED, "generation": generation, "sequence": sent}
                    self.channel.send(
                        {**fields, **protocol.describe_error(not_an_end(error, "the dataset or collate_fn"))}
                    )
                sent += 1
        end = {"kind": protocol.END, "generation": generation, "sent": sent, "idle": self.idle}
        self.channel.send(end)

    def _send_batch(self, batch: Any, index: Any, generation: int, sequence: int) -> None:
        self.meter.made()
        samples, state = None, None
        if self._samples is not None:
            state = self._samples.state(time.monotonic())
        else:
            samples = samples_of(index, self.setup.batches)
            if is_stateful(self.setup.dataset):
                state = pack_state(self.setup.dataset.state_dict(), exactly=True)
        fields = {"generation": generation, "sequence": sequence}
        self.sender.send(batch, fields, state, samples)

    def _make_fetch(self, epoch: int, position: Position, index: Any) -> Callable[[Any], Any]:
        if self._failure is not None:
            raise self._failure
        if not self.setup.iterable:
            if position.state is not None:
                self.setup.dataset.load_state_dict(unpack_state(position.state))
            return self.setup.fetcher(iter(()))
        self._samples = samples = self.setup.samples(self._context(epoch), position)
        fetch = self.setup.fetcher(samples)
        make_again(lambda: fetch(index), self.index, position.at, position.first)
        return fetch


def make_again(make: Callable[[], Any], worker: int, made: int, delivered: int) -> None:
    """Makes batches again that were delivered. The program has seen a single error between two of them."""
    failure: Exception | None = None
    while made < delivered:
        try:
            make()
        except (Exhausted, StopIteration):
            raise made_fewer(f"worker {worker}", made, delivered) from failure
        except Exception as error:
            if failure is not None:
                raise
            failure = error
        else:
            made, failure = made + 1, None


def seed_worker(base_seed: int, worker: int) -> None:
    """Seeds ``random``, ``numpy.random`` and torch as torch's DataLoader does, each when it is imported."""
    seed = base_seed + worker
    random.seed(seed)

    def seed_numpy(numpy_random: ModuleType) -> None:
        # torch has rebuilt how NumPy makes 128 bits of these.
        words = [worker, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
        numpy_random.seed(numpy_random.SeedSequence(words).generate_state(4))

    def seed_torch(torch_random: ModuleType) -> None:
        if sys.modules.get("torch.cuda") is not None:  # torch is there already, not being imported
            torch_random.manual_seed(seed)
        else:
            torch_random.default_generator.manual_seed(seed)

    after_import("numpy.random", seed_numpy)
    after_import("torch.random", seed_torch)
