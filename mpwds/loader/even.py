"""Epochs of equally many batches on all ranks, which agree on the number by messages if need be."""

from __future__ import annotations

import concurrent.futures
import copy
import ctypes
import functools
import itertools
import math
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, get_args

from mpwds.errors import EvenEpochError
from mpwds.loader.engine.epoch import NOT_YET, EpochBatches
from mpwds.loader.engine.options import Even
from mpwds.loader.worker.elements import CountOf
from mpwds.pipeline.context import Context
from mpwds.pipeline.epochs import epoch_of_repetition
from mpwds.pipeline.stream import LengthUnknown
from mpwds.warn import warn


def even_length(even: Even, count: CountOf, here: Context) -> int:
    """The ``len()`` of a loader whose epochs are even: batches on every rank."""
    counts = [count(rank, False) for rank in _all_ranks(here)]
    return min(counts) if even == "drop" else max(counts)


def _all_ranks(here: Context) -> list[Context]:
    return [replace(here, rank=rank) for rank in range(here.world_size)]


def evened(
    even: Even,
    here: Context,
    start: Callable[[int, bool], Iterator[Any]],
    count: CountOf,
    delivered: int,
    has_moved: bool,
    timeout: float | None,
    window: int,
) -> EvenIterator:
    """Begins an even epoch of a loader, or of the stages after it, on one of several ranks.

    ``start`` begins an epoch by its number; its second argument says whether batches are taken ahead. Of a
    resumed epoch, each rank ``delivered`` as many batches before. What is left of one that ``has_moved`` here
    from other ranks cannot be counted, and may be nothing. ``window`` is that of ``LengthConsensus``.
    """

    def begin(number: int) -> Iterator[Any]:
        return start(epoch_of_repetition(number, "wrap", here.epoch) if number else here.epoch, not counts)

    counts: list[int] = []
    if not has_moved:
        with suppress(LengthUnknown):
            counts = [count(rank, True) for rank in _all_ranks(here)]
    if counts:
        target = target_of(even, counts)
        own = counts[here.rank]
        part = RankShard(begin, even if own < target else "drop", max(0, own - delivered))
        return EvenIterator(part, lambda delivered: target - delivered, delivered)
    ranks = TorchRanks()
    part = RankShard(begin, even)
    timeout = None if timeout is None else timeout * (window + 1)
    agreement = LengthConsensus(ranks, part.look_ahead, even, here.epoch, timeout, window)
    # That a rank has nothing is an error at the start of an epoch only.
    return EvenIterator(part, agreement, delivered or int(has_moved))


class EvenIterator(EpochBatches):
    """The batches of an epoch, as many as all other ranks deliver.

    ``grant`` is told how many batches were delivered, and returns how many more each rank delivers before it
    is called again; 0 ends the epoch.
    """

    def __init__(self, part: EvenPart, grant: Callable[[int], int], delivered: int = 0) -> None:
        self._delivered = delivered
        self._part = part
        self._grant = grant
        self._granted = 0
        self._running = True

    def __next__(self) -> Any:
        if not self._running:
            raise StopIteration
        return self._next(self._part.next)

    def _next(self, take: Callable[[], Any]) -> Any:
        try:
            if self._granted == 0:
                self._granted = self._grant(self._delivered)
            if self._granted == 0:
                self._part.check_all_came()
                raise StopIteration
            batch = take()
        except BaseException:
            self._running = False
            self._part.close()
            raise
        if batch is not NOT_YET:
            self._granted -= 1
            self._delivered += 1
        return batch


class EvenPart(Protocol):
    def next(self) -> Any: ...

    def check_all_came(self) -> None: ...

    def close(self) -> None: ...


class RankShard:
    """A rank's part of an epoch, of ``counted`` batches, if that is known. Some may be taken ahead.

    ``passes`` begins pass ``n`` through the part. Pass 0 is the epoch; the order of others should differ.
    The last batch is followed by copies of it with ``"pad"``, by another pass with ``"wrap"``.
    """

    def __init__(
        self, passes: Callable[[int], Iterator[Any]], even: Even, counted: int | None = None
    ) -> None:
        self._even = even
        self._counted = counted
        self._taken = 0
        self._source: Iterator[Any] | None = passes(0)
        self._again = _other_passes(passes)
        self._ahead: deque[Any] = deque()
        self._last: Any = None

    def look_ahead(self, number: int) -> int:
        """Takes batches ahead until there are ``number`` of them, or it ends; returns how many there are."""
        while len(self._ahead) < number and self._source is not None:
            try:
                batch = next(self._source)
            except StopIteration:
                self._source = None
                if self._counted is not None and self._taken != self._counted:
                    raise self._miscounted("ended") from None
                break
            if self._taken == self._counted:
                raise self._miscounted("continues")
            self._taken += 1
            self._ahead.append(batch)
        return len(self._ahead)

    def next(self) -> Any:
        """Its next batch, or a repeated one after the last, which ``counted`` or looking ahead tells."""
        if self.look_ahead(1) == 0:
            # When an epoch is resumed inside its padding, the last real batch is not known.
            return next(self._again) if self._last is None else copy.deepcopy(self._last)
        batch = self._ahead.popleft()
        is_last = not self._ahead and (self._source is None or self._taken == self._counted)
        if is_last and self._even == "pad":
            self._last = copy.deepcopy(batch)  # the training loop may write into the batch itself
        return batch

    def check_all_came(self) -> None:
        """Makes sure that no batch follows the last one that was counted, if that has been taken."""
        if self._taken == self._counted:
            self.look_ahead(len(self._ahead) + 1)

    def close(self) -> None:
        self._source, self._again, self._last = None, iter(()), None
        self._ahead.clear()

    def _miscounted(self, what: str) -> EvenEpochError:
        return EvenEpochError(
            f"this rank's part of the epoch {what} after {self._taken} batches, but {self._counted} were "
            "counted, and other ranks expect as many: the dataset has changed, or a rank's part of it was "
            "empty"
        )


def _other_passes(passes: Callable[[int], Iterator[Any]]) -> Iterator[Any]:
    for number in itertools.count(1):
        batches = passes(number)
        try:
            yield next(batches)
        except StopIteration:
            raise EvenEpochError(
                f'even="wrap": pass {number} through this rank\'s part of the dataset gave no batch'
            ) from None
        yield from batches


WINDOW = 4
"""The least number of batches that ranks agree on at once: that takes as long as three threads to wake up."""


def window_of(workers: int) -> int:
    """Batches of a loader that ranks agree on at once: a round of its workers. It may differ on ranks.

    They are taken ahead of the training loop, with one more to pad.
    """
    return max(WINDOW, workers)


_EVEN: tuple[Even, ...] = get_args(Even)
_NOBODY = -1


@dataclass(eq=False)
class LengthConsensus:
    """Grants batches as the ranks agree, window by window.

    Each rank takes up to ``window`` batches ahead of the training loop and tells the others how many it has.
    They exchange numbers again after each has delivered as many as all of them have. To pad, a rank takes one
    batch more, to see whether the one before is its last.

    Every message says how many messages its rank has sent, and its loader's arguments. So all ranks see in
    the first message if one left an epoch early or has other arguments, and none waits forever. ``timeout``
    is in seconds, by default that of ``torch.distributed``.
    """

    ranks: TorchRanks
    look_ahead: Callable[[int], int]
    even: Even
    epoch: int
    timeout: float | None
    window: int = WINDOW
    part: str = "rank"
    _round: int | None = None
    _messages: int = 0

    def __call__(self, delivered: int) -> int:
        """Returns how many more batches every rank delivers before it calls again; 0 ends the epoch."""
        try:
            ready = min(self.look_ahead(self.window + (self.even == "pad")), self.window)
        except Exception:
            with suppress(EvenEpochError):  # which says that this rank failed
                self._tell(0, failed=True)
            raise
        least, most = self._tell(ready)
        if delivered == 0:
            return target_of(self.even, (least, most), self.part)
        return least if self.even == "drop" else most

    def _tell(self, ready: int, failed: bool = False) -> tuple[int, int]:
        """Tells the ranks how many batches are ready here; returns the least and the most of all ranks."""
        ranks = self.ranks
        if self._round is None:
            self._round = ranks.begin_round()
        even = _EVEN.index(self.even)
        place = {"round": self._round, "message": self._messages, "even": even, "epoch": self.epoch}
        self._messages += 1
        said = [*place.values(), ready]
        failing = ranks.rank if failed else _NOBODY
        # The smallest numbers travel as the largest of their negatives.
        heard = ranks.largest([*said, *(-number for number in said), failing], self.timeout)
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
            if name in ("round", "message"):
                raise EvenEpochError(
                    f"rank {self.ranks.rank} is not at the same place of the same epoch as others: one has "
                    "left an epoch early, or iterates another loader. All ranks have to iterate the same "
                    "loaders in the same order, and to leave an epoch at the same batch"
                )
            shown = [_EVEN[number] if name == "even" else str(number) for number in (least, most, own[name])]
            raise EvenEpochError(
                f"the ranks' loaders differ in {name}, from {shown[0]} to {shown[1]}, on rank "
                f"{self.ranks.rank} {shown[2]}: {_REMEDIES[name]}"
            )


_REMEDIES = {
    "even": "give the loader the same even= on all ranks",
    "epoch": "call set_epoch with the same number on all ranks, and iterate the loader equally often",
}


def target_of(even: Even, counts: Sequence[int], part: str = "rank") -> int:
    """The batches that every rank delivers (or the rounds of an epoch, if each ``part`` is a stream).

    ``counts`` are those of all ranks, or the extremes of these.
    """
    least, most = min(counts), max(counts)
    if least == 0 < most:
        advice = f"use more shards, smaller shards, or fewer {part}s"
        if even != "drop":
            raise EvenEpochError(
                f'even="{even}": a {part} has no batch at all to repeat, while others have some: {advice}'
            )
        warn(f'even="drop": a {part} has no batch at all, so no rank gets any: {advice}')
    return least if even == "drop" else most


def world_size() -> int:
    """The number of ranks among which shards are divided, or that ``torch.distributed`` knows."""
    distributed = _torch_distributed()
    return max(Context.current().world_size, 1 if distributed is None else distributed.get_world_size())


MOST_IN_MESH = 64
"""Ranks of a group, each of which has a connection to every other."""


class TorchRanks:
    """The ranks of ``torch.distributed``.

    Messages go through gloo groups of their own, on the processor, whatever backend the job uses. More than
    ``MOST_IN_MESH`` ranks form blocks of about the square root of their number. A block agrees first, then
    the first ranks of all blocks, and each tells its block: 4,096 ranks have 63 or 126 connections each.
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

    def begin_round(self) -> int:
        """The number of a new round of messages, the same on all ranks while all begin the same rounds."""
        return next(_rounds)

    def largest(self, numbers: Sequence[int], timeout: float | None) -> list[int]:
        """The largest number that any rank passes, for each place; all ranks pass as many."""
        import torch

        tensor = torch.tensor(numbers, dtype=torch.int64)
        distributed = self._distributed
        try:
            (first, block), *leaders = _own_groups(distributed, timeout)
            wait = functools.partial(self._wait, timeout, tensor, async_op=True)
            wait(distributed.all_reduce, op=distributed.ReduceOp.MAX, group=block)
            for _, group in leaders:
                if self.rank == first:
                    wait(distributed.all_reduce, op=distributed.ReduceOp.MAX, group=group)
                wait(distributed.broadcast, src=first, group=block)
        except (RuntimeError, TimeoutError) as error:
            raise EvenEpochError(
                f"rank {self.rank} waited for the other ranks, to agree on the number of batches, and one of "
                f"them is gone or did not come: {error} (all ranks have to iterate the loader, in step)"
            ) from error
        largest: list[int] = tensor.tolist()
        return largest

    def _wait(
        self, timeout: float | None, tensor: Any, send: Callable[..., Any], *, group: Any, **options: Any
    ) -> None:
        work = send(tensor, group=group, **options)
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


_rounds = itertools.count()
_own: tuple[Callable[[], Any], concurrent.futures.Future[list[tuple[int, Any]]]] | None = None


def _own_groups(distributed: Any, timeout: float | None) -> list[tuple[int, Any]]:
    """The groups for these messages, each with its first rank. They live as long as the default group."""
    global _own
    world = distributed.group.WORLD
    if _own is None or _own[0]() is not world:
        made: concurrent.futures.Future[list[tuple[int, Any]]] = concurrent.futures.Future()

        def make() -> None:
            try:
                made.set_result(_made_groups(distributed))
            except Exception as error:
                made.set_exception(error)

        # new_group waits for all ranks, and Ctrl-C does not get through to it.
        threading.Thread(target=make, name="mpwds new_group", daemon=True).start()
        _own = weakref.ref(world), made
    try:
        return _own[1].result(timeout)
    except concurrent.futures.TimeoutError:
        raise _late(timeout) from None


def _made_groups(distributed: Any) -> list[tuple[int, Any]]:
    """This rank's block, and the first ranks of all blocks if there are several."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    size = ranks if ranks <= MOST_IN_MESH else math.isqrt(ranks - 1) + 1
    block = range(rank - rank % size, min(rank - rank % size + size, ranks))
    groups = []
    for members in (block, range(0, ranks, size))[: 1 if len(block) == ranks else 2]:
        group = None
        if rank in members:
            group = distributed.new_group(list(members), backend="gloo", use_local_synchronization=True)
        groups.append((members[0], group))
    return groups


def _torch_distributed() -> Any:
    """``torch.distributed`` if it is initialised."""
    distributed = sys.modules.get("torch.distributed")
    usable = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if usable else None


def _late(timeout: float | None) -> TimeoutError:
    return TimeoutError(f"they did not come within {timeout:g} seconds")
