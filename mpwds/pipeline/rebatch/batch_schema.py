"""The schema of a batch: how columns are nested in it, and the dtype and shape of their rows."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mpwds.imports import tensor_class
from mpwds.trees import children, instance

_OBJECTS = np.dtype(object)


@dataclass(frozen=True)
class Column:
    """A column: an array or CPU tensor, or a ``sequence`` (list or tuple) with any object for a row."""

    dtype: Any = _OBJECTS  # NumPy's or torch's
    row_shape: tuple[int, ...] = ()
    sequence: type | None = None

    @property
    def is_tensor(self) -> bool:
        return not isinstance(self.dtype, np.dtype)

    @property
    def holds_objects(self) -> bool:
        return not self.is_tensor and bool(self.dtype.hasobject)

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row in a batch's memory; 0 if it holds objects, which have their own."""
        return 0 if self.holds_objects else math.prod(self.row_shape) * int(self.dtype.itemsize)

    def __str__(self) -> str:
        if self.sequence is not None:
            return f"{self.sequence.__name__} of rows"
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.row_shape)}"


Schema: TypeAlias = Any
"""A :class:`Column`, or a dict, list, tuple, namedtuple or dataclass of schemas, as the batch is nested."""


def infer_schema(batch: Any) -> Schema:
    """The schema of a batch, whose columns are arrays, tensors, lists and tuples of the same number of rows.

    A dict, namedtuple or dataclass holds columns, and so does a list or tuple that is the batch itself. A
    list or tuple further inside is a column, with an item for each row, or it holds columns, arrays among
    them: the number of rows decides. If both are possible, it holds columns if its arrays cannot be rows of
    one column; TypeError if they can. ValueError: The columns differ in their number of rows.

    Example:
        >>> schema = infer_schema((np.zeros((2, 3)), {"key": ["a", "b"]}))
        >>> [str(column) for column in leaves(schema)]
        ['float64 [3]', 'list of rows']
    """
    errors: list[Exception] = []
    for rows_are_alike in (True, False):
        found: list[Schema] = []
        for rows in _possible_row_counts(batch):
            try:
                found.append(_Search(rows, rows_are_alike).group(batch, "batch"))
            except _Mismatch as mismatch:
                errors.append(mismatch.args[0])
        if len(found) > 1:
            raise _ambiguous("batch")
        if found:
            if not leaves(found[0]):
                raise TypeError(f"rebatched: the batch has no columns, it is {_article(batch)}")
            return found[0]
    raise errors.pop(0)  # a frame that held it as well would be a cycle, and keep the loader and its workers


def columns_of(schema: Schema, batch: Any) -> list[Any]:
    """The columns of a batch; ValueError unless it has this schema and as many rows in each column."""
    columns: list[Any] = []
    _collect(schema, batch, "batch", columns)
    if len({len(column) for column in columns}) > 1:
        found = ", ".join(str(len(column)) for column in columns)
        raise ValueError(f"rebatched: the columns of a batch differ in their number of rows: {found}")
    return columns


def leaves(schema: Schema) -> list[Column]:
    """The columns of a schema, in the order of ``columns_of``."""
    if isinstance(schema, Column):
        return [schema]
    return [leaf for part in (children(schema) or {}).values() for leaf in leaves(part)]


def build(schema: Schema, columns: Iterator[Any]) -> Any:
    """Makes a batch of columns, which come in the order of ``columns_of``."""
    if isinstance(schema, Column):
        return next(columns)
    return _like(schema, [build(part, columns) for part in (children(schema) or {}).values()])


def _like(item: Any, parts: list[Any]) -> Any:
    """A container of an item's class and keys, with other parts."""
    kind, keys = type(item), children(item) or {}
    if kind is collections.defaultdict:
        return collections.defaultdict(item.default_factory, zip(keys, parts, strict=True))
    if issubclass(kind, dict):
        return kind(zip(keys, parts, strict=True))
    return parts if kind is list else instance(kind, keys, parts)


def _collect(schema: Schema, item: Any, path: str, columns: list[Any]) -> None:
    if not isinstance(schema, Column):
        before, found = children(schema) or {}, children(item) or {}
        if type(item) is not type(schema):
            raise _changed(path, f"is {_article(item)}", f"it was a {type(schema).__name__} of columns")
        if found.keys() != before.keys():
            raise _changed(path, f"has {_names(found)}", f"it had {_names(before)}")
        for key, part in before.items():
            _collect(part, found[key], path + _step(item, key), columns)
        return
    now = _array_column(item, path) if _is_array(item) else Column(sequence=type(item))
    if now != schema:
        if now.sequence is schema.sequence:
            raise _changed(path, f"has rows of {now}", f"they were {schema}")
        known = f"column of {schema}" if schema.sequence is None else schema
        raise _changed(path, f"is {_article(item)}", f"it was a {known}")
    columns.append(item)


def _changed(path: str, now: str, before: str) -> ValueError:
    return ValueError(
        f"rebatched: {path} {now}, in batches before {before}: all rows of an epoch must be alike; "
        "mpwds.padded() pads them in the workers, unbatched(), shuffle(n) and batched(m, collation_fn=...) "
        "mix those that are not"
    )


class _Mismatch(Exception):
    """The batch cannot have so many rows, or an item of it is no column; its argument is the error."""


@dataclass(frozen=True)
class _Search:
    """Searches for the schema of a batch of ``rows`` rows.

    With ``rows_are_alike``, arrays in a list are its rows only if they are all arrays of one kind.
    """

    rows: int
    rows_are_alike: bool

    def group(self, item: Any, path: str) -> Schema:
        """The schema of an item that is an array or holds columns, but is not a list of rows."""
        if _is_array(item):
            if len(item) != self.rows:
                raise self._other_number(item, path)
            return _array_column(item, path)
        parts = children(item)
        if parts is None:
            columns = "a column is an array, a tensor or a list, with an item for each row"
            raise _Mismatch(TypeError(f"rebatched: {path} is {_article(item)}: {columns}"))
        return _like(item, [self._part(part, path + _step(item, key)) for key, part in parts.items()])

    def _part(self, item: Any, path: str) -> Schema:
        if not _is_list(item):
            return self.group(item, path)
        may_be_rows = len(item) == self.rows and not (self.rows_are_alike and _differ(item))
        try:
            columns = self.group(item, path)
        except _Mismatch:
            pass
        else:
            if any(leaf.sequence is None for leaf in leaves(columns)):
                if may_be_rows:
                    raise _ambiguous(path)
                return columns
        if not may_be_rows:
            raise self._other_number(item, path)
        return Column(sequence=type(item))

    def _other_number(self, item: Any, path: str) -> _Mismatch:
        return _Mismatch(
            ValueError(f"rebatched: {path} has {len(item)} rows, other columns have {self.rows}")
        )


def _is_list(item: Any) -> bool:
    """True if an item is a list or a tuple other than a namedtuple."""
    return isinstance(item, (list, tuple)) and not hasattr(item, "_fields")


def _differ(items: Any) -> bool:
    """True if some items are arrays and not all are arrays of one kind, ``None`` aside."""
    kinds = {
        (type(item), item.dtype, item.ndim) if _is_array(item) else None for item in items if item is not None
    }
    return len(kinds) > 1


def _ambiguous(path: str) -> TypeError:
    return TypeError(
        f"rebatched: the lists in {path} may be columns, or have an item for each row: put columns into a "
        "dict or a namedtuple, rows of one shape into one array, by map()"
    )


def _possible_row_counts(batch: Any) -> set[int]:
    """The length of the first array that is surely a column; else of the first list and its first array."""
    first_list: Any = ()
    pending = collections.deque([batch])
    while pending:
        item = pending.popleft()
        if _is_array(item):
            return {len(item)}
        if _is_list(item) and item is not batch:
            first_list = first_list or item
        else:
            pending.extend((children(item) or {}).values())
    array = _first_array(first_list)
    return {len(first_list)} if array is None else {len(first_list), len(array)}


def _first_array(item: Any) -> Any:
    if _is_array(item):
        return item
    arrays = map(_first_array, (children(item) or {}).values())
    return next((array for array in arrays if array is not None), None)


def _step(item: Any, key: Any) -> str:
    """The way from an item to its child, in an error's path."""
    return f"[{key!r}]" if isinstance(item, (dict, list)) or type(item) is tuple else f".{key}"


def _is_array(item: Any) -> bool:
    """True if an item is an array or a tensor that has rows."""
    return (type(item) is np.ndarray or isinstance(item, tensor_class())) and bool(item.ndim)


def _array_column(array: Any, path: str) -> Column:
    """The schema of an array, or TypeError for a tensor in a GPU's memory and a sparse one."""
    if type(array) is not np.ndarray:
        layout = str(array.layout).removeprefix("torch.")
        if array.device.type != "cpu" or layout != "strided":
            raise TypeError(
                f"rebatched: {path} is a {layout} tensor on {array.device}, expected a dense tensor in the "
                "CPU's memory: move batches to a device after rebatched"
            )
    return Column(array.dtype, tuple(array.shape[1:]))


def _article(item: Any) -> str:
    """Names an item's class in an error: ``an int``."""
    name = type(item).__name__
    return f"a{'n' if name[:1].lower() in 'aeiou' else ''} {name}"


def _names(keys: Any) -> str:
    return ", ".join(map(repr, keys)) or "nothing"
