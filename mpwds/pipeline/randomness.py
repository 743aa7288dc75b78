"""Random numbers that a user's function draws: the same for an element wherever and whenever it is made."""

from __future__ import annotations

import hashlib
import random
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import msgpack

from mpwds.imports import after_import
from mpwds.pipeline.context import Context
from mpwds.pipeline.stream import Address

States = list[tuple[Callable[[Any], object], Any]]

A = TypeVar("A")
R = TypeVar("R")

Call = Callable[[Callable[[Any], Any], Any, Any], Any]
"""``call(function, address, argument)``: ``function(argument)``, run for the element at ``address``."""


def seeded(context: Context) -> Call:
    """A way to call functions that seeds the global random generators before each call.

    They are seeded from the context's seed, epoch and stage and the element's address: 6 us for all three.
    In a process that runs nothing but the pipeline (``context.owns_process``) that is all. Elsewhere
    the generators' previous states are put back, so that iterating a dataset never changes the random
    numbers of the program around it: 60 us, once for each element that is handed out at the end of the
    pipeline (``plain`` in ``mpwds.pipeline.filter``); after each call where nobody does that.

    Args:
        context: Gives the seed, the epoch, the stage's position and whose process this is.

    Example:
        >>> call = seeded(Context(seed=1))
        >>> draw = lambda element: random.random()
        >>> call(draw, 17, None) == call(draw, 17, None) != call(draw, 18, None)
        True
    """
    stage = repr((context.seed or 0, context.moment, context.stage)).encode()
    origin = hashlib.blake2b(stage, digest_size=8).digest()
    pack = msgpack.Packer().pack  # a tuple packs as the list it may have been in a message

    def call(function: Callable[[A], R], address: Address, argument: A) -> R:
        seed_generators(int.from_bytes(origin + pack(address), "little"))
        return function(argument)

    def call_and_put_back(function: Callable[[A], R], address: Address, argument: A) -> R:
        states = put_aside.states
        if states is not None:
            if not states:
                states.extend(generator_states())
            seed_generators(int.from_bytes(origin + pack(address), "little"))
            return function(argument)
        before = generator_states()
        seed_generators(int.from_bytes(origin + pack(address), "little"))
        try:
            return function(argument)
        finally:
            put_back(before)

    if not context.owns_process:
        return call_and_put_back
    seed_late_imports()
    return call


def unseeded(function: Callable[[A], R], address: Address, argument: A) -> R:
    """The same call without seeding, for functions of mpwds itself, which draw nothing."""
    return function(argument)


def seed_generators(seed: int) -> None:
    """Seeds ``random``, ``numpy.random`` and torch's default generator, where they are imported.

    Args:
        seed: Of any length. Python's generator takes all of it and draws what the others are seeded with.
    """
    random.seed(seed)
    _seed_others(random.getrandbits(64))


def seed_late_imports() -> None:
    """From now on NumPy's and torch's generators, when they are imported, get the seed that counts then.

    NumPy imports ``numpy.random`` when it is first used, which may be inside the call that draws from it.
    For a process that runs nothing but a pipeline.
    """
    after_import("numpy.random", _seed_numpy)
    after_import("torch.random", _seed_torch)


def generator_states() -> States:
    """The states of the generators that :func:`seed_generators` seeds, for :func:`put_back`."""
    states: States = [(random.setstate, random.getstate())]
    if "numpy" in sys.modules:
        import numpy.random

        states.append((numpy.random.set_state, numpy.random.get_state()))
    torch_random = sys.modules.get("torch.random")
    if torch_random is not None:
        generator = torch_random.default_generator
        states.append((generator.set_state, generator.get_state()))
    return states


def put_back(states: States) -> None:
    """Gives the generators the states they had at :func:`generator_states`."""
    for set_state, state in states:
        set_state(state)


class _PutAside(threading.local):
    """What the program's generators held when the element under way was asked for.

    Attributes:
        states: ``None`` outside such a request; empty until a generator is first seeded for it.
    """

    states: States | None = None


put_aside = _PutAside()

_latest_seed = 0


def _seed_others(seed: int) -> None:
    global _latest_seed
    _latest_seed = seed
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        _seed_numpy(numpy_random)
    torch_random = sys.modules.get("torch.random")
    if torch_random is not None:
        _seed_torch(torch_random)


def _seed_numpy(numpy_random: ModuleType) -> None:
    numpy_random.seed(_latest_seed & 0xFFFFFFFF)


def _seed_torch(torch_random: ModuleType) -> None:
    # torch.manual_seed goes through all devices: 118 us.
    torch_random.default_generator.manual_seed(_latest_seed >> 1)


class Draws:
    """Numbered random draws, which need no state: a function of purpose and facts.

    Example:
        >>> draws = Draws("shards", 7, "worker 0")
        >>> draws.index(0, 10) == draws.index(0, 10)
        True
    """

    def __init__(self, purpose: str, *facts: object) -> None:
        self._hash = hashlib.blake2b(repr((purpose, *facts)).encode(), digest_size=8)

    def index(self, number: int, count: int) -> int:
        """Draw ``number``: a whole number from 0 to ``count`` - 1."""
        return self._bits(number) % count

    def fraction(self, number: int) -> float:
        """Draw ``number``: a number from 0 to 1, 1 excluded."""
        return (self._bits(number) >> 11) / (1 << 53)

    def _bits(self, number: int) -> int:
        digest = self._hash.copy()
        digest.update(number.to_bytes(8, "little"))
        return int.from_bytes(digest.digest(), "little")


def worker_draws(purpose: str, context: Context, *facts: object) -> Draws:
    """Draws that differ from worker to worker, epoch to epoch and stage to stage."""
    place = (context.seed or 0, context.moment, context.rank, context.worker, context.stage)
    return Draws(purpose, *place, *facts)
