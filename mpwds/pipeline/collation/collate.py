"""Collate samples into batches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

Stacker = Callable[[Sequence[Any]], Any]
"""Makes a column of arrays or tensors of one shape."""

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


def deferred_collation_fn(samples: Sequence[Any]) -> Any:
    """The same batch, with a ``Stack`` in place of each stacked column."""
    return collate(samples, partial(default_column, defer, True))


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


class Stack:
    """Rows that are stacked when the transport writes them into shared memory, which saves a copy.

    Implements ``mpwds.tenbin.Deferred``. The rows are arrays of one shape, or CPU tensors of one shape and
    dtype. ``dtype`` holds all of theirs, in the machine's byte order. Must not be a dataclass: those count as
    records, whose fields are columns.
    """

    def __init__(self, rows: Sequence[Any], dtype: np.dtype[Any]) -> None:
        self.rows = rows
        self.dtype = dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.rows[0].shape)

    def write_into(self, out: npt.NDArray[Any]) -> None:
        """Copies the rows into ``out``, a writable array of this ``shape`` and ``dtype``."""
        if isinstance(self.rows[0], np.ndarray):
            for index, row in enumerate(self.rows):
                out[index] = row
        else:
            import torch

            torch.stack(list(self.rows), out=torch.from_numpy(out))


def stack(rows: Sequence[Any]) -> Any:
    """Rows of one shape, as one array or tensor."""
    if not isinstance(rows[0], np.ndarray):
        import torch

        return torch.stack(list(rows))
    # np.stack would take longer to prepare than to copy.
    out = np.empty((len(rows), *rows[0].shape), common_dtype(rows))
    Stack(rows, out.dtype).write_into(out)
    return out


def defer(rows: Sequence[Any]) -> Any:
    """A ``Stack`` of rows, or the stacked rows if the transport cannot carry their dtype."""
    first = rows[0]
    if isinstance(first, np.ndarray):
        dtype = common_dtype(rows)
        return Stack(rows, dtype) if dtype in FIXED_SIZE else stack(rows)
    name = str(first.dtype).removeprefix("torch.")
    plain = first.device.type == "cpu" and first.layout is sys.modules["torch"].strided
    if plain and name in _NAMES and can_be_stacked_into(rows):
        return Stack(rows, np.dtype(name))
    return stack(rows)


def can_be_stacked_into(tensors: Sequence[Any]) -> bool:
    """True if ``torch.stack(tensors, out=...)`` works for these CPU tensors of one shape.

    ``torch.stack`` resolves conjugated and negated tensors by itself.
    """
    dtype = tensors[0].dtype
    return all(tensor.dtype == dtype and not tensor.requires_grad for tensor in tensors)


def common_dtype(rows: Sequence[Any]) -> np.dtype[Any]:
    return np.result_type(*{row.dtype for row in rows})  # in the machine's byte order


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
    """``numpy.ndarray`` or ``torch.Tensor`` if ``value`` is one, otherwise ``None``."""
    if isinstance(value, np.ndarray):
        return np.ndarray
    torch = sys.modules.get("torch")
    return torch.Tensor if torch is not None and isinstance(value, torch.Tensor) else None


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
    return column if column.ndim == 1 and column.dtype.kind in _NUMERIC_KINDS else list(values)


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


def _show(trait: Any) -> str:
    return str(trait) if isinstance(trait, int) else ", ".join(map(str, trait))
