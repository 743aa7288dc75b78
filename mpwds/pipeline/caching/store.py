"""Base of the stores of a stream's elements, and elements as bytes."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

from mpwds import nest, tenbin
from mpwds.pipeline.stream import Address

Rows: TypeAlias = "list[tuple[int, Address, Any]]"
"""Positions, addresses and elements as ``dumps`` returned them."""

Checkpoints: TypeAlias = "list[tuple[int, bytes]]"
"""Positions, and the source's states before the elements there."""


class Store(ABC):
    """The first elements of a stream, in order, and some states of its source.

    Args:
        name: Names the store in errors.
        dumps: Makes what is stored of an element.
        loads: Makes the element again; the caller may change it.
        rows: Elements written at a time.
    """

    survives = True

    def __init__(
        self, name: str, dumps: Callable[[Any], Any], loads: Callable[[Any], Any], rows: int = 1
    ) -> None:
        self._name = name
        self._dumps = dumps
        self._loads = loads
        self._rows_at_a_time = rows
        self._rows: Rows = []  # to be written
        self._checkpoints: Checkpoints = []  # to be written
        self._committed, self._complete = 0, False

    @abstractmethod
    def find(self, address: Address) -> int | None:
        """The position of the element with that address, if it has been written."""

    @abstractmethod
    def _read_count(self) -> tuple[int, bool]:
        """How many elements have been written, and whether these are all."""

    @abstractmethod
    def _read(self, position: int) -> tuple[Address, Any] | None:
        """The address of an element, and what is stored of it."""

    @abstractmethod
    def _read_checkpoint(self, position: int) -> tuple[int, bytes | None]: ...

    @abstractmethod
    def _write(self, rows: Rows, checkpoints: Checkpoints) -> None:
        """Stores these; another process may have stored the same ones."""

    @abstractmethod
    def _write_complete(self, count: int) -> None: ...

    @abstractmethod
    def _delete(self) -> None:
        """Removes what has been written."""

    def count(self) -> int:
        """How many elements it has."""
        if not self._rows:
            self._committed, self._complete = self._read_count()
        return self._committed + len(self._rows)

    def is_complete(self) -> bool:
        """Whether these are all."""
        if not self._complete:
            _, self._complete = self._read_count()
        return self._complete

    def get(self, position: int) -> tuple[Address, Any]:
        """The address of the element at a position, and the element."""
        if self._rows and position >= self._committed:
            self._flush()
        found = self._read(position)
        if found is None:
            raise LookupError(f"{self._name} has no element {position} any more: something has removed it")
        address, stored = found
        return address, self._loads(stored)

    def append(self, position: int, address: Address, element: Any) -> None:
        """Stores the element at ``position`` unless it is there."""
        if position == self._committed + len(self._rows):
            self._rows.append((position, address, self._dumps(element)))
            if len(self._rows) >= self._rows_at_a_time:
                self._flush()

    def set_checkpoint(self, position: int, state: bytes) -> None:
        """Stores the source's state before the element at ``position``."""
        self._checkpoints.append((position, state))

    def checkpoint(self, position: int) -> tuple[int, bytes | None]:
        """Position and state of the last checkpoint at or before a position; else ``(0, None)``."""
        self._flush()
        return self._read_checkpoint(position)

    def finish(self, count: int) -> None:
        """Marks the store complete if it has ``count`` elements."""
        self._flush()
        if self.count() == count:
            self._write_complete(count)
            self._complete = True

    def clear(self) -> None:
        """Removes everything."""
        self._rows, self._checkpoints = [], []
        self._delete()
        self._committed, self._complete = 0, False

    def _flush(self) -> None:
        if self._rows or self._checkpoints:
            rows, self._rows = self._rows, []
            checkpoints, self._checkpoints = self._checkpoints, []
            self._write(rows, checkpoints)
            self._committed += len(rows)


def element_to_bytes(stage: str, element: Any) -> bytes:
    """Nested dicts, lists, tuples, arrays, tensors, numbers, strings and bytes, without pickle.

    Raises:
        TypeError: The element holds something else; the message tells where.
        TenbinError: It holds an array of a kind that tenbin does not know.
    """
    try:
        structure, arrays = nest.flatten(element)
    except TypeError as error:
        where, _, _ = str(error).partition(", ")  # the rest is advice for senders
        raise TypeError(
            f"{stage}: an element cannot be stored: in it, {where}, which would need a "
            "pickle; move the stage before the one that makes such objects, convert them to arrays, "
            "numbers or text, or drop them"
        ) from error
    torch = sys.modules.get("torch")
    tensors = [torch is not None and isinstance(array, torch.Tensor) for array in arrays]
    encoded = [tenbin.encode_buffer([array]) for array in arrays]
    return nest.pack({"structure": structure, "arrays": encoded, "tensors": tensors})


def element_from_bytes(data: bytes) -> Any:
    """The element again, its arrays and tensors writable. Raises ``EnvelopeError`` for other bytes."""
    fields = nest.unpack(data)
    arrays = [
        tenbin.decode_buffer(bytearray(encoded), output="torch" if is_tensor else "numpy")[0]
        for encoded, is_tensor in zip(fields["arrays"], fields["tensors"], strict=True)
    ]
    return nest.unflatten(fields["structure"], arrays)
