"""Make batches of another size, of random rows, without taking batches apart into Python objects."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpwds.loader import options as checks
from mpwds.loader.rebatch.batch_schema import Schema, columns_of, infer_schema, leaves
from mpwds.loader.rebatch.rows import (
    RowBuffers,
    RowPool,
    Rows,
    ShuffleBuffer,
    SourceBatches,
    gather,
    row_ids_of,
    rows_like,
    rows_of,
)
from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import check_whole, explain
from mpwds.pipeline.filter import DataclassStage, rows_in
from mpwds.pipeline.stream import Address, Count, Description, LengthUnknown, Stream


@dataclass(frozen=True)
class Rebatched(DataclassStage, called="rebatched"):
    """Stage that yields batches of ``batchsize`` rows: see the method ``rebatched`` of loaders.

    Batches are tuples, lists, dicts, namedtuples and dataclasses of columns, nested or not; the new ones are
    of the same classes. Columns are arrays and CPU tensors, whose first dimension is the rows, and lists. All
    rows of an epoch must be alike: :func:`~mpwds.loader.rebatch.batch_schema.infer_schema` says more.

    Example:
        >>> stage = Rebatched(3)
        >>> batches = [(np.array([0, 1]), ["a", "b"]), (np.array([2, 3]), ["c", "d"])]
        >>> list(stage(batches))
        [(array([0, 1, 2]), ['a', 'b', 'c']), (array([3]), ['d'])]
    """

    batchsize: int
    shuffle: int = 0
    drop_last: bool = False
    initial: int = 100
    seed: int | None = None
    pin_memory: bool | None = None
    addressable = False

    samples_in = staticmethod(rows_in)

    def __post_init__(self) -> None:
        check_whole("rebatched", "batchsize", self.batchsize, least=1)
        check_whole("rebatched", "shuffle", self.shuffle, least=0)
        if isinstance(self.shuffle, bool):  # as a DataLoader's
            raise TypeError(f"rebatched: shuffle must be a whole number, got {self.shuffle!r}")
        check_whole("rebatched", "initial", self.initial, least=1)
        checks.boolean("rebatched", "drop_last", self.drop_last)
        if self.pin_memory is not None:
            checks.boolean("rebatched", "pin_memory", self.pin_memory)

    def count_of(self, incoming: Count) -> Count:
        if incoming.rows is None:
            raise LengthUnknown(f"{self} gets batches whose number of rows is not known")
        return Count(incoming.rows).batched(self.batchsize, partial=not self.drop_last)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return RebatchedStream(self, source, context)


class RebatchedStream:
    """The stream of ``Rebatched``."""

    def __init__(self, stage: Rebatched, source: Stream[Any], context: Context) -> None:
        self._stage = stage
        self._source = source
        seed = stage.seed if stage.seed is not None else context.seed or 0
        place = (seed, context.epoch, context.rank, context.worker, context.stage)
        entropy = random.Random("rebatched/" + "/".join(map(str, place))).getrandbits(128)
        self._rng = np.random.default_rng(entropy)
        self._mixer: ShuffleBuffer | None = None
        self._given: list[Rows] = []  # the rows of a batch that are not copied yet
        self._taken = SourceBatches()
        self._ended = False
        self._refused = ""  # why a batch that was taken from the source is not among the rows
        self._drop_last = stage.drop_last
        self._count = 0

    def __iter__(self) -> RebatchedStream:
        return self

    def __next__(self) -> tuple[Address, Any]:
        while self._given or not self._ended:
            if self._mixer is not None and self._given:
                self._given = self._mixer.move(self._given)
                if self._mixer.missing == 0:
                    break
            else:
                self._take_in()
        mixer = self._mixer
        if mixer is None:
            raise StopIteration
        if self._ended:
            mixer.move_what_is_left()
        if mixer.filled == 0 or (mixer.missing and self._drop_last):
            self._mixer = None  # and with it the pool
            raise StopIteration
        self._count += 1
        return self._count - 1, mixer.batch()

    def rest(self) -> Iterator[Any]:
        """The rows that are held, in batches; the last one may be smaller. No more rows are taken in."""
        self._ended, self._drop_last = True, False
        return (batch for _, batch in self)

    def _take_in(self) -> None:
        try:
            address, batch = next(self._source)
        except StopIteration:
            self._ended = True
            return
        try:
            schema, given = self._rows_of(batch)
        except Exception as error:
            self._refused = f"{self._stage} raised {type(error).__name__}"
            explain(error, self._stage, self._source, address, batch)
            raise
        if len(given[0]):
            given.append(self._taken.take(address, len(given[0])))
            if self._mixer is None:
                self._mixer = self._made_mixer(schema, given)
            elif self._taken.many:
                self._taken.keep_only([self._given_ids(), *self._mixer.row_ids()])
            self._given = given

    def _rows_of(self, batch: Any) -> tuple[Schema, list[Rows]]:
        schema = infer_schema(batch) if self._mixer is None else self._mixer.schema
        columns = columns_of(schema, batch)
        return schema, [rows_of(leaf, column) for leaf, column in zip(leaves(schema), columns, strict=True)]

    def _made_mixer(self, schema: Schema, given: list[Rows]) -> ShuffleBuffer:
        stage = self._stage
        buffers = RowBuffers(leaves(schema), int(stage.batchsize), stage.pin_memory)
        if stage.shuffle < 2:
            return ShuffleBuffer(schema, buffers)
        pool = RowPool(int(stage.shuffle), given, self._rng)
        return ShuffleBuffer(schema, buffers, pool, min(int(stage.initial), pool.size))

    def fetch(self, address: Any) -> Any:
        raise LookupError(
            f"{self._stage} does not keep what its batches were made of: only another run makes them again"
        )

    def describe(self, address: Any, element: object = None) -> Description:
        return Description(f"batch {address} of {self._stage}")

    def state_dict(self) -> dict[str, Any]:
        if self._refused:
            raise LookupError(self._refused)
        mixer = self._mixer
        pool, filled = (_NOTHING, _NOTHING) if mixer is None else mixer.row_ids()
        given = self._given_ids()
        self._taken.keep_only([given, pool, filled])
        return {
            "source": self._source.state_dict(),
            "numbers": list(self._taken.addresses),
            "held": list(self._taken.addresses.values()),
            "pool": pool.tolist(),
            "filled": filled.tolist(),
            "given": given.tolist(),
            "rng": json.dumps(self._rng.bit_generator.state),
            "ended": self._ended,
            "draining": mixer is not None and mixer.draining,
            "count": self._count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.load_state_dict(state["source"])
        self._rng.bit_generator.state = json.loads(state["rng"])
        self._ended, self._count = state["ended"], state["count"]
        self._mixer, self._given = None, []
        self._taken = SourceBatches(state["numbers"], state["held"])
        wanted = [np.array(state[name], np.int64) for name in ("pool", "filled", "given")]
        held: list[list[Rows]] = []
        for number, address in sorted(self._taken.addresses.items(), key=lambda item: item[1]):
            schema, made = self._rows_of(self._source.fetch(address))
            made.append(row_ids_of(number, len(made[0])))
            if self._mixer is None:
                self._mixer = self._made_mixer(schema, made)
                held = [rows_like(made, len(ids)) for ids in wanted]
            for ids, out in zip(wanted, held, strict=True):
                gather(number, ids, made, out)
        if self._mixer is not None:
            pool, filled, given = held
            self._mixer.restore_rng(pool, filled, draining=state["draining"])
            self._given = given if len(given[0]) else []

    def _given_ids(self) -> npt.NDArray[np.int64]:
        return self._given[-1] if self._given else _NOTHING


_NOTHING: npt.NDArray[np.int64] = np.empty(0, np.int64)
