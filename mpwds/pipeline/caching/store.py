"""Base of the stores of a stream's elements, and elements as bytes."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Any

from mpwds import nest, tenbin
from mpwds.pipeline.stream import Address


class Store(ABC):
    """The first elements of a stream, in order, and some states of its source."""

    survives = True
    """The store outlives the process."""

    @abstractmethod
    def count(self) -> int:
        """How many elements it has."""

    @abstractmethod
    def is_complete(self) -> bool:
        """True if these are all."""

    @abstractmethod
    def get(self, position: int) -> tuple[Address, Any]:
        """The address of the element at a position, and the element, which the caller may change."""

    @abstractmethod
    def find(self, address: Address) -> int | None:
        """The position of the element with that address, if it is there."""

    @abstractmethod
    def append(self, position: int, address: Address, element: Any) -> None:
        """Stores the element at ``position`` unless it is there."""

    @abstractmethod
    def set_checkpoint(self, position: int, state: dict[str, Any]) -> None:
        """Stores the source's state before the element at ``position``."""

    @abstractmethod
    def checkpoint(self, position: int) -> tuple[int, dict[str, Any] | None]:
        """Position and state of the last checkpoint at or before a position; else ``(0, None)``."""

    @abstractmethod
    def finish(self, count: int) -> None:
        """Marks the store complete if it has ``count`` elements."""

    @abstractmethod
    def clear(self) -> None:
        """Removes everything."""


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
