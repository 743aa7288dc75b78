"""How the ranks agree on a number of batches: by messages that also show whether they are in step."""

from __future__ import annotations

import concurrent.futures
import ctypes
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from mpwds.errors import EvenEpochError
from mpwds.loader.engine.options import Even
from mpwds.loader.ranks.even import EVEN, torch_distributed
from mpwds.pipeline.context import Context

_NOBODY = -1


class Offers(NamedTuple):
    """The smallest and the largest number of batches that a rank has ready."""

    least: int
    most: int


class Agreement:
    """The messages by which ranks agree on one epoch.

    Every message has the same length, and says how many messages its rank has sent and what its loader was
    asked to do. If a rank left an epoch early or has other arguments, all ranks see that in the first
    message, and none waits forever.

    Args:
        ranks: The ranks.
        even: The loader's.
        epoch: Number of the epoch.
        timeout: Seconds to wait for the others' answer; ``None`` leaves that to the ranks.
    """

    def __init__(self, ranks: Ranks, even: Even, epoch: int, timeout: float | None) -> None:
        self._ranks = ranks
        self._timeout = timeout
        self._terms = {"even": EVEN.index(even), "epoch": epoch}
        self._talk: int | None = None
        self._messages = 0

    def batches(self, ready: int, failed: bool = False) -> Offers:
        """How many more batches the ranks have ready.

        Args:
            ready: This rank's; 0 at its end.
            failed: This rank failed, so all ranks have to raise.

        Raises:
            EvenEpochError: The ranks are not in step, or one failed. All ranks raise it.
        """
        ranks = self._ranks
        if self._talk is None:
            self._talk = ranks.begin_talk()
        place = {"talk": self._talk, "message": self._messages, **self._terms}
        self._messages += 1
        said = [*place.values(), ready]
        failing = ranks.rank if failed else _NOBODY
        # The smallest numbers travel as the largest of their negatives.
        heard = ranks.largest([*said, *(-number for number in said), failing], self._timeout)
        ranges = [(-least, most) for most, least in zip(heard, heard[len(said) : -1], strict=False)]
        self._check_place(dict(zip(place, ranges, strict=False)), place)
        if heard[-1] != _NOBODY:
            raise EvenEpochError(
                f"rank {heard[-1]} failed while it made its next batches, so the epoch ends on rank "
                f"{ranks.rank} too: see the error of rank {heard[-1]}"
            )
        return Offers(*ranges[-1])

    def _check_place(self, ranges: dict[str, tuple[int, int]], own: dict[str, int]) -> None:
        apart = {name for name, (least, most) in ranges.items() if least != most}
        if not apart:
            return
        if apart & {"talk", "message"}:
            raise EvenEpochError(
                f"rank {self._ranks.rank} is not at the same place of the same epoch as others: one has left "
                "an epoch early, or iterates another loader. All ranks have to iterate the same loaders in "
                "the same order, and to leave an epoch at the same batch"
            )
        name = next(name for name in self._terms if name in apart)
        least, most = ranges[name]
        shown = [EVEN[number] if name == "even" else str(number) for number in (least, most, own[name])]
        raise EvenEpochError(
            f"the ranks' loaders differ in {name}, from {shown[0]} to {shown[1]}, on rank {self._ranks.rank} "
            f"{shown[2]}: {_REMEDIES[name]}"
        )


_REMEDIES = {
    "even": "give the loader the same even= on all ranks",
    "epoch": "call set_epoch with the same number on all ranks, and iterate the loader equally often",
}


class Ranks(Protocol):
    """The ranks of a job, as one of them sees them: its own number, and how many there are."""

    rank: int
    size: int

    def begin_talk(self) -> int:
        """The number of a new talk, the same on all ranks as long as all begin the same talks."""
        ...

    def largest(self, numbers: Sequence[int], timeout: float | None) -> list[int]:
        """The largest number that any rank passes, for each place. All have to call it, in the same order.

        Args:
            numbers: As many on all ranks.
            timeout: Seconds to wait for the others; ``None`` leaves that to ``torch.distributed``.

        Raises:
            EvenEpochError: A rank is gone, or did not come in time.
        """
        ...


class TorchRanks:
    """The ranks of ``torch.distributed``. They talk in a gloo group of their own, on the processor.

    So it makes no difference which backend the job uses, nor what it is doing with it. The group is made once
    in a process, when the ranks first talk.

    Raises:
        EvenEpochError: ``torch.distributed`` is not initialised.
    """

    def __init__(self) -> None:
        distributed = torch_distributed()
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

        # new_group waits for all ranks, and Ctrl-C does not get through to it.
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
