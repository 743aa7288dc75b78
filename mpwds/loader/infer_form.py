"""Find the form of a batch: tell lists of rows from lists of columns."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Any

from mpwds.loader.batch_form import (
    ArrayForm,
    Form,
    Group,
    ListForm,
    array_form,
    article,
    children,
    is_array,
    leaves,
)


def form_of(batch: Any) -> Form:
    """The form of a batch.

    A dict, namedtuple or dataclass holds columns, and so does a list or tuple that is the batch itself. A
    list or tuple further inside is a column, with an item for each row, or it holds columns, arrays among
    them: whichever the number of rows allows. Where that allows both, it holds columns if it has arrays that
    cannot be rows of one column.

    Args:
        batch: Columns, all of as many rows: arrays, tensors, lists and tuples.

    Raises:
        TypeError: Something in it is no column, or a list could be either.
        ValueError: The columns differ in their number of rows.

    Example:
        >>> import numpy as np
        >>> form = form_of((np.zeros((2, 3)), {"key": ["a", "b"]}))
        >>> [str(column) for column in leaves(form)]
        ['float64 [3]', 'list of rows']
    """
    try:
        return _found_form(batch)
    except _NoColumn as error:
        raise TypeError(str(error)) from None


def _found_form(batch: Any) -> Form:
    contradiction: _Contradiction | None = None
    for rows_are_alike in (True, False):
        found = []
        for rows in _possible_row_counts(batch):
            try:
                found.append(_Search(rows, rows_are_alike).group(batch, "batch"))
            except _Contradiction as error:
                contradiction = contradiction or error
        if len(found) > 1:
            raise _ambiguous("batch")
        if found:
            return found[0]
    if contradiction is None:
        raise TypeError(f"rebatched: the batch has no columns, it is {article(batch)}")
    raise ValueError(str(contradiction))


class _Contradiction(Exception):
    """The batch has not that number of rows; the message says where."""


class _NoColumn(Exception):
    """Something in a batch is no column."""


@dataclass(frozen=True)
class _Search:
    """The search for the form of a batch that has so many rows.

    Args:
        rows: The number.
        rows_are_alike: Whether arrays in a list are rows of it only if they are all arrays of one kind.
    """

    rows: int
    rows_are_alike: bool

    def group(self, item: Any, path: str) -> Form:
        """The form of what is a column itself or holds columns, but is no list that has rows for items."""
        if is_array(item):
            if len(item) != self.rows:
                raise self._contradiction(item, path)
            return array_form(item, path)
        parts = children(item)
        if parts is None:
            raise _NoColumn(
                f"rebatched: {path} is {article(item)}: a column is an array, a tensor or a list, with an "
                "item for each row"
            )
        keys = tuple(key for key, _, _ in parts)
        forms = tuple(self.part(part, path + step) for _, step, part in parts)
        factory = item.default_factory if type(item) is collections.defaultdict else None
        return Group(type(item), keys, forms, factory)

    def part(self, item: Any, path: str) -> Form:
        """The form of a part of a batch."""
        if not is_list(item):
            return self.group(item, path)
        columns = self._columns(item, path)
        may_be_rows = len(item) == self.rows and not (self.rows_are_alike and _differ(item))
        if columns is not None:
            if may_be_rows:
                raise _ambiguous(path)
            return columns
        if not may_be_rows:
            raise self._contradiction(item, path)
        return ListForm(type(item))

    def _columns(self, item: Any, path: str) -> Form | None:
        """The form of a list, if it can be one of columns."""
        try:
            group = self.group(item, path)
        except (_Contradiction, _NoColumn):
            return None
        return group if any(isinstance(leaf, ArrayForm) for leaf in leaves(group)) else None

    def _contradiction(self, item: Any, path: str) -> _Contradiction:
        return _Contradiction(f"rebatched: {path} has {len(item)} rows, other columns have {self.rows}")


def is_list(item: Any) -> bool:
    """Whether an item is a list or tuple, and no namedtuple.

    Example:
        >>> is_list([1, 2]), is_list("ab")
        (True, False)
    """
    return isinstance(item, (list, tuple)) and not hasattr(item, "_fields")


def _differ(items: Any) -> bool:
    """Whether there are arrays among some items that are not all arrays of one kind, ``None`` aside."""
    kinds = {
        (type(item), item.dtype, item.ndim) if is_array(item) else None for item in items if item is not None
    }
    return len(kinds) > 1


def _ambiguous(path: str) -> TypeError:
    return TypeError(
        f"rebatched: the lists in {path} may be columns, or have an item for each row: put columns into a "
        "dict or a namedtuple, rows of one shape into one array, by map()"
    )


def _possible_row_counts(batch: Any) -> set[int]:
    """The length of an array that is a column for sure; else of the first list, and of an array in that."""
    first_list = None
    pending = collections.deque([batch])
    while pending:
        item = pending.popleft()
        if is_array(item):
            return {len(item)}
        if is_list(item) and item is not batch:
            first_list = item if first_list is None else first_list
        else:
            pending.extend(part for _, _, part in children(item) or ())
    if first_list is None:
        _Search(0, True).group(batch, "batch")  # says what is no column
        return set()
    array = _first_array(first_list)
    return {len(first_list)} if array is None else {len(first_list), len(array)}


def _first_array(item: Any) -> Any:
    if is_array(item):
        return item
    arrays = (_first_array(part) for _, _, part in children(item) or ())
    return next((array for array in arrays if array is not None), None)
