"""Ranks that are threads of one process, for tests of how ranks talk."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

from mpwds.errors import EvenEpochError
from mpwds.loader.even import WINDOW


class AlikeRanks:
    """How a rank talks whose other ranks always say the same."""

    rank = 0

    def __init__(self):
        self._talks = itertools.count(1)

    def begin_round(self):
        return next(self._talks)

    def largest(self, numbers, timeout):
        return numbers


class LongerRanks(AlikeRanks):
    """How a rank talks whose other ranks always have more batches."""

    def largest(self, numbers, timeout):
        return [*numbers[:4], WINDOW, *numbers[5:]]


class _Rank:
    def __init__(self, rank, said, barrier):
        self.rank = rank
        self._said = said
        self._barrier = barrier
        self._talks = itertools.count()

    def begin_round(self):
        return next(self._talks)

    def largest(self, numbers, timeout):
        self._said[self.rank] = numbers
        try:
            self._barrier.wait(timeout or 600)
            heard = [max(column) for column in zip(*self._said, strict=True)]
            self._barrier.wait(600)
        except threading.BrokenBarrierError:
            raise EvenEpochError("a rank is gone") from None
        return heard


def on_all_ranks(size, run):
    """What ``run(ranks)`` returns on each of ``size`` ranks, or the exception that it raises there."""
    said, barrier = [None] * size, threading.Barrier(size)

    def run_one(rank):
        try:
            return run(_Rank(rank, said, barrier))
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run_one, range(size)))
