"""Make batches of another size, of random rows, without taking batches apart into Python objects."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpwds.pipeline.context import ALONE, Context
from mpwds.pipeline.error_context import check_boolean, check_whole, explain
from mpwds.pipeline.filter import DataclassStage, Filter, rows_in
from mpwds.pipeline.rebatch.batch_schema import Column, Schema, columns_of, infer_schema, leaves
from mpwds.pipeline.rebatch.rows import (
    RowBuffers,
    RowIds,
    RowPool,
    Rows,
    ShuffleBuffer,
    SourceBatches,
    gather,
    row_ids_in,
    row_ids_of,
    rows_like,
    rows_of,
)
from mpwds.pipeline.stages.collation import FIXED_SIZE, default_collation_fn
from mpwds.pipeline.stream import (
    Address,
    Count,
    Description,
    LengthUnknown,
    RowStep,
    Stream,
    WrappedStream,
    as_address,
    ascending,
)


@dataclass(frozen=True)
class Rebatched(DataclassStage, called="rebatched"):
    """Stage that yields batches of ``batchsize`` rows: see the method ``rebatched`` of loaders.

    Batches are tuples, lists, dicts, namedtuples and dataclasses of columns, nested or not; the new ones are
    of the same classes. Columns are arrays and CPU tensors, whose first dimension is the rows, and lists. All
    rows of an epoch must be alike: :func:`~mpwds.pipeline.rebatch.batch_schema.infer_schema` says more.

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
        check_boolean("rebatched", "drop_last", self.drop_last)
        if self.pin_memory is not None:
            check_boolean("rebatched", "pin_memory", self.pin_memory)

    def count_of(self, incoming: Count) -> Count:
        if incoming.rows is None:
            raise LengthUnknown(f"{self} gets batches whose number of rows is not known")
        return Count(incoming.rows).batched(self.batchsize, partial=not self.drop_last)

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return RebatchedStream(self, source, context)


class RebatchedStream(WrappedStream[Any]):
    _counters = ("_ended", "_count")

    def __init__(self, stage: Rebatched, source: Stream[Any], context: Context) -> None:
        super().__init__(source)
        self._stage = stage
        seed = stage.seed if stage.seed is not None else context.seed or 0
        place = (seed, context.epoch, context.rank, context.worker, context.stage)
        entropy = random.Random("rebatched/" + "/".join(map(str, place))).getrandbits(128)
        self._rng = np.random.default_rng(entropy)
        self._mixer: ShuffleBuffer | None = None
        self._given: list[Rows] = []  # the rows of a batch that are not copied yet
        self._taken = SourceBatches()
        self._again: list[tuple[Address, list[int]]] = []  # batches to fetch, and the rows that are left
        self._ended = False
        self._refused = ""  # why a batch that was taken from the source is not among the rows
        self._count = 0

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
        if mixer.filled == 0 or (mixer.missing and self._stage.drop_last):
            self._mixer = None  # and with it the pool
            raise StopIteration
        self._count += 1
        return self._count - 1, self._batch(mixer)

    def _batch(self, mixer: ShuffleBuffer) -> Any:
        return mixer.batch()

    def _take_in(self) -> None:
        left = None
        try:
            if self._again:
                address, left = self._again[0]
                batch = self._source.fetch(address)
                del self._again[0]
            else:
                address, batch = self._next()
        except StopIteration:
            self._ended = True
            return
        try:
            schema, given = self._rows_of(address, batch)
        except Exception as error:
            self._refused = f"{self._stage} raised {type(error).__name__}"
            self._explain(error, address, batch)
            raise
        if len(given[0]):
            given.append(self._taken.take(address, len(given[0])))
            if left is not None:
                given = [rows[left] for rows in given]
            if self._mixer is None:
                self._mixer = self._made_mixer(schema, given)
            self._given = given
            if self._taken.many:
                self._taken.keep_only([self._given_ids(), *self._mixer.row_ids()])

    def _rows_of(self, address: Address, batch: Any) -> tuple[Schema, list[Rows]]:
        schema = infer_schema(batch) if self._mixer is None else self._mixer.schema
        columns = columns_of(schema, batch)
        return schema, [rows_of(leaf, column) for leaf, column in zip(leaves(schema), columns, strict=True)]

    def _explain(self, error: Exception, address: Address, batch: Any) -> None:
        explain(error, self._stage, self._source, address, batch)

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
        left, places = self._taken.placed([pool, filled, self._given_ids()])
        return {
            **super().state_dict(),
            "held": [*self._taken.addresses.values(), *(address for address, _ in self._again)],
            "unused": [*left, *(rows for _, rows in self._again)],
            "taken": len(left),  # of the batches that are held; the others come next
            "places": places,  # of the pool's rows among those left, the new batch's, and the last batch's
            "rng": json.dumps(self._rng.bit_generator.state),
            "draining": mixer is not None and mixer.draining,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._rng.bit_generator.state = json.loads(state["rng"])
        self._mixer, self._given = None, []
        addresses, left, taken = list(map(as_address, state["held"])), state["unused"], state["taken"]
        self._taken = SourceBatches(addresses[:taken])
        self._again = list(zip(addresses[taken:], left[taken:], strict=True))
        ids = row_ids_in(left[:taken])
        wanted = [ids[np.array(places, np.intp)] for places in state["places"]]
        held: list[list[Rows]] = []
        for number in ascending(addresses[:taken]):
            address = addresses[number]
            schema, made = self._rows_of(address, self._source.fetch(address))
            made.append(row_ids_of(number, len(made[0])))
            if self._mixer is None:
                self._mixer = self._made_mixer(schema, made)
                held = [rows_like(made, len(ids)) for ids in wanted]
            for ids, out in zip(wanted, held, strict=True):
                gather(number, ids, made, out)
        if self._mixer is not None:
            pool, filled, given = held
            self._mixer.restore(pool, filled, draining=state["draining"])
            self._given = given if len(given[0]) else []

    def _given_ids(self) -> npt.NDArray[np.int64]:
        return self._given[-1] if self._given else _NOTHING


def regrouped(stages: Sequence[Any]) -> list[Any]:
    """The stages, with one in place of ``unbatched``, ``shuffle`` and ``batched`` at their end."""
    last = tuple(stages[-3:])
    steps: list[RowStep | None] = [stage.row_step for stage in last]
    if [step and step.kind for step in steps] != ["unbatch", "shuffle", "batch"]:
        return list(stages)
    arguments = {name: value for step in steps if step for name, value in step.arguments.items()}
    return [*stages[:-3], Regrouped(last, Rebatched(**arguments))]


@dataclass(frozen=True)
class Regrouped(Filter):
    """Stage that replaces ``unbatched``, ``shuffle`` and ``batched``, and works as ``rebatched`` does.

    A row that is a view of a batch keeps the whole batch in memory: after a loader, a ``shuffle`` of rows
    would take five times their memory, copied out of the workers' blocks. Rows of arrays, tensors and lists
    of text are copied into a pool instead. If the first batch has other columns, and from the first batch
    that differs from those before it, the pool holds the samples that ``unbatched`` makes, and ``batched``
    collates them. The order is the same.
    """

    stages: tuple[Any, ...]
    rebatched: Rebatched
    addressable = False

    def __str__(self) -> str:
        return ".".join(map(str, self.stages))

    def stream(self, source: Stream[Any], context: Context = ALONE) -> Stream[Any]:
        return _RegroupedStream(self, source, context)


class _RegroupedStream(RebatchedStream):
    def __init__(self, stage: Regrouped, source: Stream[Any], context: Context) -> None:
        super().__init__(stage.rebatched, source, context)
        self._unbatched, _, self._batched = stage.stages
        self._columns: list[Any] | None = None
        self._by_samples = False

    def _rows_of(self, address: Address, batch: Any) -> tuple[Schema, list[Rows]]:
        if not self._by_samples:
            columns = _columns(batch)
            if self._mixer is None:
                self._columns = columns
            if columns is not None and columns == self._columns:
                return super()._rows_of(address, tuple(batch) if type(batch) is list else batch)
            self._change_to_samples()
        samples = self._unbatched.stream(_OneBatch(self._source, address, batch))
        return _SAMPLES, [np.fromiter(samples, object)]

    def _explain(self, error: Exception, address: Address, batch: Any) -> None:
        """Does nothing: ``unbatched`` has said where the error is."""

    def _change_to_samples(self) -> None:
        self._by_samples = True
        mixer, self._mixer = self._mixer, None
        if mixer is None:
            return
        held, filled = map(self._samples_of, mixer.batches(), mixer.row_ids())
        self._mixer = self._made_mixer(_SAMPLES, held)
        self._mixer.restore(held, filled, mixer.draining)

    def _samples_of(self, batch: Any, ids: RowIds) -> list[Rows]:
        """The rows of a batch of columns, as samples with their addresses; ``ids`` names the rows."""
        samples = self._unbatched([batch]) if len(ids) else ()
        return [np.fromiter(zip(self._taken.addresses_of(ids), samples, strict=True), object), ids]

    def _batch(self, mixer: ShuffleBuffer) -> Any:
        if not self._by_samples:
            return mixer.batch()
        addresses, samples = zip(*mixer.batch(), strict=True)
        try:
            return default_collation_fn(list(samples))
        except Exception as error:
            self._refused = f"{self._batched} raised {type(error).__name__}"
            explain(
                error, self._batched, self._batched.stream(self._unbatched.stream(self._source)), addresses
            )
            raise

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "by_samples": self._by_samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._by_samples = state["by_samples"]
        super().load_state_dict(state)


class _OneBatch(WrappedStream[Any]):
    """A stream of one element of a source."""

    def __init__(self, source: Stream[Any], address: Address, batch: Any) -> None:
        super().__init__(source)
        self._items = [(address, batch)]

    def __next__(self) -> tuple[Address, Any]:
        if not self._items:
            raise StopIteration
        return self._items.pop()


_SAMPLES = Column(sequence=list)


def _columns(batch: Any) -> list[Any] | None:
    """A value that is equal for batches whose rows can be pooled together; ``None`` if they cannot be."""
    kind: Any = tuple if type(batch) is list else type(batch)
    columns = batch
    if kind is dict:
        kind, columns = tuple(batch), batch.values()
    elif kind is not tuple:
        columns = [batch]
    found, lengths = [kind], set()
    for column in columns:
        if _is_pooled(column):
            found.append((column.dtype, column.shape[1:]))
        elif type(column) is list and set(map(type, column)) <= _TEXT:
            found.append(list)
        else:
            return None
        lengths.add(len(column))
    return found if len(lengths) == 1 else None


def _is_pooled(column: Any) -> bool:
    if type(column) is np.ndarray:
        return column.ndim > 0 and column.dtype in FIXED_SIZE
    torch = sys.modules.get("torch")
    if torch is None or type(column) is not torch.Tensor:
        return False
    plain = (
        column.is_cpu and column.layout is torch.strided and not (column.is_nested or column.requires_grad)
    )
    return bool(plain and column.ndim > 0 and str(column.dtype) in _TORCH_NAMES)


_TEXT = frozenset({str, bytes})
_TORCH_NAMES = frozenset(f"torch.{dtype.name}" for dtype in FIXED_SIZE)
_NOTHING: npt.NDArray[np.int64] = np.empty(0, np.int64)
