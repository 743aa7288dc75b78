"""The form of a batch: how columns of rows are nested in it, and what their rows are."""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mpwds.nest.classes import fields_of

_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict)


@dataclass(frozen=True)
class ArrayForm:
    """A column that is an array or a CPU tensor: the dtype, NumPy's or torch's, and the shape of a row."""

    dtype: Any
    row_shape: tuple[int, ...]

    @property
    def is_tensor(self) -> bool:
        return not isinstance(self.dtype, np.dtype)

    @property
    def holds_objects(self) -> bool:
        return not self.is_tensor and bool(self.dtype.hasobject)

    @property
    def row_nbytes(self) -> int:
        count: int = np.prod(self.row_shape, dtype=np.int64).item()
        return count * int(self.dtype.itemsize)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.row_shape)}"


@dataclass(frozen=True)
class ListForm:
    """A column that is a list or a tuple, with any object for a row."""

    kind: type

    def __str__(self) -> str:
        return f"{self.kind.__name__} of rows"


@dataclass(frozen=True)
class Group:
    """What holds columns: a dict, list, tuple, namedtuple or dataclass."""

    kind: type
    keys: tuple[Any, ...]
    parts: tuple[Form, ...]
    factory: Any = None

    def __str__(self) -> str:
        return f"{self.kind.__name__} of columns"


Form: TypeAlias = "ArrayForm | ListForm | Group"


def columns_of(form: Form, batch: Any) -> list[Any]:
    """The columns of a batch that has the same form as others.

    Args:
        form: The form, as ``form_of`` found it in the first of them.
        batch: The batch.

    Raises:
        TypeError: A tensor is in a GPU's memory, or is sparse.
        ValueError: It has another form, or its columns differ in their number of rows.

    Example:
        >>> from mpwds.loader.infer_form import form_of
        >>> columns_of(form_of({"x": np.zeros(2)}), {"x": np.ones(3)})
        [array([1., 1., 1.])]
        >>> columns_of(form_of({"x": np.zeros(2)}), {"x": np.zeros(2, "uint8")})
        Traceback (most recent call last):
        ...
        ValueError: rebatched: batch['x'] has rows of uint8 [], in batches before they were float64 []: ...
    """
    columns: list[Any] = []
    _collect(form, batch, "batch", columns)
    if len({len(column) for column in columns}) > 1:
        found = ", ".join(str(len(column)) for column in columns)
        raise ValueError(f"rebatched: the columns of a batch differ in their number of rows: {found}")
    return columns


def leaves(form: Form) -> list[ArrayForm | ListForm]:
    """The forms of a batch's columns, in the order of ``columns_of``."""
    if isinstance(form, Group):
        return [leaf for part in form.parts for leaf in leaves(part)]
    return [form]


def build(form: Form, columns: Iterator[Any]) -> Any:
    """A batch of other columns.

    Args:
        form: The batch's form.
        columns: As many as it has, in the order of ``columns_of``.

    Example:
        >>> from mpwds.loader.infer_form import form_of
        >>> build(form_of({"x": np.zeros(2)}), iter(["a column"]))
        {'x': 'a column'}
    """
    if not isinstance(form, Group):
        return next(columns)
    kind, parts = form.kind, [build(part, columns) for part in form.parts]
    if kind is collections.defaultdict:
        return collections.defaultdict(form.factory, zip(form.keys, parts, strict=True))
    if issubclass(kind, dict):
        return kind(zip(form.keys, parts, strict=True))
    if issubclass(kind, tuple):
        return tuple.__new__(kind, parts)
    if kind is list:
        return parts
    instance = object.__new__(kind)
    for name, part in zip(form.keys, parts, strict=True):
        object.__setattr__(instance, name, part)
    return instance


def _collect(form: Form, item: Any, path: str, columns: list[Any]) -> None:
    if isinstance(form, Group):
        found = None if type(item) is not form.kind else children(item)
        if found is None:
            raise _changed(path, f"is {article(item)}", f"it was a {form}")
        by_key = {key: (step, child) for key, step, child in found}
        if len(by_key) != len(form.keys) or not by_key.keys() >= set(form.keys):
            raise _changed(path, f"has {_names(by_key)}", f"it had {_names(form.keys)}")
        for key, part in zip(form.keys, form.parts, strict=True):
            step, child = by_key[key]
            _collect(part, child, path + step, columns)
        return
    if isinstance(form, ArrayForm):
        now = array_form(item, path) if is_array(item) else None
        if now is None:
            raise _changed(path, f"is {article(item)}", f"it was a column of {form}")
        if now != form:
            raise _changed(path, f"has rows of {now}", f"they were {form}")
    elif type(item) is not form.kind:
        raise _changed(path, f"is {article(item)}", f"it was a {form}")
    columns.append(item)


def _changed(path: str, now: str, before: str) -> ValueError:
    return ValueError(
        f"rebatched: {path} {now}, in batches before {before}: all rows of an epoch must be alike; "
        "mpwds.padded() pads them in the workers, unbatched(), shuffle(n) and batched(m, collation_fn=...) "
        "mix those that are not"
    )


# -------------------------------------------------------------------------------------- what is in a batch


def children(item: Any) -> list[tuple[Any, str, Any]] | None:
    """What an item holds, as keys, steps of a path and items; ``None`` if it cannot hold columns."""
    kind = type(item)
    if kind in _MAPPINGS:
        return [(key, f"[{key!r}]", value) for key, value in item.items()]
    if kind in (list, tuple):
        return [(index, f"[{index}]", value) for index, value in enumerate(item)]
    names = fields_of(kind)
    return None if names is None else [(name, f".{name}", getattr(item, name)) for name in names]


def is_array(item: Any) -> bool:
    """Whether an item is an array or a tensor that has rows."""
    if type(item) is np.ndarray or _is_tensor(item):
        return bool(item.ndim)
    return False


def _is_tensor(item: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.Tensor)


def array_form(array: Any, path: str) -> ArrayForm:
    """The form of an array, found at ``path``.

    Raises:
        TypeError: It is a tensor in a GPU's memory, or a sparse one.
    """
    if _is_tensor(array):
        layout = str(array.layout).removeprefix("torch.")
        if array.device.type != "cpu" or layout != "strided":
            raise TypeError(
                f"rebatched: {path} is a {layout} tensor on {array.device}: it takes dense tensors in "
                "the CPU's memory, so move batches to a device behind it"
            )
    return ArrayForm(array.dtype, tuple(array.shape[1:]))


def article(item: Any) -> str:
    """Names an item's class in an error: ``an int``."""
    name = type(item).__name__
    return f"a{'n' if name[:1].lower() in 'aeiou' else ''} {name}"


def _names(keys: Any) -> str:
    return ", ".join(map(repr, keys)) or "nothing"
