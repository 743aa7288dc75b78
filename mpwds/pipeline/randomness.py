"""Random numbers and orders: seeds of users' functions, draws without a state, and a permutation."""

from __future__ import annotations

import hashlib
import math
import random
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType, NoneType
from typing import TYPE_CHECKING, Any, TypeVar

import msgpack

from mpwds.errors import SharedRandomError
from mpwds.imports import after_import
from mpwds.pipeline.context import Context
from mpwds.pipeline.stream import Address

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

States = list[tuple[Callable[[Any], object], Any]]

A = TypeVar("A")
R = TypeVar("R")

Call = Callable[[Callable[[Any], Any], Any, Any], Any]
"""``call(function, address, argument)`` returns ``function(argument)`` for the element at ``address``."""


def seeded(context: Context) -> Call:
    """Returns a function that calls functions, and seeds the global random generators before each call.

    The seed depends on the context's seed, epoch and stage and on the element's address. To seed all three
    generators takes 6 us. Unless ``context.owns_process``, the previous states are restored, so that
    iterating a dataset does not change the random numbers of the program around it. That takes 60 us, once
    for each element that the pipeline yields through ``iter_elements``, else after each call.
    """
    stage = repr((context.seed or 0, context.moment, context.stage)).encode()
    origin = hashlib.blake2b(stage, digest_size=8).digest()
    pack = msgpack.Packer().pack  # a tuple packs as the list it may have been in a message

    def call(function: Callable[[A], R], address: Address, argument: A) -> R:
        # ``seed_generators`` inline, as a worker calls this for each sample.
        global _latest_seed
        random.seed(int.from_bytes(origin + pack(address), "little"))
        _latest_seed = random.getrandbits(64)
        if (numpy_random := sys.modules.get("numpy.random")) is not None:
            numpy_random.seed(_latest_seed & 0xFFFFFFFF)
        if (torch_random := sys.modules.get("torch.random")) is not None:
            _seed_torch(torch_random)
        return function(argument)

    def call_and_put_back(function: Callable[[A], R], address: Address, argument: A) -> R:
        if saved_rng.draws is FORBIDDEN:
            return function(argument)
        if saved_rng.draws is CHECKED:
            function = without_draws(function)
        requested = saved_rng.states
        states = [] if requested is None else requested
        if not states:
            states.extend(generator_states())
        seed_generators(int.from_bytes(origin + pack(address), "little"))
        try:
            return function(argument)
        finally:
            if requested is None:
                restore_rng(states)

    if not context.owns_process:
        return call_and_put_back
    seed_late_imports()
    return call


def unseeded(function: Callable[[A], R], address: Address, argument: A) -> R:
    """The call without seeding, for functions that draw no random numbers."""
    return function(argument)


def without_draws(function: Callable[[A], R]) -> Callable[[A], R]:
    """``function``; a ``SharedRandomError`` if it draws from the process's random generators."""

    def call(argument: A) -> R:
        before = _comparable_states()
        result = function(argument)
        after = _comparable_states()
        if any(after[generator] != state for generator, state in before.items()):
            raise SharedRandomError(
                "the function draws from random, numpy.random or torch, whose generators all threads share, "
                "so its numbers would differ from run to run: draw in a stage that no thread runs, or from a "
                "generator of the function's own"
            )
        return result

    return call


def _comparable_states() -> dict[Callable[[Any], object], Any]:
    return {set_state: _comparable(state) for set_state, state in generator_states()}


def _comparable(state: Any) -> Any:
    if isinstance(state, tuple):
        return tuple(map(_comparable, state))
    return state if isinstance(state, (int, float, str, NoneType)) else state.tolist()


def seed_generators(seed: int) -> None:
    """Seeds ``random``, which draws the seeds of ``numpy.random`` and torch if they are imported."""
    global _latest_seed
    random.seed(seed)
    _latest_seed = random.getrandbits(64)
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        _seed_numpy(numpy_random)
    if (torch_random := sys.modules.get("torch.random")) is not None:
        _seed_torch(torch_random)


def seed_late_imports() -> None:
    """Seeds NumPy's and torch's generators when they are imported, which a call that draws may do."""
    after_import("numpy.random", _seed_numpy)
    after_import("torch.random", _seed_torch)


def generator_states() -> States:
    """The states of the generators that :func:`seed_generators` seeds, for :func:`restore_rng`."""
    states: States = [(random.setstate, random.getstate())]
    if "numpy" in sys.modules:
        import numpy.random

        states.append((numpy.random.set_state, numpy.random.get_state()))
    if (torch_random := sys.modules.get("torch.random")) is not None:
        generator = torch_random.default_generator
        states.append((generator.set_state, generator.get_state()))
    return states


def restore_rng(states: States) -> None:
    """Gives the generators the states they had at :func:`generator_states`."""
    for set_state, state in states:
        set_state(state)


CHECKED, FORBIDDEN = "checked", "forbidden"


class _PutAside(threading.local):
    """The states of the program's generators when the current element was requested.

    In a thread that runs stages, ``draws`` is ``CHECKED`` while the program waits, else ``FORBIDDEN``.
    """

    states: States | None = None  # None outside a request; empty until a generator is first seeded for it
    draws: str = ""


saved_rng = _PutAside()

_latest_seed = 0


def _seed_numpy(numpy_random: ModuleType) -> None:
    numpy_random.seed(_latest_seed & 0xFFFFFFFF)


def _seed_torch(torch_random: ModuleType) -> None:
    # torch.manual_seed goes through all devices: 118 us.
    torch_random.default_generator.manual_seed(_latest_seed >> 1)


class Draws:
    """Numbered random draws, which need no state: a function of purpose and facts."""

    def __init__(self, purpose: str, *facts: object) -> None:
        self._hash = hashlib.blake2b(repr((purpose, *facts)).encode(), digest_size=8)

    def index(self, number: int, count: int) -> int:
        """An integer from 0 to ``count`` - 1."""
        return self._bits(number) % count

    def fraction(self, number: int) -> float:
        """A number from 0 to 1, 1 excluded."""
        return (self._bits(number) >> 11) / (1 << 53)

    def _bits(self, number: int) -> int:
        digest = self._hash.copy()
        digest.update(number.to_bytes(8, "little"))
        return int.from_bytes(digest.digest(), "little")


def worker_draws(purpose: str, context: Context, *facts: object) -> Draws:
    """Draws that differ from worker to worker, epoch to epoch and stage to stage."""
    place = (context.seed or 0, context.moment, context.rank, context.worker, context.stage)
    return Draws(purpose, *place, *facts)


_ROUNDS = 16  # fewer leave some permutations of 5 numbers more likely than others
_WORD = (1 << 64) - 1

Words = TypeVar("Words", int, "npt.NDArray[np.uint64]")


class Permutation(Sequence[int]):
    """A random permutation of the numbers below ``n``, of constant size in memory.

    A Feistel network permutes a grid of ``rows * columns >= n`` places: each round shifts a place along one
    axis by a hash of its other coordinate. A place beyond ``n`` is permuted again until it is below ``n``
    (cycle walking); the grid has fewer than ``rows`` places too many, so that is rare.

    It depends on ``facts``: purpose, seed, epoch, ...

    Source:
        J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002: their generalized
        Feistel construction. The hash of a round is the finalizer of SplitMix64.
    """

    def __init__(self, n: int, *facts: object) -> None:
        self._n = n
        self._rows = math.isqrt(max(n - 1, 0)) + 1
        self._columns = -(-n // self._rows)
        digest = hashlib.shake_128(repr(facts).encode()).digest(8 * _ROUNDS)
        self._keys = struct.unpack(f"<{_ROUNDS}Q", digest)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, place: Any) -> Any:
        """The number at a place, which is not negative. Takes 6 us, and does not import NumPy."""
        if not 0 <= place < self._n:
            raise IndexError(f"there is no place {place} among {self._n}")
        number = self._permuted(place)
        while number >= self._n:
            number = self._permuted(number)
        return number

    def of(self, places: Sequence[int] | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """The numbers at some places. Takes 0.2 us each, if there are many."""
        import numpy as np

        numbers = self._permuted(np.array(places, np.uint64))
        while len(beyond := np.flatnonzero(numbers >= self._n)):
            numbers[beyond] = self._permuted(numbers[beyond])
        return numbers.astype(np.int64)

    def _permuted(self, places: Words) -> Words:
        left, right = places // self._columns, places % self._columns
        for round in range(0, _ROUNDS, 2):
            left = (left + _hash(right, self._keys[round])) % self._rows
            right = (right + _hash(left, self._keys[round + 1])) % self._columns
        return left * self._columns + right


def _hash(values: Words, key: int) -> Words:
    """63 random bits for each value, so that a sum with them stays below 2**64."""
    mixed: Any = (values * 0x9E3779B97F4A7C15 + key) & _WORD
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _WORD
    return (mixed ^ (mixed >> 31)) >> 1  # type: ignore[no-any-return]  # as its argument
