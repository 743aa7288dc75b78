"""One epoch of tasks: given to the workers in turn, a few at a time, answered in order or as they come."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from mpwds import pickling
from mpwds.errors import MpwdsError
from mpwds.loader.dataloader.state import EpochRecord
from mpwds.loader.engine.group import WorkerGroup
from mpwds.loader.engine.worker_handle import WorkerHandle, next_message
from mpwds.loader.messages import protocol
from mpwds.loader.messages.channel import Message
from mpwds.pipeline.error_context import add_note
from mpwds.stats.collector import ConsumerTimer

Answer = tuple[Any, list[BaseException]]
"""A batch, or in the list the task's exception. Pop it to raise it: if the frame that raises it held it as
well, this cycle would keep the iterator and its workers until the garbage collector runs."""


class TaskEpoch:
    """Gives tasks, which are indices or batches of them, to workers and takes their answers.

    Each worker gets the same tasks as in torch's DataLoader: the workers get tasks in turn, first
    ``prefetch_factor`` each, then one for each answer. A worker whose dataset is exhausted is left out. The
    indices are asked for at these moments and no earlier.

    Tasks that are completed already are not given. With an iterable dataset, where each task depends on
    those before, a worker makes the batches again that follow its last state.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        record: EpochRecord,
        indices: Iterator[Any],
        group: WorkerGroup,
        epoch: int,
        times: ConsumerTimer,
    ) -> None:
        workers, generation = group.begin_epoch(epoch, record.positions(loader))
        completed, indices = record.completed, record.drawn(loader, indices)
        self._check_end = group.check_end
        self._completed = completed
        self._workers = workers
        self._generation = generation
        self._times = times
        self._in_order = loader.in_order
        self._timeout = loader.timeout or None
        self._most = (loader.prefetch_factor or 1) * len(workers)
        self._iterable = isinstance(loader.dataset, IterableDataset)
        self._indices = enumerate(indices) if self._iterable else completed.left(indices)
        # As if it had gone on without a break.
        if self._iterable:
            workers = sorted(workers, key=lambda worker: completed.workers[worker.index])
        else:
            first = completed.count % len(workers)
            workers = workers[first:] + workers[:first]
        self._turns = itertools.cycle(workers)
        self._tasks: dict[int, deque[int]] = {worker.index: deque() for worker in workers}
        self._active = set(self._tasks)
        self._unanswered: deque[WorkerHandle] = deque()
        self._answers = dict.fromkeys(self._tasks, 0)
        for _ in range(self._most):
            self._give_next()

    def next_answer(self) -> Answer:
        """Waits for the next answer.

        Raises:
            StopIteration: All tasks are answered, or all workers exhausted.
            WorkerDied, WorkerTimeout: No answer will come.
            Exception: Asking for the next index raised it. The answer that came is lost, as in torch.
        """
        self._times.asked()
        while self._unanswered:
            candidates = [self._unanswered[0]] if self._in_order else list(dict.fromkeys(self._unanswered))
            worker, message = next_message(candidates, self._generation, self._timeout, self._workers)
            fields = message.fields
            if fields["kind"] == protocol.END:
                self._check(worker, fields["sent"])
                self._check_end(message)
                self._leave_out(worker)
            elif fields["kind"] == protocol.ERROR:
                self._unanswered.clear()
                self._times.end()
                return None, [_revived(fields, worker)]
            else:
                self._check(worker, fields["sequence"])
                self._answers[worker.index] += 1
                self._unanswered.remove(worker)
                task = self._tasks[worker.index].popleft()
                return self._answer(worker, message, task)
        self._times.end()
        raise StopIteration

    def _answer(self, worker: WorkerHandle, message: Message, task: int) -> Answer:
        fields = message.fields
        if fields["kind"] == protocol.FAILED:
            return self._failed(worker, task, _revived(fields, worker))
        self._times.arrived()
        try:
            batch = worker.batch(message)
        except MpwdsError:
            raise
        except Exception as error:
            add_note(error, f"while a batch from worker {worker.index} was unpickled")
            return self._failed(worker, task, error)
        self._complete(worker, task, fields.get("state"))
        self._times.delivered(fields["samples"], fields["nbytes"])
        return batch, []

    def _failed(self, worker: WorkerHandle, task: int, error: BaseException) -> Answer:
        if self._iterable:  # a batch that did not come is none to be made again
            self._give_next()
        else:
            self._complete(worker, task)
        self._times.left()
        return None, [error]

    def _complete(self, worker: WorkerHandle, task: int, state: bytes | str | None = None) -> None:
        self._completed.add(self._completed.below if self._iterable else task, worker.index, state)
        self._give_next()

    def _give_next(self) -> None:
        for worker in itertools.islice(self._turns, len(self._workers)):
            tasks = self._tasks[worker.index]
            if worker.index in self._active and (
                self._in_order or len(tasks) < self._most // len(self._active)
            ):
                task = next(self._indices, None)
                if task is not None:
                    number, index = task
                    tasks.append(number)
                    worker.give(pickling.dumps(index), self._generation)
                    self._unanswered.append(worker)
                return

    def _leave_out(self, worker: WorkerHandle) -> None:
        self._active.discard(worker.index)
        self._unanswered = deque(other for other in self._unanswered if other is not worker)
        self._give_next()

    def _check(self, worker: WorkerHandle, number: int) -> None:
        expected = self._answers[worker.index]
        if number != expected:
            raise MpwdsError(
                f"worker {worker.index} sent answer {number}, expected {expected}: batches were lost"
            )


def _revived(fields: dict[str, Any], worker: WorkerHandle) -> BaseException:
    error = protocol.revive_error(fields, worker.index, worker.pid)
    add_note(error, f"Caught {type(error).__name__} in DataLoader worker process {worker.index}.")
    return error
