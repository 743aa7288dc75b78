"""The worker of a DataLoader: fetches what each task names, and sends it."""

from __future__ import annotations

import operator
import pickle
import random
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from mpwds.imports import after_import
from mpwds.loader.dataloader import torch_collate
from mpwds.loader.dataloader.fetching import Exhausted, FetchingSetup
from mpwds.loader.engine import failures, protocol
from mpwds.loader.engine.channel import Channel, ChannelClosed
from mpwds.loader.worker import startup
from mpwds.loader.worker.elements import sample_counter
from mpwds.loader.worker.meter import Meter
from mpwds.loader.worker.sending import BatchSender, Commands, EpochStopped
from mpwds.loader.worker.status import StatusPage
from mpwds.pipeline.context import Context

_WORD = 0xFFFFFFFF


class TaskWorker:
    """Does the tasks of worker ``index``; the trainer gives them.

    Args:
        index: The worker's index.
        setup: What to do.
        channel: To the trainer.
        commands: From the trainer.
        sender: Sends batches to it.
        status: Says which shard is read.
        meter: Times what it does.
    """

    def __init__(
        self,
        index: int,
        setup: FetchingSetup,
        channel: Channel,
        commands: Commands,
        sender: BatchSender,
        status: StatusPage,
        meter: Meter,
    ) -> None:
        self._index = index
        self._setup = setup
        self._channel = channel
        self._commands = commands
        self._sender = sender
        self._status = status
        self._meter = meter
        self._failure: Exception | None = None
        sender.arrays_as_they_are = True
        meter.writes_each = True
        if setup.batches:
            meter.samples_in = sample_counter(None)

    def run(self) -> None:
        """Runs epochs until the trainer closes the channel, which raises ``ChannelClosed``."""
        start = self._commands.wait_for_start()
        self._begin()
        while True:
            with self._meter.epoch():
                sent = self._run_epoch(start["epoch"], start["generation"])
            self._channel.send({"kind": protocol.END, "generation": start["generation"], "sent": sent})
            start = self._commands.wait_for_start()

    def _begin(self) -> None:
        setup = self._setup
        seed_worker(setup.base_seed, self._index)
        startup.announce_to_torch(self._index, setup.workers, setup.base_seed + self._index, setup.dataset)
        torch_collate.take_functions(setup.collate_functions)
        try:
            if setup.worker_init_fn is not None:
                setup.worker_init_fn(self._index)
        except Exception as error:
            self._failure = error

    def _run_epoch(self, epoch: int, generation: int) -> int:
        """Answers the tasks of an epoch; returns how many."""
        fetch = self._make_fetch(epoch)
        sent = 0
        while (task := self._commands.wait_for_task(generation)) is not None:
            self._meter.making()
            try:
                index = pickle.loads(task)
                self._send(fetch(index), index, generation, sent)
            except (Exhausted, EpochStopped):
                break
            except ChannelClosed:
                raise
            except StopIteration as error:
                # Raised in the trainer as it is, it would end the epoch there without a word.
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
        self._meter.made()
        samples = None
        if not self._setup.iterable:
            samples = operator.length_hint(index, 1) if self._setup.batches or isinstance(index, list) else 1
        self._sender.send(batch, generation, sequence, samples=samples)

    def _send_failure(self, error: Exception, generation: int, sequence: int) -> None:
        fields = {"kind": protocol.FAILED, "generation": generation, "sequence": sequence}
        self._channel.send({**fields, **failures.describe(error)})

    def _make_fetch(self, epoch: int) -> Callable[[Any], Any]:
        setup = self._setup
        failure = self._failure
        if failure is None:
            try:
                return setup.fetcher(
                    Context(
                        epoch=epoch,
                        rank=setup.rank,
                        world_size=setup.world_size,
                        worker=self._index,
                        workers=setup.workers,
                        owns_process=True,
                        on_shard=self._status.write_shard,
                        watch=self._meter.watch,
                    )
                )
            except Exception as error:
                failure = error

        def fail(_: Any) -> Any:
            raise failure

        return fail


def seed_worker(base_seed: int, worker: int) -> None:
    """Seeds ``random``, ``numpy.random`` and torch as torch's DataLoader does, each when it is imported.

    Args:
        base_seed: 63 bits, from the trainer's generator.
        worker: Index of the worker.
    """
    seed = base_seed + worker
    random.seed(seed)

    def seed_numpy(numpy_random: ModuleType) -> None:
        # NumPy's way to make 128 bits of these, which torch has rebuilt.
        words = [worker, base_seed & _WORD, base_seed >> 32, 0]
        numpy_random.seed(numpy_random.SeedSequence(words).generate_state(4))

    def seed_torch(torch_random: ModuleType) -> None:
        if sys.modules.get("torch.cuda") is not None:  # torch is there already, not being imported
            torch_random.manual_seed(seed)
        else:
            torch_random.default_generator.manual_seed(seed)

    after_import("numpy.random", seed_numpy)
    after_import("torch.random", seed_torch)
