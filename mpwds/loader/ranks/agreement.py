"""How the ranks agree on the number of batches: one message, in which each can see that all mean the same."""

from __future__ import annotations

from typing import NamedTuple, get_args

from mpwds.errors import EvenEpochError
from mpwds.loader.options import Even
from mpwds.loader.ranks.ranks import Ranks

EVEN: tuple[Even, ...] = get_args(Even)

_NOBODY = -1


class Offers(NamedTuple):
    """The smallest and the largest number of batches that a rank has ready."""

    least: int
    most: int


class Agreement:
    """The messages by which ranks agree on one epoch.

    Every message has the same length, and says how many messages its rank has sent and what its loader was
    asked to do. If one rank left an epoch early or has other arguments, all ranks see that in the first
    message: none of them waits for ever.

    Args:
        ranks: The ranks.
        even: The loader's.
        epoch: Number of the epoch.
        timeout: Seconds to wait for the others' answer; ``None`` leaves that to the ranks.
    """

    def __init__(self, ranks: Ranks, even: Even, epoch: int, timeout: float | None) -> None:
        self._ranks = ranks
        self._even = even
        self._timeout = timeout
        self._terms = {"even": EVEN.index(even), "epoch": epoch}
        self._talk: int | None = None
        self._messages = 0

    def batches(self, ready: int, failed: bool = False) -> Offers:
        """How many more batches the ranks have ready.

        Args:
            ready: This rank's; 0 at its end.
            failed: This rank failed, so that all ranks have to raise.

        Raises:
            EvenEpochError: Ranks do not agree, or cannot; then all of them raise it.
        """
        ranks = self._ranks
        if self._talk is None:
            self._talk = ranks.begin_talk()
        place = {"talk": self._talk, "message": self._messages, **self._terms}
        self._messages += 1
        said = [*place.values(), ready]
        failing = ranks.rank if failed else _NOBODY
        heard = ranks.largest([*said, *(-number for number in said), failing], self._timeout)
        ranges = [(-least, most) for most, least in zip(heard, heard[len(said) : -1], strict=False)]
        self._check_place(dict(zip(place, ranges, strict=False)), place)
        if heard[-1] != _NOBODY:
            raise EvenEpochError(
                f"rank {heard[-1]} failed while it made its next batches, so the epoch ends on rank "
                f"{ranks.rank} too: the error is on rank {heard[-1]}"
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
