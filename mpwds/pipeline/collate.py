"""Make a batch of samples: columns of arrays from rows of arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Stacker = Callable[[Sequence[Any]], Any]

_FIXED_SIZE = frozenset(
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
)
_NUMERIC_KINDS = frozenset("biufcmM")


def default_collation_fn(samples: Sequence[Any]) -> Any:
    """Makes a batch of samples, as webdataset does.

    Args:
        samples: Tuples (or lists) of equal length, dicts with equal keys, or bare values; at least one.

    Returns:
        For tuples and lists a tuple of columns, for dicts a dict of columns, for bare values a column.
        A column of numbers is an array of shape ``(len(samples),)``; one of arrays or tensors of one shape
        is an array or tensor of shape ``(len(samples), *shape)``, of the dtype that holds all of theirs; any
        other, arrays of different shapes among them, is a list.

    Raises:
        ValueError: There are no samples, or they differ in length or in keys.

    Example:
        >>> samples = [(np.zeros((2, 3)), 7, "a"), (np.ones((2, 3)), 8, "b")]
        >>> images, labels, keys = default_collation_fn(samples)
        >>> images.shape, labels, keys
        ((2, 2, 3), array([7, 8]), ['a', 'b'])
    """
    return collate(samples, stack)


def deferred_collation_fn(samples: Sequence[Any]) -> Any:
    """The same batch, its stacked columns not made yet: a ``Stack`` stands for each.

    Example:
        >>> column, labels = deferred_collation_fn([(np.zeros((2, 3)), 7), (np.ones((2, 3)), 8)])
        >>> column.shape, labels
        ((2, 2, 3), array([7, 8]))
    """
    return collate(samples, defer)


def collate(samples: Sequence[Any], stack: Stacker) -> Any:
    """What ``default_collation_fn`` does, with the caller's way to stack rows.

    Args:
        samples: The samples.
        stack: Makes a column of arrays, or of tensors, of one shape.

    Raises:
        ValueError: There are no samples, or they differ in length or in keys.

    Example:
        >>> collate([{"x": 1.5, "name": "a"}, {"x": 2.5, "name": "b"}], stack)
        {'x': array([1.5, 2.5]), 'name': ['a', 'b']}
    """
    if not samples:
        raise ValueError("cannot collate a batch of no samples")
    first = samples[0]
    if isinstance(first, (tuple, list)):
        _check(samples, (tuple, list), len, "fields")
        return tuple([_column(values, stack) for values in zip(*samples, strict=True)])
    if isinstance(first, dict):
        _check(samples, dict, dict.keys, "keys")
        return {key: _column([sample[key] for sample in samples], stack) for key in first}
    return _column(samples, stack)


class Stack:
    """Rows that will be stacked once their place is known (implements ``mpwds.tenbin.Deferred``).

    Saves a copy: the transport writes the rows straight into shared memory.

    Args:
        rows: Arrays of one shape, or CPU tensors of one shape and dtype.
        dtype: The dtype that holds all of theirs, in NumPy's terms and the machine's byte order.

    Example:
        >>> rows = Stack([np.zeros(3), np.ones(3)], np.dtype("float64"))
        >>> place = np.empty(rows.shape, rows.dtype)
        >>> rows.write_into(place)
        >>> place.tolist()
        [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    """

    __slots__ = ("_dtype", "_rows")

    def __init__(self, rows: Sequence[Any], dtype: np.dtype[Any]) -> None:
        self._rows = rows
        self._dtype = dtype

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self._rows), *self._rows[0].shape)

    def write_into(self, out: npt.NDArray[Any]) -> None:
        """Copies the rows into ``out``, a writable array of this ``shape`` and ``dtype``."""
        if isinstance(self._rows[0], np.ndarray):
            for index, row in enumerate(self._rows):
                out[index] = row
        else:
            import torch

            torch.stack(list(self._rows), out=torch.from_numpy(out))


def stack(rows: Sequence[Any]) -> Any:
    """Rows of one shape, as one array or tensor."""
    if not isinstance(rows[0], np.ndarray):
        import torch

        return torch.stack(list(rows))
    out = np.empty(
        (len(rows), *rows[0].shape), _common_dtype(rows)
    )  # np.stack prepares for longer than it copies
    for index, row in enumerate(rows):
        out[index] = row
    return out


def defer(rows: Sequence[Any]) -> Any:
    """The same rows as a ``Stack``; stacked at once where no transport carries their dtype as it is."""
    first = rows[0]
    if isinstance(first, np.ndarray):
        dtype = _common_dtype(rows)
        return Stack(rows, dtype) if dtype in _FIXED_SIZE else stack(rows)
    name = str(first.dtype).removeprefix("torch.")
    plain = first.device.type == "cpu" and first.layout is sys.modules["torch"].strided
    if plain and name in _TORCH_NAMES and all(_is_like(row, first.dtype) for row in rows):
        return Stack(rows, np.dtype(name))
    return stack(rows)


_TORCH_NAMES = frozenset(dtype.name for dtype in _FIXED_SIZE)


def _is_like(row: Any, dtype: Any) -> bool:
    return row.dtype is dtype and not row.requires_grad and not row.is_conj()


def _common_dtype(rows: Sequence[Any]) -> np.dtype[Any]:
    return np.result_type(*{row.dtype for row in rows})  # in the machine's byte order


def _column(values: Sequence[Any], stack: Stacker) -> Any:
    first = values[0]
    if isinstance(first, np.ndarray):
        return stack(values) if _agree(values, first, np.ndarray) else list(values)
    if isinstance(first, (int, float, complex, np.generic)):
        return _numbers(values)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(first, torch.Tensor):
        return stack(values) if _agree(values, first, torch.Tensor) else list(values)
    return list(values)


def _agree(values: Sequence[Any], first: Any, kind: Any) -> bool:
    shape = first.shape
    return all(isinstance(value, kind) and value.shape == shape for value in values)


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
