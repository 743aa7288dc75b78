"""Source of a pipeline: samples of indexed shards, in orders that are computed, not stored."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import check_whole, explain
from mpwds.pipeline.randomness import Permutation
from mpwds.pipeline.stream import BaseStream, Count, Description, Origin, Stream, number_of, one_sample
from mpwds.storage.indexed.shards import IndexedShards, Lengths

Numbers = npt.NDArray[np.int64]
Shuffling: TypeAlias = Literal["global", "chunked", "shards", False]

Order: TypeAlias = Callable[[Numbers], Numbers]
"""The positions, in the dataset, of the samples at some places of an epoch."""

_BLOCK = 4096  # places whose samples are found at once


@dataclass(frozen=True, eq=False)
class IndexedSamples(Origin):
    """Source of a pipeline: the samples of indexed shards.

    Ranks and workers divide the samples of an epoch: see ``worker_positions``. Seed and epoch determine the
    order. A sample's address is its number in the shards, counted through all of them. Arguments are those of
    ``IndexedDataset``; ``chosen`` are the numbers of the samples that there are, in order, all by default.
    """

    shards: IndexedShards
    shuffle: Shuffling = False
    chunksize: int = 2000
    chosen: range | Numbers | None = None
    threads: int = 1

    samples_in = staticmethod(one_sample)

    def __post_init__(self) -> None:
        kinds = get_args(Shuffling)
        if self.shuffle not in kinds or (self.shuffle == 0 and self.shuffle is not False):
            raise ValueError(f"shuffle must be one of {', '.join(map(repr, kinds))}, got {self.shuffle!r}")
        check_whole("IndexedDataset", "chunksize", self.chunksize, least=1)
        check_whole("IndexedDataset", "threads", self.threads, least=1)

    def __str__(self) -> str:
        shuffle = f", shuffle={self.shuffle!r}" if self.shuffle else ""
        return f"IndexedSamples({type(self.shards).__name__}{shuffle})"

    def __len__(self) -> int:
        return len(self.numbers)

    def close(self) -> None:
        self.shards.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_ends"}  # computed again

    @property
    def numbers(self) -> range | Numbers:
        """The samples' numbers in the shards, in order."""
        if self.chosen is not None:
            return self.chosen
        return range(int(self._ends[-1]) if len(self._ends) else 0)

    def of(self, positions: Numbers) -> IndexedSamples:
        """A source of the samples at some positions, or for which an array of booleans is true."""
        if positions.dtype == bool:
            if len(positions) != len(self):
                raise IndexError(f"a mask of {len(positions)} booleans for {len(self)} samples")
            positions = np.flatnonzero(positions)
        positions = positions.astype(np.int64, copy=False)  # a small type would not hold other numbers
        wrong = positions[(positions < -len(self)) | (positions >= len(self))]
        if len(wrong):
            raise IndexError(f"there is no sample {wrong[0]} among {len(self)} samples")
        return replace(self, chosen=self._numbers_at(positions % max(len(self), 1)))

    def number(self, position: int) -> int:
        """The number of the sample at a position, which counts from the end if it is negative."""
        try:
            return int(self.numbers[position])
        except IndexError:
            raise IndexError(f"there is no sample {position} among {len(self)} samples") from None

    def place(self, number: int) -> tuple[int, int]:
        """A sample's shard, and its index in that shard."""
        ends = self._ends.data  # Python bisects it quickly, and it holds no Python integers
        shard = bisect.bisect_right(ends, number)
        return shard, number - (ends[shard - 1] if shard else 0)

    def stream(self, context: Context = ALONE) -> Stream[Any]:
        return _IndexedStream(self, context)

    def places(self, context: Context) -> range:
        return worker_positions(self.shuffle, len(self), context)

    def count_in(self, context: Context, exact: bool = True) -> Count:
        return Count(len(self.places(context)))

    def order(self, context: Context) -> Order:
        """The order of an epoch, for the places that ``places`` gave."""
        facts = (context.seed or 0, context.alike_on_ranks().moment)
        return order_of(self.shuffle, len(self), self._shard_starts, self.chunksize, *facts)

    def read_in(self, context: Context, places: range) -> Iterator[tuple[int, int, int]]:
        """The samples at ``places`` of an epoch: their numbers, shards, and indices in them."""
        order = self.order(context)
        for first in range(0, len(places), _BLOCK):
            block = places[first : first + _BLOCK]
            numbers = self._numbers_at(order(np.arange(block.start, block.stop, block.step)))
            shards = np.searchsorted(self._ends, numbers, "right")
            indices = numbers - np.where(shards, self._ends[shards - 1], 0)
            yield from zip(numbers.tolist(), shards.tolist(), indices.tolist(), strict=True)

    @functools.cached_property
    def _ends(self) -> Numbers:
        """The number after each shard's last sample."""
        lengths = self.shards.lengths
        return lengths.ends() if isinstance(lengths, Lengths) else np.cumsum(np.array(lengths, np.int64))

    def _numbers_at(self, positions: Numbers) -> Numbers:
        numbers = self.numbers
        return numbers.start + numbers.step * positions if isinstance(numbers, range) else numbers[positions]

    def _shard_starts(self) -> Numbers:
        """The positions at which another shard begins."""
        numbers = self.numbers
        if isinstance(numbers, range) and numbers.step == 1:
            starts = np.clip(self._ends[:-1] - numbers.start, 0, len(numbers))
        else:
            shards = np.searchsorted(self._ends, self._numbers_at(np.arange(len(numbers))), "right")
            starts = np.flatnonzero(np.diff(shards)) + 1
        return np.unique(np.append(0, starts))


class ElementsAsShard:
    """A list or map-style dataset as one shard, so that it can be read in any order."""

    def __init__(self, elements: Any) -> None:
        self.urls = [type(elements).__name__]
        self.lengths = [len(elements)]
        self._elements = elements

    def read(self, shard: int, index: int) -> Any:
        return self._elements[index]

    def close(self) -> None:
        """Nothing is open."""


class _IndexedStream(BaseStream[Any]):
    def __init__(self, source: IndexedSamples, context: Context) -> None:
        self._source = source
        self._context = context
        self._places = source.places(context)
        self._shard = -1  # the one read last
        self._get: Callable[[int, Any], Any] = source.shards.read
        if source.threads > 1:
            self._get = lambda shard, future: future.result()
        self._begin(0)

    def _begin(self, cursor: int) -> None:
        self._cursor = cursor
        self._failed = -1  # the cursor after the sample that failed last
        source = self._source
        self._samples: Iterator[tuple[int, int, Any]] = source.read_in(self._context, self._places[cursor:])
        if source.threads > 1:
            from mpwds.storage.streams.ahead import work_ahead

            read = source.shards.read
            ahead = work_ahead(lambda sample: read(*sample[1:]), self._samples, source.threads)
            self._samples = ((number, shard, future) for (number, shard, _), future in ahead)

    def __next__(self) -> tuple[int, Any]:
        item = next(self._samples, None)
        if item is None:
            self._failed = -1
            raise StopIteration
        number, shard, what = item
        self._cursor += 1
        if shard != self._shard:
            self._shard = shard
            if self._context.on_shard is not None:
                self._context.on_shard(self._source.shards.urls[shard])
        try:
            return number, self._get(shard, what)
        except Exception as error:
            self._failed = self._cursor
            explain(error, self._source, self, number)
            raise

    def fetch(self, address: Any) -> Any:
        try:
            return self._source.shards.read(*self._source.place(number_of(address)))
        except Exception as error:
            explain(error, self._source, self, address)
            raise

    def describe(self, address: Any, element: object = None) -> Description:
        shard, index = self._source.place(number_of(address))
        url = self._source.shards.urls[shard]
        return Description.of_sample(element, Description(f"sample {index} of {url}", url))

    def state_dict(self) -> dict[str, Any]:
        cursor = self._cursor - (self._failed == self._cursor)
        return {"cursor": cursor, "samples": len(self._source), "order": self._order_facts()}

    def _order_facts(self) -> list[Any]:
        return [self._source.shuffle, self._source.chunksize, self._context.seed]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        samples, order, advice = len(self._source), self._order_facts(), "open the dataset as it was"
        if state["samples"] != samples:
            differs = f"a dataset of {state['samples']} samples, this one has {samples}"
            raise ValueError(f"the state is of {differs}: begin the epoch again, or {advice}")
        if state["order"] != order:
            differs = f"the order {state['order']} (shuffle, chunksize, seed), this one is {order}"
            raise ValueError(f"the state is of {differs}: begin the epoch again, or {advice}")
        self._begin(state["cursor"])


def order_of(
    shuffle: Shuffling, samples: int, shard_starts: Callable[[], Numbers], chunksize: int, *facts: object
) -> Order:
    """The order of an epoch of so many samples; ``facts`` is what it depends on: seed, epoch, ...

    ``shard_starts`` returns the positions at which shards begin, the first being 0. The order ``"shards"``
    reads the samples of a shard as they are stored.
    """
    if shuffle == "global":
        return Permutation(samples, "global", *facts).of
    if shuffle == "chunked":
        starts: Numbers = np.arange(0, samples, chunksize)
        return _Pieces(starts, samples, True, facts).of
    if shuffle == "shards":
        return _Pieces(shard_starts(), samples, False, facts).of
    return lambda places: places


def worker_positions(shuffle: Shuffling, samples: int, context: Context) -> range:
    """The places of an epoch whose samples a worker reads; each belongs to one worker of one rank.

    Workers take every n-th place of a global order, so that it does not depend on their number. In other
    orders each takes places side by side, so that few of them read the same shard.
    """
    if shuffle == "global":
        return range(samples)[context.rank :: context.world_size][context.worker :: context.workers]
    return _part(_part(range(samples), context.rank, context.world_size), context.worker, context.workers)


def _part(places: range, number: int, of: int) -> range:
    return places[len(places) * number // of : len(places) * (number + 1) // of]


class _Pieces:
    """Order of pieces of consecutive samples, such as shards, in random order."""

    def __init__(self, starts: Numbers, samples: int, shuffles_inside: bool, facts: Sequence[object]) -> None:
        pieces = Permutation(len(starts), "pieces", *facts).of(np.arange(len(starts)))
        sizes = np.diff(starts, append=samples)[pieces]
        self._ends = np.cumsum(sizes)  # places
        self._shifts = starts[pieces] - (self._ends - sizes)  # from a place to its position
        self._shuffles_inside = shuffles_inside
        self._facts = facts

    def of(self, places: Numbers) -> Numbers:
        pieces = np.searchsorted(self._ends, places, "right")
        if not self._shuffles_inside:
            shifted: Numbers = places + self._shifts[pieces]
            return shifted
        positions = np.empty_like(places)
        for piece in np.unique(pieces).tolist():
            here = pieces == piece
            start = self._ends[piece - 1] if piece else 0
            inside = Permutation(int(self._ends[piece] - start), "inside", piece, *self._facts)
            positions[here] = inside.of(places[here] - start) + start + self._shifts[piece]
        return positions
