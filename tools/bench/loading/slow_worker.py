"""Four workers, one of them 20 times slower than the others. The work is sleep: cores do not matter."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

import mpwds
from loading.contest import Contest, Contestant

BATCH_S = 0.02
TIMES_SLOWER = 20


class Sleepers:
    """Takes its time for each batch; the first worker takes more, if one is to be slow."""

    def __init__(self, one_is_slow: bool) -> None:
        self._one_is_slow = one_is_slow

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        slow = self._one_is_slow and os.environ["WORKER"] == "0"
        while True:
            time.sleep(BATCH_S * (TIMES_SLOWER if slow else 1))
            yield np.ones((1, 20_000), np.float32)


def contest() -> Contest:
    contestants = [
        Contestant("as they come (in_order=False)", partial(_loader, True, 4, False)),
        Contestant("in order", partial(_loader, True, 4, True)),
        Contestant("without the slow one", partial(_loader, False, 3, False), 0.9),
    ]
    name = f"{BATCH_S * 1e3:g} ms for a batch, one worker {TIMES_SLOWER} times slower"
    return Contest(name, contestants, samples=1, workers=4, warm_up=8)


def _loader(one_is_slow: bool, workers: int, in_order: bool) -> Iterable[Any]:
    return mpwds.MultiLoader(Sleepers(one_is_slow), workers=workers, in_order=in_order)
