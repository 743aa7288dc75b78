"""Collate samples into batches, stacked or padded."""

from __future__ import annotations

import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from mpwds.imports import tensor_class

Shape = tuple[int, ...]

Stacker = Callable[..., Any]
"""Makes a column of arrays or tensors: ``stack``, ``defer`` or ``list``."""

ColumnMaker = Callable[[Any, Sequence[Any]], Any]
"""Makes a column of a field's name (its index in tuples, ``None`` for bare values) and its values."""

_NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
FIXED_SIZE = frozenset(map(np.dtype, _NAMES))
_NUMERIC_KINDS = frozenset("biufcmM")


def default_collation_fn(
    samples: Sequence[Any], combine_tensors: bool = True, combine_scalars: bool = True
) -> Any:
    """Makes a batch of samples, as webdataset does.

    Args:
        samples: At least one tuple, list, dict or bare value. Tuples and lists must have equal length, dicts
            equal keys.
        combine_tensors: Whether to stack arrays and tensors; otherwise their columns are lists.
        combine_scalars: Whether to make arrays of numbers; otherwise their columns are lists.

    Returns:
        For tuples and lists a tuple of columns, for dicts a dict of columns, for bare values a column.
        A column of numbers is an array of shape ``(len(samples),)``. A column of arrays or tensors is an
        array or tensor of shape ``(len(samples), *shape)``, of the dtype that holds all of theirs. Any other
        column is a list.

    Raises:
        ValueError: There are no samples; they differ in length, keys or type; or arrays of a field differ in
            shape (``mpwds.padded()`` makes batches of those).

    Source:
        ``webdataset.filters.default_collation_fn``.

    Example:
        >>> samples = [(np.zeros((2, 3)), 7, "a"), (np.ones((2, 3)), 8, "b")]
        >>> images, labels, keys = default_collation_fn(samples)
        >>> images.shape, labels, keys
        ((2, 2, 3), array([7, 8]), ['a', 'b'])
    """
    return collate(samples, partial(default_column, stack if combine_tensors else list, combine_scalars))


def collate_by(stack: Stacker, ragged: Sequence[Any], samples: Sequence[Any]) -> Any:
    """The same batch, with columns of arrays made by ``stack``: ``defer`` puts a ``Stack`` in their place.

    Columns of the fields in ``ragged``, which hold bytes, are lists of uint8 arrays that share the bytes'
    memory. The transport writes them into one block of shared memory, each at a multiple of 64 bytes.
    """

    def column(field: Any, values: Sequence[Any]) -> Any:
        if field in ragged:
            return [_bytes_as_array(field, value) for value in values]
        return default_column(stack, True, field, values)

    batch = collate(samples, column)
    if ragged:
        _check_fields("ragged", ragged, samples[0])
    return batch


def collate(samples: Sequence[Any], column: ColumnMaker) -> Any:
    """Makes a batch of samples as ``default_collation_fn`` does; ``column`` makes its columns."""
    if not samples:
        raise ValueError("cannot collate a batch of no samples")
    first = samples[0]
    if isinstance(first, (tuple, list)):
        _check(samples, (tuple, list), len, "fields")
        return tuple([column(field, values) for field, values in enumerate(zip(*samples, strict=True))])
    if isinstance(first, dict):
        _check(samples, dict, dict.keys, "keys")
        return {key: column(key, [sample[key] for sample in samples]) for key in first}
    return column(None, samples)


def _bytes_as_array(field: Any, value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return np.frombuffer(value, np.uint8)
    is_array = array_kind(value) not in (None, Row)
    if is_array and value.ndim == 1 and str(value.dtype).removeprefix("torch.") == "uint8":
        return value  # of a row that was ragged before
    kind = "ndarray" if isinstance(value, Row) else type(value).__name__
    raise TypeError(f"ragged columns are made of bytes, got {kind}{in_field(field)}")


class Row(ABC):
    """A row of a batch, in place of an array, that is made when its place in shared memory is known.

    Implements ``mpwds.tenbin.Deferred``. Stages make such values if ``Context.deferred`` allows it.
    """

    shape: Shape
    dtype: np.dtype[Any]

    @abstractmethod
    def write_into(self, out: npt.NDArray[Any]) -> None:
        """Writes the row into ``out``, a writable array of this ``shape`` and ``dtype``."""

    def made(self) -> Any:
        """The row as an array."""
        out = np.empty(self.shape, self.dtype)
        self.write_into(out)
        return out


class Stack(Row):
    """Rows that are stacked when the transport writes them into shared memory, which saves a copy.

    The rows are arrays of one shape, or to be padded to ``padded_shape``; or CPU tensors, or each a ``Row``,
    of one shape and dtype. ``dtype`` holds all of theirs, in the machine's byte order. Must not be a
    dataclass: those count as records, whose fields are columns.
    """

    def __init__(
        self, rows: Sequence[Any], dtype: np.dtype[Any], padded_shape: Shape | None = None, padding: Any = 0
    ) -> None:
        self.rows = rows
        self.dtype = dtype
        self.shape = (len(rows), *(rows[0].shape if padded_shape is None else padded_shape))
        self.padded_shape = padded_shape
        self.padding = padding

    def write_into(self, out: npt.NDArray[Any]) -> None:
        if self.padded_shape is not None:
            _write_padded(self.rows, out, self.padding)
        elif type(self.rows[0]) is np.ndarray and out.ndim > 1:
            # One call: of many small rows, a loop would take twice the time.
            np.concatenate(self.rows, out=out.reshape(out.shape[0] * out.shape[1], *out.shape[2:]))
        elif isinstance(self.rows[0], np.ndarray):
            for index, row in enumerate(self.rows):
                out[index] = row
        elif isinstance(self.rows[0], Row):
            for place, row in zip(out, self.rows, strict=True):
                row.write_into(place)
        else:
            import torch

            torch.stack(list(self.rows), out=torch.from_numpy(out))

    def made(self) -> Any:
        """The stacked rows, as an array or, of tensors, as a tensor."""
        first = self.rows[0]
        if isinstance(first, Stack):
            return stack([row.made() for row in self.rows])
        # np.stack would take longer to prepare than to copy.
        return super().made() if isinstance(first, (np.ndarray, Row)) else stack(self.rows)


def stack(rows: Sequence[Any], padded_shape: Shape | None = None, padding: Any = 0) -> Any:
    """Rows as one array or tensor. Rows of different shapes are padded to ``padded_shape``."""
    if isinstance(rows[0], np.ndarray):
        return _of_arrays(rows, padded_shape, padding).made()
    import torch

    if padded_shape is None:
        return torch.stack(list(rows))
    dtype = reduce(torch.promote_types, [row.dtype for row in rows])
    is_inexact = dtype.is_floating_point or dtype.is_complex
    _check_holds(lambda: torch.full((), padding, dtype=dtype).item(), padding, dtype, is_inexact)
    out = rows[0].new_empty((len(rows), *padded_shape), dtype=dtype)
    _write_padded(rows, out, padding)
    return out


def defer(rows: Sequence[Any], padded_shape: Shape | None = None, padding: Any = 0) -> Any:
    """A ``Stack`` of the rows; or what ``stack`` makes, if the transport cannot carry their dtype."""
    first = rows[0]
    if isinstance(first, Row):
        if len({row.dtype for row in rows}) == 1:
            return Stack(rows, first.dtype)
        rows = [row.made() for row in rows]
        first = rows[0]
    if isinstance(first, np.ndarray):
        deferred = _of_arrays(rows, padded_shape, padding)
        return deferred if deferred.dtype in FIXED_SIZE else deferred.made()
    name = str(first.dtype).removeprefix("torch.")
    plain = first.device.type == "cpu" and first.layout is sys.modules["torch"].strided
    if padded_shape is None and plain and name in _NAMES and can_be_stacked_into(rows):
        return Stack(rows, np.dtype(name))
    return stack(rows, padded_shape, padding)


def _of_arrays(rows: Sequence[Any], padded_shape: Shape | None, padding: Any) -> Stack:
    dtype = np.result_type(*{row.dtype for row in rows})  # in the machine's byte order
    if padded_shape is not None:
        with np.errstate(invalid="ignore"):
            _check_holds(lambda: np.array(padding).astype(dtype)[()], padding, dtype, dtype.kind in "fc")
    return Stack(rows, dtype, padded_shape, padding)


def _write_padded(rows: Sequence[Any], out: Any, padding: Any) -> None:
    shape = tuple(out.shape[1:])
    for place, row in zip(out, rows, strict=True):
        if row.shape != shape:
            place[...] = padding
        place[tuple([slice(size) for size in row.shape])] = row


def _check_holds(convert: Callable[[], Any], padding: Any, dtype: Any, is_inexact: bool) -> None:
    try:
        if convert() == padding or is_inexact:
            return
    except (ValueError, TypeError, OverflowError, RuntimeError):
        pass
    raise ValueError(f"padded: arrays of {dtype} cannot hold the padding {padding!r}")


def can_be_stacked_into(tensors: Sequence[Any]) -> bool:
    """True if ``torch.stack(tensors, out=...)`` works for these CPU tensors of one shape.

    ``torch.stack`` resolves conjugated and negated tensors by itself.
    """
    dtype = tensors[0].dtype
    return all(tensor.dtype == dtype and not tensor.requires_grad for tensor in tensors)


def default_column(stack: Stacker, combine_scalars: bool, field: Any, values: Sequence[Any]) -> Any:
    """The column that ``default_collation_fn`` makes.

    ``stack`` makes a column of arrays or tensors of one shape; ``list`` allows any shapes.
    """
    first = values[0]
    if isinstance(first, (int, float, complex, np.generic)):
        return _numbers(values) if combine_scalars else list(values)
    kind = array_kind(first)
    if kind is None or stack is list:
        return list(values)
    shape = first.shape
    for index, value in enumerate(values):
        if not isinstance(value, kind) or value.shape != shape:
            raise _disagreement(field, values, index)
    return stack(values)


def array_kind(value: Any) -> Any:
    """``numpy.ndarray``, ``torch.Tensor`` or ``Row`` if ``value`` is one, otherwise ``None``."""
    for kind in (np.ndarray, tensor_class(), Row):
        if isinstance(value, kind):
            return kind
    return None


def in_field(field: Any) -> str:
    """Words for an error message: ``" in field 'png'"``; nothing for bare values."""
    return "" if field is None else f" in field {field!r}"


def _disagreement(field: Any, values: Sequence[Any], index: int) -> ValueError:
    first, other = values[0], values[index]
    if not isinstance(other, type(first)):
        return ValueError(
            f"cannot collate values of different types{in_field(field)}: the first is a "
            f"{type(first).__name__}, that of sample {index} of the batch a {type(other).__name__}"
        )
    return ValueError(
        f"cannot collate arrays of different shapes{in_field(field)}: the first has {tuple(first.shape)}, "
        f"that of sample {index} of the batch {tuple(other.shape)}; collation_fn=mpwds.padded() pads them, "
        "functools.partial(mpwds.default_collation_fn, combine_tensors=False) makes a list"
    )


def _numbers(values: Sequence[Any]) -> Any:
    try:
        column = np.array(values)
    except (ValueError, TypeError, OverflowError):
        return list(values)
    if column.dtype.kind == "f" and all(isinstance(value, (int, np.integer)) for value in values):
        return np.array(values, np.uint64) if min(values) >= 0 else list(values)  # floats would round them
    return column if column.dtype.kind in _NUMERIC_KINDS else list(values)


def _check(samples: Sequence[Any], kind: Any, trait: Callable[[Any], Any], what: str) -> None:
    expected = trait(samples[0])
    for index, sample in enumerate(samples):
        if not isinstance(sample, kind):
            raise ValueError(
                f"cannot collate samples of different types: the first is a {type(samples[0]).__name__}, "
                f"sample {index} of the batch a {type(sample).__name__}"
            )
        if trait(sample) != expected:
            raise ValueError(
                f"cannot collate samples with different {what}: the first has {_show(expected)}, "
                f"sample {index} of the batch {_show(trait(sample))}"
            )


def _check_fields(called: str, wanted: Iterable[Any], sample: Any) -> None:
    has_fields = isinstance(sample, (dict, tuple, list))
    fields = list(sample if isinstance(sample, dict) else range(len(sample))) if has_fields else []
    absent = [repr(field) for field in wanted if field not in fields]
    if absent:
        found = ", ".join(map(str, fields)) or "none"
        raise ValueError(f"{called}: no field {' or '.join(absent)}; the sample has {found}")


def _show(trait: Any) -> str:
    return str(trait) if isinstance(trait, int) else ", ".join(map(str, trait))


def padded(
    padding: Any = 0,
    lengths: bool = False,
    multiple_of: int | None = None,
    axes: int | Sequence[int] | None = None,
) -> Padded:
    """Collation function that pads arrays and tensors of different shapes to the largest of the batch.

    Use it as ``batched(16, collation_fn=padded())``. ``bucketed`` gathers arrays of similar size, which need
    little padding. Arrays and tensors of at least one dimension are padded at the ends of their axes.
    Everything else is collated as by ``default_collation_fn``.

    Args:
        padding: The value to pad with; or a dict of values by field (name, or index in tuples). With a dict
            only these fields are padded: ``{"tokens": 0, "labels": -100}``.
        lengths: Whether the batch also holds the lengths that the arrays had, as int64 of shape
            ``(len(samples),)`` if there is one axis, otherwise ``(len(samples), axes)``. Dict samples get a
            field ``tokens_lengths`` for each padded field ``tokens``, tuples get further columns at the end,
            and bare arrays become ``(batch, lengths)``.
        multiple_of: Rounds lengths up to multiples of this, along ``axes`` if given, otherwise along the axes
            in which the arrays of a batch differ.
        axes: The axis or axes along which arrays may differ; all by default.

    Raises:
        ValueError: ``multiple_of`` is below 1; or, when called, arrays differ in their dimensions or along
            another axis, their dtype cannot hold the padding, a field to pad is missing, or a sample already
            has a field with the name for the lengths.
        TypeError: ``multiple_of`` or an axis is not an integer; or, when called, a field to pad does not hold
            arrays.

    Example:
        >>> padded()([(np.array([1, 2, 3]), "a"), (np.array([4]), "b")])
        (array([[1, 2, 3],
               [4, 0, 0]]), ['a', 'b'])
    """
    if axes is not None:
        axes = tuple(axes) if isinstance(axes, Sequence) else (axes,)
    return Padded(padding, lengths, multiple_of, axes)


@dataclass(frozen=True)
class Padded:
    """The collation function that ``padded`` makes."""

    padding: Any = 0
    lengths: bool = False
    multiple_of: int | None = None
    axes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.multiple_of is not None and operator.index(self.multiple_of) < 1:
            raise ValueError(f"padded: multiple_of must be at least 1, got {self.multiple_of}")
        for axis in self.axes or ():
            operator.index(axis)

    def __call__(self, samples: Sequence[Any]) -> Any:
        return self.collate_by(stack, samples)

    def collate_by(self, stack: Stacker, samples: Sequence[Any]) -> Any:
        """The same batch, with columns of arrays made by ``stack``."""
        lengths: dict[Any, Any] = {}
        by_field = self.padding if isinstance(self.padding, Mapping) else None

        def column(field: Any, values: Sequence[Any]) -> Any:
            is_array = array_kind(values[0]) is not None and values[0].ndim > 0
            if not (is_array if by_field is None else field in by_field):
                return default_column(stack, True, field, values)
            axes = self._check(field, values)
            if self.lengths:
                lengths[field] = _lengths(values, axes)
            shape = self._shape(values, axes)
            if all(value.shape == shape for value in values):
                return stack(values)
            return stack(values, shape, self.padding if by_field is None else by_field[field])

        batch = collate(samples, column)
        if by_field is not None:
            _check_fields("padded", by_field, samples[0])
        return _with_lengths(batch, lengths) if self.lengths else batch

    def _check(self, field: Any, values: Sequence[Any]) -> tuple[int, ...]:
        """The axes along which these values may differ. Raises if padding along them does not suffice."""
        kind, where = array_kind(values[0]), in_field(field)
        if kind is None:
            raise TypeError(f"padded: expected arrays or tensors{where}, got a {type(values[0]).__name__}")
        dimensions, given = values[0].ndim, ", ".join(map(str, self.axes or ()))
        for index, value in enumerate(values):
            if not isinstance(value, kind) or value.ndim != dimensions:
                raise ValueError(
                    f"padded: values{where} differ: the first is a {_described(values[0])}, "
                    f"that of sample {index} of the batch a {_described(value)}"
                )
        if self.axes is None:
            return tuple(range(dimensions))
        if not all(-dimensions <= axis < dimensions for axis in self.axes):
            raise ValueError(f"padded: no axis {given} in arrays of {dimensions} dimensions{where}")
        axes = tuple([axis % dimensions for axis in self.axes])
        for axis in set(range(dimensions)).difference(axes):
            sizes = {value.shape[axis] for value in values}
            if len(sizes) > 1:
                raise ValueError(
                    f"padded: arrays{where} differ along axis {axis}, which is not among axes={given}: "
                    f"{', '.join(map(str, sorted(sizes)))}"
                )
        return axes

    def _shape(self, values: Sequence[Any], axes: tuple[int, ...]) -> Shape:
        shape = []
        for axis, sizes in enumerate(zip(*[value.shape for value in values], strict=True)):
            size = max(sizes)
            if self.multiple_of and axis in axes and (self.axes is not None or min(sizes) < size):
                size = -(-size // self.multiple_of) * self.multiple_of
            shape.append(size)
        return tuple(shape)


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
    for field, value in lengths.items():
        name = f"{field}_lengths"
        if name in batch:
            raise ValueError(f"padded: the lengths need the name {name!r}, but the samples have such a field")
        batch[name] = value
    return batch


def _described(value: Any) -> str:
    kind = type(value).__name__
    return kind if array_kind(value) is None else f"{kind} of {value.ndim} dimensions"


PADDED = padded()
"""The default of ``bucketed``."""
