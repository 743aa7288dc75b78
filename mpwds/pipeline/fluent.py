"""The stages as methods of datasets: ``dataset.shuffle(1000).decode("rgb8").to_tuple("png", "cls")``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING, Any, TextIO

import mpwds  # which imports a stage when it is asked for it: workers start sooner without the others
from mpwds.mistakes import explained
from mpwds.pipeline.collation.collate import default_collation_fn
from mpwds.pipeline.collation.padded import PADDED
from mpwds.pipeline.composable import Self
from mpwds.pipeline.fluent_fields import FluentFields
from mpwds.pipeline.handlers import Handler, reraise_exception

if TYPE_CHECKING:
    from mpwds.pipeline.caching.element_codec import Pickler
    from mpwds.pipeline.stages.batches import CollationFunction


@explained
class Fluent(FluentFields):
    """What has stages: each method returns a copy with one stage more and takes the arguments of the function
    of its name, ``mpwds.shuffle`` and so on, which documents them."""

    def pipe(self: Self, f: Any, *args: Any, **keywords: Any) -> Self:
        """Adds the stage ``f(source, *args, **keywords)``, or what a function that makes stages makes.

        Example:
            >>> import mpwds
            >>> list(mpwds.DataPipeline(range(5)).pipe(mpwds.batched, 2, collation_fn=None))
            [[0, 1], [2, 3], [4]]
        """
        from mpwds.pipeline.earlier.processor import stage_of

        return self.compose(stage_of(f, *args, **keywords))

    def then(self: Self, f: Any, *args: Any, **keywords: Any) -> Self:
        """``pipe`` by its name in webdataset 0.1.

        Example:
            >>> import mpwds
            >>> list(mpwds.DataPipeline("abcd").then(mpwds.slice, 2))
            ['a', 'b']
        """
        from mpwds.pipeline.earlier.processor import stage_of

        return self.compose(stage_of(f, *args, **keywords))

    def shuffle(
        self: Self,
        size: int,
        initial: int = 100,
        rng: Random | None = None,
        seed: int | None = None,
        handler: object = None,
    ) -> Self:
        """Yields the elements in random order, through a buffer of ``size``; below 1, nothing is shuffled.

        Example:
            >>> from mpwds import DataPipeline
            >>> sorted(DataPipeline(range(6)).shuffle(4))
            [0, 1, 2, 3, 4, 5]
        """
        stage = mpwds.shuffle(size, initial, rng, seed, handler)
        return self.compose(stage) if size >= 1 else self.compose()

    def detshuffle(
        self: Self, bufsize: int = 1000, initial: int = 100, seed: int = 0, epoch: int = -1
    ) -> Self:
        """Yields the elements in an order that depends on the seed and the epoch alone.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline(range(6)).detshuffle(4))
            [3, 4, 0, 1, 2, 5]
        """
        return self.compose(mpwds.detshuffle(bufsize, initial, seed, epoch))

    def map(self: Self, f: Callable[[Any], Any], handler: Handler = reraise_exception) -> Self:
        """Yields ``f(element)`` for each element; ``None`` drops it.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline("abc").map(str.upper))
            ['A', 'B', 'C']
        """
        return self.compose(mpwds.map(f, handler))

    def flatmap(
        self: Self, f: Callable[[Any], Iterable[Any] | None], handler: Handler = reraise_exception
    ) -> Self:
        """Yields all that ``f(element)`` gives, for each element.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([3, 0, 2]).flatmap(range))
            [0, 1, 2, 0, 1]
        """
        return self.compose(mpwds.flatmap(f, handler))

    def select(self: Self, predicate: Callable[[Any], Any], handler: Handler = reraise_exception) -> Self:
        """Keeps the elements for which ``predicate`` is true.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline(range(6)).select(lambda n: n % 2))
            [1, 3, 5]
        """
        return self.compose(mpwds.select(predicate, handler))

    def rsample(self: Self, p: float = 0.5) -> Self:
        """Keeps each element with probability ``p``.

        Example:
            >>> from mpwds import DataPipeline
            >>> 400 < len(list(DataPipeline(range(1000)).rsample(0.5))) < 600
            True
        """
        return self.compose(mpwds.rsample(p))

    def slice(self: Self, *args: int | None) -> Self:
        """Keeps the elements that ``itertools.islice`` would: ``stop``; ``start, stop``; those and a step.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline("abcde").slice(1, 4, 2))
            ['b', 'd']
        """
        return self.compose(mpwds.slice(*args))

    def batched(
        self: Self,
        batchsize: int | None = None,
        collation_fn: CollationFunction | None = default_collation_fn,
        partial: bool = True,
        *,
        max_bytes: int | None = None,
        by: Callable[[Any], float] | None = None,
        max_total: float | None = None,
        include_padding: bool = False,
        handler: Handler = reraise_exception,
    ) -> Self:
        """Gathers elements into batches: of 20 by default.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([(1, "a"), (2, "b"), (3, "c")]).batched(2))
            [(array([1, 2]), ['a', 'b']), (array([3]), ['c'])]
        """
        return self.compose(
            mpwds.batched(
                batchsize,
                collation_fn,
                partial,
                max_bytes=max_bytes,
                by=by,
                max_total=max_total,
                include_padding=include_padding,
                handler=handler,
            )
        )

    def bucketed(
        self: Self,
        by: Callable[[Any], float],
        edges: Iterable[float],
        batchsize: int | Iterable[int] | None = None,
        collation_fn: CollationFunction | None = PADDED,
        partial: bool = True,
        *,
        max_total: float | None = None,
        include_padding: bool = False,
        handler: Handler = reraise_exception,
    ) -> Self:
        """Gathers elements of similar size into batches, and pads arrays of different shapes.

        Example:
            >>> from mpwds import DataPipeline
            >>> words = DataPipeline(["a", "abcd", "b", "abc", "c"])
            >>> list(words.bucketed(len, edges=[3], batchsize=2, collation_fn=None))
            [['a', 'b'], ['abcd', 'abc'], ['c']]
        """
        return self.compose(
            mpwds.bucketed(
                by,
                edges,
                batchsize,
                collation_fn,
                partial,
                max_total=max_total,
                include_padding=include_padding,
                handler=handler,
            )
        )

    def unbatched(self: Self, handler: Handler = reraise_exception) -> Self:
        """Takes batches apart into their rows.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([([1, 2], ["a", "b"])]).unbatched())
            [(1, 'a'), (2, 'b')]
        """
        return self.compose(mpwds.unbatched(handler))

    def listed(self: Self, batchsize: int = 20, partial: bool = True) -> Self:
        """Gathers elements into plain lists.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline("abc").listed(2))
            [['a', 'b'], ['c']]
        """
        return self.compose(mpwds.listed(batchsize, partial))

    def unlisted(self: Self, handler: Handler = reraise_exception) -> Self:
        """Takes lists of samples apart.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([["a", "b"], ["c"]]).unlisted())
            ['a', 'b', 'c']
        """
        return self.compose(mpwds.unlisted(handler))

    def mcached(self: Self) -> Self:
        """Keeps the elements in memory, and gives these from the second epoch on.

        Example:
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline("abc").mcached())
            ['a', 'b', 'c']
        """
        return self.compose(mpwds.mcached())

    def lmdb_cached(
        self: Self,
        fname: str | os.PathLike[str],
        map_size: float = 1e12,
        pickler: Pickler | None = None,
        chunksize: int = 500,
        fingerprint: str = "",
    ) -> Self:
        """Keeps the elements in an LMDB database, and gives these from the second epoch on.

        Example:
            >>> from mpwds import DataPipeline
            >>> print(DataPipeline("abc").lmdb_cached("cache.lmdb"))
            DataPipeline(str)
                .lmdb_cached('cache.lmdb')
        """
        return self.compose(mpwds.lmdb_cached(fname, map_size, pickler, chunksize, fingerprint))

    def info(
        self: Self,
        fmt: str | None = None,
        n: int = 3,
        every: int = -1,
        width: int = 50,
        stream: TextIO | None = None,
        name: str = "",
    ) -> Self:
        """Prints some of the elements and passes all of them on.

        Example:
            >>> import sys
            >>> from mpwds import DataPipeline
            >>> list(DataPipeline([{"cls": 7}, {"cls": 8}]).info("cls is {cls}", n=1, stream=sys.stdout))
            cls is 7
            [{'cls': 7}, {'cls': 8}]
        """
        return self.compose(mpwds.info(fmt, n, every, width, stream, name))

    def log_keys(self: Self, logfile: str | os.PathLike[str] | None = None) -> Self:
        """Appends the key of each sample to a file and passes the sample on.

        Example:
            >>> from mpwds import DataPipeline
            >>> print(DataPipeline([{"__key__": "a"}]).log_keys("keys.tsv"))
            DataPipeline(list)
                .log_keys('keys.tsv')
        """
        return self.compose(mpwds.log_keys(logfile))
