"""Batches of arrays of different shapes: padded to the largest."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from mpwds.pipeline.collation.collate import (
    FIXED_SIZE,
    Stacker,
    array_kind,
    collate,
    common_dtype,
    default_column,
    defer,
    in_field,
    stack,
)

Shape = tuple[int, ...]
_Pad = Callable[[Sequence[Any], Shape, Any], Any]


def padded(
    padding: Any = 0,
    lengths: bool = False,
    multiple_of: int | None = None,
    axes: int | Sequence[int] | None = None,
) -> Padded:
    """Collation function that pads arrays and tensors of different shapes.

    For ``batched(16, collation_fn=padded())``; ``bucketed`` keeps together what needs little of it.

    Args:
        padding: What to pad with; or a dict of that by field (name, or index in tuples), and then only these
            fields are padded: ``{"tokens": 0, "labels": -100}``.
        lengths: Whether the batch also tells the lengths that the arrays had: for dict samples in a field
            ``tokens_lengths`` for each padded field ``tokens``, for tuples in further columns behind the
            others, for bare arrays as ``(batch, lengths)``.
        multiple_of: Round the lengths up to multiples of this, along ``axes``; where these are not given,
            along those in which the arrays of a batch differ.
        axes: The axes along which arrays may differ; any by default.

    Raises:
        ValueError: ``multiple_of`` is below 1.
        TypeError: ``multiple_of`` or an axis is no whole number.

    Example:
        >>> padded()([(np.array([1, 2, 3]), "a"), (np.array([4]), "b")])
        (array([[1, 2, 3],
               [4, 0, 0]]), ['a', 'b'])
    """
    return Padded(padding, lengths, multiple_of, tuple(axes) if isinstance(axes, Sequence) else axes)


@dataclass(frozen=True)
class Padded:
    """Function that makes a batch of samples as ``default_collation_fn`` does, and pads arrays where it must.

    Arrays and tensors of at least one dimension are padded at the ends of their axes, up to the largest of
    the batch. Everything else is collated as by default.

    Args:
        padding: What to pad with; or a dict of that by field, and then only these fields are padded.
        lengths: Whether the batch also tells the lengths that the arrays had: int64, of shape
            ``(len(samples),)`` where there is one axis, else ``(len(samples), axes)``.
        multiple_of: Round the lengths up to multiples of this.
        axes: The axis or axes along which arrays may differ; ``None`` for any.

    Raises:
        ValueError: ``multiple_of`` is below 1; or, when called, arrays differ in their dimensions or along
            another axis, their dtype cannot hold the padding, a field to be padded is missing, or there is a
            field already of the name that its lengths get.
        TypeError: ``multiple_of`` or an axis is no whole number; or, when called, a field to be padded
            holds something else than arrays.

    Example:
        >>> batch = Padded(-1, lengths=True, multiple_of=4)([{"x": np.array([7])}, {"x": np.array([8, 9])}])
        >>> batch["x"].tolist(), batch["x_lengths"].tolist()
        ([[7, -1, -1, -1], [8, 9, -1, -1]], [1, 2])
    """

    padding: Any = 0
    lengths: bool = False
    multiple_of: int | None = None
    axes: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.multiple_of is not None and operator.index(self.multiple_of) < 1:
            raise ValueError(f"padded: multiple_of must be at least 1, got {self.multiple_of}")
        for axis in self._given_axes:
            operator.index(axis)

    def __call__(self, samples: Sequence[Any]) -> Any:
        return self._collated(samples, stack, _pad)

    def deferred(self, samples: Sequence[Any]) -> Any:
        """The same batch, in which ``mpwds.tenbin.Deferred`` may stand for arrays where that saves a copy."""
        return self._collated(samples, defer, _defer)

    def _collated(self, samples: Sequence[Any], stack: Stacker, pad: _Pad) -> Any:
        lengths: dict[Any, Any] = {}

        def column(field: Any, values: Sequence[Any]) -> Any:
            if not self._concerns(field, values):
                return default_column(stack, True, field, values)
            axes = self._check(field, values)
            if self.lengths:
                lengths[field] = _lengths(values, axes)
            shape = self._shape(values, axes)
            if all(value.shape == shape for value in values):
                return stack(values)
            return pad(values, shape, self.padding[field] if self._by_field else self.padding)

        batch = collate(samples, column)
        self._check_fields(samples[0])
        return _with_lengths(batch, lengths) if self.lengths else batch

    @property
    def _by_field(self) -> bool:
        return isinstance(self.padding, Mapping)

    @property
    def _given_axes(self) -> tuple[int, ...]:
        axes = self.axes
        return () if axes is None else axes if isinstance(axes, tuple) else (axes,)

    def _concerns(self, field: Any, values: Sequence[Any]) -> bool:
        if self._by_field:
            return field in self.padding
        return array_kind(values[0]) is not None and values[0].ndim > 0

    def _check(self, field: Any, values: Sequence[Any]) -> tuple[int, ...]:
        """The axes along which these values may differ; raises if they cannot be padded along them."""
        kind, where = array_kind(values[0]), in_field(field)
        if kind is None:
            raise TypeError(f"padded: expected arrays or tensors{where}, got a {type(values[0]).__name__}")
        dimensions = values[0].ndim
        for index, value in enumerate(values):
            if not isinstance(value, kind) or value.ndim != dimensions:
                raise ValueError(
                    f"padded: values{where} differ: the first is a {_described(values[0])}, "
                    f"that of sample {index} of the batch a {_described(value)}"
                )
        if self.axes is None:
            return tuple(range(dimensions))
        if not all(-dimensions <= axis < dimensions for axis in self._given_axes):
            raise ValueError(f"padded: no axis {self.axes} in arrays of {dimensions} dimensions{where}")
        axes = tuple([axis % dimensions for axis in self._given_axes])
        for axis in set(range(dimensions)).difference(axes):
            sizes = {value.shape[axis] for value in values}
            if len(sizes) > 1:
                raise ValueError(
                    f"padded: arrays{where} differ along axis {axis}, which is not among axes={self.axes}: "
                    f"{', '.join(map(str, sorted(sizes)))}"
                )
        return axes

    def _shape(self, values: Sequence[Any], axes: tuple[int, ...]) -> Shape:
        shape = []
        for axis, sizes in enumerate(zip(*[value.shape for value in values], strict=True)):
            size = max(sizes)
            rounded = axis in axes and (self.axes is not None or min(sizes) < size)
            shape.append(
                -(-size // self.multiple_of) * self.multiple_of if rounded and self.multiple_of else size
            )
        return tuple(shape)

    def _check_fields(self, sample: Any) -> None:
        if not self._by_field:
            return
        fields = list(sample) if isinstance(sample, dict) else list(range(len(sample)))
        absent = [field for field in self.padding if field not in fields]
        if absent:
            found = ", ".join(map(str, fields))
            raise ValueError(f"padded: no field {' or '.join(map(repr, absent))}; the sample has {found}")


class PaddedStack:
    """Arrays that are padded and stacked once their place is known (implements ``mpwds.tenbin.Deferred``).

    Args:
        rows: Arrays of as many dimensions, none of them larger than ``shape``.
        shape: The shape of each once padded.
        dtype: The dtype that holds all of theirs.
        padding: What to pad with.

    Example:
        >>> rows = PaddedStack([np.array([1, 2]), np.array([3])], (2,), np.dtype("int64"), 0)
        >>> place = np.empty(rows.shape, rows.dtype)
        >>> rows.write_into(place)
        >>> place.tolist()
        [[1, 2], [3, 0]]
    """

    __slots__ = ("_dtype", "_padding", "_rows", "_shape")

    def __init__(self, rows: Sequence[Any], shape: Shape, dtype: np.dtype[Any], padding: Any) -> None:
        self._rows = rows
        self._shape = (len(rows), *shape)
        self._dtype = dtype
        self._padding = padding

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def shape(self) -> Shape:
        return self._shape

    def write_into(self, out: npt.NDArray[Any]) -> None:
        """Copies the rows into ``out``, a writable array of this ``shape`` and ``dtype``."""
        _write_padded(self._rows, out, self._padding)


def _write_padded(rows: Sequence[Any], out: Any, padding: Any) -> None:
    shape = tuple(out.shape[1:])
    for place, row in zip(out, rows, strict=True):
        if row.shape != shape:
            place[...] = padding
        place[tuple([slice(size) for size in row.shape])] = row


def _pad(rows: Sequence[Any], shape: Shape, padding: Any) -> Any:
    if isinstance(rows[0], np.ndarray):
        out: Any = np.empty((len(rows), *shape), _checked_dtype(rows, padding))
    else:
        import torch

        dtype = reduce(torch.promote_types, [row.dtype for row in rows])
        if not _holds(lambda: torch.full((), padding, dtype=dtype).item(), padding, _is_inexact(dtype)):
            raise _unfit(padding, dtype)
        out = rows[0].new_empty((len(rows), *shape), dtype=dtype)
    _write_padded(rows, out, padding)
    return out


def _defer(rows: Sequence[Any], shape: Shape, padding: Any) -> Any:
    if isinstance(rows[0], np.ndarray) and common_dtype(rows) in FIXED_SIZE:
        return PaddedStack(rows, shape, _checked_dtype(rows, padding), padding)
    return _pad(rows, shape, padding)


def _checked_dtype(rows: Sequence[Any], padding: Any) -> np.dtype[Any]:
    dtype = common_dtype(rows)
    with np.errstate(invalid="ignore"):
        if not _holds(lambda: np.array(padding).astype(dtype)[()], padding, dtype.kind in "fc"):
            raise _unfit(padding, dtype)
    return dtype


def _is_inexact(dtype: Any) -> bool:
    return bool(dtype.is_floating_point or dtype.is_complex)


def _holds(convert: Callable[[], Any], padding: Any, inexact: bool) -> bool:
    try:
        converted = convert()
    except (ValueError, TypeError, OverflowError, RuntimeError):
        return False
    return inexact or bool(converted == padding)


def _unfit(padding: Any, dtype: Any) -> ValueError:
    return ValueError(f"padded: arrays of {dtype} cannot hold the padding {padding!r}")


def _lengths(values: Sequence[Any], axes: tuple[int, ...]) -> Any:
    found = np.array([[value.shape[axis] for axis in axes] for value in values], np.int64)
    if len(axes) == 1:
        found = found[:, 0]
    if isinstance(values[0], np.ndarray):
        return found
    import torch

    return torch.from_numpy(found.copy())


def _with_lengths(batch: Any, lengths: dict[Any, Any]) -> Any:
    if isinstance(batch, tuple):
        return (*batch, *lengths.values())
    if not isinstance(batch, dict):
        return (batch, *lengths.values())
    named = {f"{field}_lengths": value for field, value in lengths.items()}
    for name in named:
        if name in batch:
            raise ValueError(f"padded: the lengths need the name {name!r}, but the samples have such a field")
    return {**batch, **named}


def _described(value: Any) -> str:
    dimensions = getattr(value, "ndim", None)
    kind = type(value).__name__
    return kind if dimensions is None else f"{kind} of {dimensions} dimensions"


PADDED = padded()
"""What pads by default: with 0, up to the largest of the batch."""
