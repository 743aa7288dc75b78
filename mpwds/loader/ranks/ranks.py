"""What the ranks of a distributed job tell each other: the largest of their numbers."""

from __future__ import annotations

import concurrent.futures
import ctypes
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mpwds.errors import EvenEpochError
from mpwds.pipeline.context import Context


class Ranks(Protocol):
    """The ranks of a job, as one of them sees them.

    Attributes:
        rank: This one's number.
        size: How many there are.
    """

    rank: int
    size: int

    def begin_talk(self) -> int:
        """The number of a new talk, the same on all ranks as long as all begin the same talks."""
        ...

    def largest(self, numbers: Sequence[int], timeout: float | None) -> list[int]:
        """The largest of what the ranks say, number by number. All have to call it, in the same order.

        Args:
            numbers: As many on all ranks.
            timeout: Seconds to wait for the others; ``None`` leaves that to ``torch.distributed``.

        Raises:
            EvenEpochError: A rank is gone, or did not come in time.
        """
        ...


def world_size() -> int:
    """How many ranks there are: as shards are dealt, or as ``torch.distributed`` says.

    Example:
        >>> world_size()
        1
    """
    distributed = _distributed()
    return max(Context.current().world_size, 1 if distributed is None else distributed.get_world_size())


class TorchRanks:
    """The ranks of ``torch.distributed``. They talk in a group of their own, on the processor.

    So it makes no difference which backend the job uses, nor what it is doing with it. The group is made once
    in a process, when the ranks first talk.

    Raises:
        EvenEpochError: ``torch.distributed`` is not initialised.
    """

    def __init__(self) -> None:
        distributed = _distributed()
        if distributed is None:
            here = Context.current()
            raise EvenEpochError(
                f"this is rank {here.rank} of {here.world_size}, and how many batches the ranks have cannot "
                "be known beforehand: call torch.distributed.init_process_group() before the loader is "
                "iterated, so that they can agree, or make epochs of n elements by with_epoch(n)"
            )
        self._distributed = distributed
        self.rank: int = distributed.get_rank()
        self.size: int = distributed.get_world_size()

    def begin_talk(self) -> int:
        return next(_talks)

    def largest(self, numbers: Sequence[int], timeout: float | None) -> list[int]:
        import torch

        tensor = torch.tensor(numbers, dtype=torch.int64)
        try:
            group = _own_group(self._distributed, timeout)
            self._reduce(tensor, group, timeout)
        except (RuntimeError, TimeoutError) as error:
            raise EvenEpochError(
                f"rank {self.rank} waited for the other ranks, to agree on the number of batches, and one of "
                f"them is gone or did not come: {error} (all ranks have to iterate the loader, in step)"
            ) from error
        largest: list[int] = tensor.tolist()
        return largest

    def _reduce(self, tensor: Any, group: Any, timeout: float | None) -> None:
        distributed = self._distributed
        work = distributed.all_reduce(tensor, distributed.ReduceOp.MAX, group=group, async_op=True)
        done = threading.Event()  # Ctrl-C gets through to it, not to work.wait()
        work.get_future().add_done_callback(lambda _: done.set())
        try:
            if not done.wait(timeout):
                raise _late(timeout)
        except BaseException:
            _keep_until_exit(group)
            raise
        work.wait()


_talks = itertools.count()
_own: tuple[Callable[[], Any], concurrent.futures.Future[Any]] | None = None


def _own_group(distributed: Any, timeout: float | None) -> Any:
    """The group for these talks. It lives as long as the default group."""
    global _own
    world = distributed.group.WORLD
    if _own is None or _own[0]() is not world:
        made: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def make() -> None:
            try:
                made.set_result(distributed.new_group(backend="gloo"))
            except Exception as error:
                made.set_exception(error)

        # It waits for all ranks, and Ctrl-C does not get through to it.
        threading.Thread(target=make, name="mpwds new_group", daemon=True).start()
        _own = weakref.ref(world), made
    try:
        return _own[1].result(timeout)
    except concurrent.futures.TimeoutError:
        raise _late(timeout) from None


def _keep_until_exit(group: Any) -> None:
    """Never destroys a group that still waits for a message: its destructor waits for the other ranks."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def _late(timeout: float | None) -> TimeoutError:
    return TimeoutError(f"they did not come within {timeout:g} seconds")


def _distributed() -> Any:
    """``torch.distributed`` if it is initialised."""
    distributed = sys.modules.get("torch.distributed")
    usable = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if usable else None
