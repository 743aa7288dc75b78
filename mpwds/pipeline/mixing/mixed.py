"""The stream of a mix of several sources."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

from mpwds.pipeline.context import Context
from mpwds.pipeline.parts import within
from mpwds.pipeline.randomness import Draws, worker_draws
from mpwds.pipeline.repetitions import Repetitions
from mpwds.pipeline.stream import Address, Description

if TYPE_CHECKING:
    from mpwds.pipeline.mixing.mix import Mix


class Mixed:
    """Elements of several sources. An address is (source, repetition of it, address in it).

    Args:
        mix: What is mixed and how.
        context: Handed on to the sources.
    """

    def __init__(self, mix: Mix, context: Context) -> None:
        self._runs = [
            Repetitions(part.stream, within(context, number)) for number, part in enumerate(mix.parts)
        ]
        self._rule = mix.stop
        self._left = mix.stop if isinstance(mix.stop, int) else None
        self._in_play = [weight > 0 for weight in mix.weights]
        self._empty = [True] * len(mix.parts)  # the run under way has given nothing
        self._exhausted = [False] * len(mix.parts)
        self._order: _Order
        if mix.order == "turns":
            self._order = _Turns()
        elif mix.order == "exact":
            self._order = Exact(mix.weights)
        else:
            draws = (
                worker_draws("mix", context) if mix.seed is None else worker_draws("mix", context, mix.seed)
            )
            self._order = _AtRandom(mix.weights, draws)

    def __iter__(self) -> Mixed:
        return self

    def __next__(self) -> tuple[Address, Any]:
        while self._left != 0 and any(self._in_play):
            part = self._order.next(self._in_play)
            runs = self._runs[part]
            while self._in_play[part]:
                try:
                    address, element = next(runs.stream)
                except StopIteration:
                    self._run_ended(part)
                    continue
                self._empty[part] = False
                self._order.taken(part)
                if self._left is not None:
                    self._left -= 1
                return (part, runs.number, address), element
        raise StopIteration

    def _run_ended(self, part: int) -> None:
        """Starts the source again, takes it out of play, or ends the mix by taking all out."""
        if self._rule == "first_exhausted":
            self._in_play = [False] * len(self._in_play)
            return
        self._exhausted[part] = True
        if self._empty[part] or self._rule == "all_exhausted_without_replacement":
            self._in_play[part] = False
            self._order.dropped()
        else:
            self._runs[part].begin(self._runs[part].number + 1)
            self._empty[part] = True
        if self._rule == "all_exhausted":
            waiting = [plays and not done for plays, done in zip(self._in_play, self._exhausted, strict=True)]
            if not any(waiting):
                self._in_play = waiting

    def fetch(self, address: Any) -> Any:
        part, repetition, address = address
        return self._runs[part].at(repetition).fetch(address)

    def describe(self, address: Any, element: object = None) -> Description:
        part, repetition, address = address
        place: Description = self._runs[part].at(repetition).describe(address, element)
        return place

    def state_dict(self) -> dict[str, Any]:
        return {
            "parts": [runs.state_dict() for runs in self._runs],
            "in_play": list(self._in_play),
            "empty": list(self._empty),
            "exhausted": list(self._exhausted),
            "order": self._order.state_dict(),
            "left": self._left,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for runs, part in zip(self._runs, state["parts"], strict=True):
            runs.load_state_dict(part)
        self._in_play = list(state["in_play"])
        self._empty = list(state["empty"])
        self._exhausted = list(state["exhausted"])
        self._order.load_state_dict(state["order"])
        self._left = state["left"]


class _Order(Protocol):
    """Says which source gives the next element."""

    def next(self, in_play: list[bool]) -> int:
        """A source in play; at least one is."""
        ...

    def taken(self, part: int) -> None:
        """Source ``part`` gave an element."""
        ...

    def dropped(self) -> None:
        """A source is out of play from now on."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class _AtRandom:
    def __init__(self, weights: Any, draws: Draws) -> None:
        self._weights = weights
        self._draws = draws
        self._drawn = 0

    def next(self, in_play: list[bool]) -> int:
        weights = [weight if plays else 0.0 for weight, plays in zip(self._weights, in_play, strict=True)]
        rest = self._draws.fraction(self._drawn) * sum(weights)
        self._drawn += 1
        last = 0
        for part, weight in enumerate(weights):
            if weight:
                if rest < weight:
                    return part
                rest -= weight
                last = part
        return last  # rounding may leave a rest at the very end

    def taken(self, part: int) -> None:
        pass

    def dropped(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self._drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._drawn = state["drawn"]


class _Turns:
    def __init__(self) -> None:
        self._last = -1

    def next(self, in_play: list[bool]) -> int:
        count = len(in_play)
        return next(
            part % count for part in range(self._last + 1, self._last + 1 + count) if in_play[part % count]
        )

    def taken(self, part: int) -> None:
        self._last = part

    def dropped(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"last": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._last = state["last"]


class Exact:
    """An order whose every beginning holds each source's share, to less than one element.

    An element of a source may come as soon as the source's share reaches into it, and must have come when its
    share covers it; of those that may come, the one that must come first does. When a source drops out, the
    order begins anew with the others.

    Args:
        weights: Of each source.

    Example:
        >>> order = Exact([2, 1])
        >>> parts = []
        >>> for _ in range(6):
        ...     parts.append(order.next([True, True]))
        ...     order.taken(parts[-1])
        >>> parts
        [0, 1, 0, 0, 1, 0]
    """

    def __init__(self, weights: Any) -> None:
        shares = [Fraction(weight) for weight in weights]
        scale = max(
            share.denominator for share in shares
        )  # all are powers of two, so it is a multiple of all
        self._weights = [int(share * scale) for share in shares]
        self._counts = [0] * len(shares)

    def next(self, in_play: list[bool]) -> int:
        playing = [part for part, plays in enumerate(in_play) if plays]
        weights, counts = self._weights, self._counts
        total = sum(weights[part] for part in playing)
        number = sum(counts[part] for part in playing) + 1

        def urgency(part: int) -> tuple[int, int]:
            """The number of the element by which it must have come; then, the most overdue first."""
            deadline = -(-(counts[part] + 1) * total // weights[part])
            return deadline, counts[part] * total - number * weights[part]

        due = [part for part in playing if counts[part] * total < number * weights[part]]
        return min(due, key=urgency)

    def taken(self, part: int) -> None:
        self._counts[part] += 1

    def dropped(self) -> None:
        self._counts = [0] * len(self._counts)

    def state_dict(self) -> dict[str, Any]:
        return {"counts": list(self._counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._counts = list(state["counts"])
