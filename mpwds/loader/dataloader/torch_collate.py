"""torch's ``default_collate`` and ``default_convert``, writing straight into shared memory.

A worker does not build the columns of a batch. An object that can write the rows stands for each column, and
the transport has it write into shared memory. Unusual samples, and errors, are left to torch itself.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mpwds.imports import after_import
from mpwds.loader.messages.out_of_band import AsTensor
from mpwds.pipeline.stages.collation import FIXED_SIZE, Row, Stack, can_be_stacked_into
from mpwds.trees import fields_of

CollateMap = Mapping[Any, Callable[..., Any]]

_FOR_TORCH = FIXED_SIZE - {np.dtype(name) for name in ("uint16", "uint32", "uint64")}  # not before torch 2.3
_TORCH_NAMES = frozenset(dtype.name for dtype in _FOR_TORCH)


def collate(batch: Sequence[Any]) -> Any:
    """The batch that ``torch.utils.data.default_collate`` makes, or its error; tensors are not written yet.

    Example:
        >>> column, names = collate([(1.5, "a"), (2.5, "b")])
        >>> column.shape, names
        ((2,), ('a', 'b'))
    """
    if _users_functions:
        return _by_torch(batch)
    first = batch[0]
    column = _COLUMNS.get(type(first))
    if column is not None:
        return column(batch)
    torch = sys.modules.get("torch")
    if torch is not None and type(first) is torch.Tensor:
        return _tensors(batch)
    if isinstance(first, tuple) and fields_of(type(first)) is not None:
        return type(first)(*[collate(values) for values in zip(*batch, strict=False)])
    return _by_torch(batch)


def convert(data: Any) -> Any:
    """The sample that ``torch.utils.data.default_convert`` makes, its tensors not written yet."""
    kind = type(data)
    if (kind is np.ndarray and data.dtype in _FOR_TORCH) or isinstance(data, Row):
        return AsTensor(data)
    if kind is dict:
        return {key: convert(value) for key, value in data.items()}
    if kind is list or kind is tuple:
        return [convert(value) for value in data]
    if kind in _UNCHANGED:
        return data
    from torch.utils.data import default_convert

    return default_convert(data)  # type: ignore[no-untyped-call]  # torch gives it no types


def users_functions() -> dict[Any, Callable[..., Any]]:
    """The user's additions to torch's ``default_collate_fn_map``, for :func:`take_functions` in a worker."""
    from torch.utils.data._utils import collate as torchs

    table = torchs.default_collate_fn_map.items()
    own = (torchs.__name__, __name__)
    return {kind: function for kind, function in table if getattr(function, "__module__", "") not in own}


def take_functions(functions: CollateMap) -> None:
    """Adds the user's functions to torch's ``default_collate_fn_map`` in a worker.

    It also replaces torch's function for tensors, which would allocate shared memory for torch's transport.
    """
    _users_functions.update(functions)

    def tell(module: Any) -> None:
        import torch

        module.default_collate_fn_map.update({torch.Tensor: _stack_privately, **functions})

    after_import("torch.utils.data._utils.collate", tell)


_users_functions: dict[Any, Callable[..., Any]] = {}


def _arrays(rows: Sequence[Any]) -> Any:
    dtype, shape = rows[0].dtype, rows[0].shape
    alike = set(map(type, rows)) == {np.ndarray} and {row.shape for row in rows} == {shape}
    if not alike or dtype not in _FOR_TORCH or not all(row.dtype is dtype for row in rows):
        return _by_torch(rows)
    return AsTensor(Stack(rows, dtype))


def _tensors(rows: Sequence[Any]) -> Any:
    import torch

    first = rows[0]
    name = str(first.dtype).removeprefix("torch.")
    plain = name in _TORCH_NAMES and first.is_cpu and first.layout is torch.strided
    if plain and set(map(type, rows)) == {type(first)} and not any(row.is_nested for row in rows):
        shapes = list(map(operator.attrgetter("shape"), rows))  # which a nested tensor has not
        if shapes.count(first.shape) == len(rows) and can_be_stacked_into(rows):
            return AsTensor(Stack(rows, np.dtype(name)))
    return _by_torch(rows)


def _numbers(values: Sequence[Any]) -> Any:
    kind = type(values[0])
    if set(map(type, values)) == {kind}:
        try:
            return AsTensor(np.array(values, _OF_NUMBERS[kind]))
        except OverflowError:
            pass
    return _by_torch(values)


def _dicts(samples: Sequence[Any]) -> Any:
    return {key: collate([sample[key] for sample in samples]) for key in samples[0]}


def _sequences(samples: Sequence[Any]) -> Any:
    if len(set(map(len, samples))) > 1:
        raise RuntimeError("each element in list of batch should be of equal size")
    return [collate(values) for values in zip(*samples, strict=True)]


def _by_torch(batch: Any) -> Any:
    from torch.utils.data import default_collate

    return default_collate(batch)


def _stack_privately(batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None) -> Any:
    import torch
    from torch.utils.data._utils.collate import collate_tensor_fn

    if batch[0].is_nested or batch[0].layout is not torch.strided:
        return collate_tensor_fn(batch)  # which refuses them
    return torch.stack(list(batch), 0)


_OF_NUMBERS = {int: np.dtype(np.int64), float: np.dtype(np.float64), bool: np.dtype(np.bool_)}
_UNCHANGED = frozenset({str, bytes, int, float, bool, complex, type(None)})
_COLUMNS: dict[type, Callable[[Sequence[Any]], Any]] = {
    np.ndarray: _arrays,
    **dict.fromkeys(_OF_NUMBERS, _numbers),
    str: lambda values: values,
    bytes: lambda values: values,
    dict: _dicts,
    list: _sequences,
    tuple: _sequences,
}
