"""How the ranks agree on a number of batches: by messages that also show whether they are in step."""

from __future__ import annotations

import concurrent.futures
import ctypes
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, get_args

from mpwds.errors import EvenEpochError
from mpwds.loader.engine.options import Even
from mpwds.pipeline.context import Context
from mpwds.warn import warn

WINDOW = 4
"""Batches that ranks agree on at once: an agreement takes about as long as three threads take to wake up."""

MOST_AHEAD = WINDOW + 1
"""Batches that may be taken ahead of the training loop."""

_EVEN: tuple[Even, ...] = get_args(Even)
_NOBODY = -1


class Agreement:
    """Grants batches as the ranks agree, window by window.

    Each rank takes up to ``window`` batches ahead of the training loop and tells the others how many it has.
    They talk again when as many are delivered as all of them have. To pad, a rank takes one batch more, to
    see whether the one before is its last.

    Every message has the same length, and says how many messages its rank has sent and what its loader was
    asked to do. If a rank left an epoch early or has other arguments, all ranks see that in the first
    message, and none waits forever. ``timeout`` is in seconds, by default that of ``torch.distributed``.
    """

    def __init__(
        self,
        ranks: TorchRanks,
        look_ahead: Callable[[int], int],
        even: Even,
        epoch: int,
        timeout: float | None,
        window: int = WINDOW,
    ) -> None:
        self._ranks = ranks
        self._look_ahead = look_ahead
        self._even = even
        self._window = window
        self._timeout = timeout
        self._terms = {"even": _EVEN.index(even), "epoch": epoch}
        self._talk: int | None = None
        self._messages = 0

    def __call__(self, delivered: int) -> int:
        """How many more batches every rank delivers before it calls again; 0 ends the epoch."""
        try:
            ready = min(self._look_ahead(self._window + (self._even == "pad")), self._window)
        except Exception:
            with suppress(EvenEpochError):  # which says that this rank failed
                self._tell(0, failed=True)
            raise
        least, most = self._tell(ready)
        if delivered == 0:
            return target_of(self._even, (least, most))
        return least if self._even == "drop" else most

    def _tell(self, ready: int, failed: bool = False) -> tuple[int, int]:
        """Tells the ranks how many batches are ready here; returns the least and the most of all ranks."""
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
        return ranges[-1]

    def _check_place(self, ranges: dict[str, tuple[int, int]], own: dict[str, int]) -> None:
        for name, (least, most) in ranges.items():
            if least == most:
                continue
            if name in ("talk", "message"):
                raise EvenEpochError(
                    f"rank {self._ranks.rank} is not at the same place of the same epoch as others: one has "
                    "left an epoch early, or iterates another loader. All ranks have to iterate the same "
                    "loaders in the same order, and to leave an epoch at the same batch"
                )
            shown = [_EVEN[number] if name == "even" else str(number) for number in (least, most, own[name])]
            raise EvenEpochError(
                f"the ranks' loaders differ in {name}, from {shown[0]} to {shown[1]}, on rank "
                f"{self._ranks.rank} {shown[2]}: {_REMEDIES[name]}"
            )


_REMEDIES = {
    "even": "give the loader the same even= on all ranks",
    "epoch": "call set_epoch with the same number on all ranks, and iterate the loader equally often",
}


def target_of(even: Even, counts: Sequence[int]) -> int:
    """How many batches every rank delivers, given those of all ranks, or the smallest and largest number."""
    least, most = min(counts), max(counts)
    if least == 0 < most:
        if even != "drop":
            raise EvenEpochError(
                f'even="{even}": a rank has no batch at all to repeat, while others have some: use more '
                "shards, smaller shards, or fewer ranks"
            )
        warn(
            'even="drop": a rank has no batch at all, so no rank gets any: use more shards, smaller shards, '
            "or fewer ranks"
        )
    return least if even == "drop" else most


def world_size() -> int:
    """The number of ranks among which shards are divided, or that ``torch.distributed`` knows."""
    distributed = _torch_distributed()
    return max(Context.current().world_size, 1 if distributed is None else distributed.get_world_size())


class TorchRanks:
    """The ranks of ``torch.distributed``.

    They talk in a gloo group of their own, on the processor, whatever the job does with its backend.
    """

    def __init__(self) -> None:
        distributed = _torch_distributed()
        if distributed is None:
            here = Context.current()
            raise EvenEpochError(
                f"this is rank {here.rank} of {here.world_size}, and how many batches the ranks have cannot "
                "be known beforehand: call torch.distributed.init_process_group() before the loader is "
                "iterated, so that they can agree, or make epochs of n elements by with_epoch(n)"
            )
        self._distributed = distributed
        self.rank: int = distributed.get_rank()

    def begin_talk(self) -> int:
        """The number of a new talk, the same on all ranks as long as all begin the same talks."""
        return next(_talks)

    def largest(self, numbers: Sequence[int], timeout: float | None) -> list[int]:
        """The largest number that any rank passes, for each place; all ranks pass as many."""
        import torch

        tensor = torch.tensor(numbers, dtype=torch.int64)
        distributed = self._distributed
        try:
            group = _own_group(distributed, timeout)
            work = distributed.all_reduce(tensor, distributed.ReduceOp.MAX, group=group, async_op=True)
            done = threading.Event()  # Ctrl-C gets through to it, not to work.wait()
            work.get_future().add_done_callback(lambda _: done.set())
            try:
                if not done.wait(timeout):
                    raise _late(timeout)
            except BaseException:
                # A group that still waits for a message is never destroyed: its destructor waits for the
                # other ranks.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
                raise
            work.wait()
        except (RuntimeError, TimeoutError) as error:
            raise EvenEpochError(
                f"rank {self.rank} waited for the other ranks, to agree on the number of batches, and one of "
                f"them is gone or did not come: {error} (all ranks have to iterate the loader, in step)"
            ) from error
        largest: list[int] = tensor.tolist()
        return largest


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


def _torch_distributed() -> Any:
    """``torch.distributed`` if it is initialised."""
    distributed = sys.modules.get("torch.distributed")
    usable = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if usable else None


def _late(timeout: float | None) -> TimeoutError:
    return TimeoutError(f"they did not come within {timeout:g} seconds")
