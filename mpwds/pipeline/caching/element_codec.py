"""Elements to bytes and back, without pickle."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from mpwds import nest, tenbin


class Pickler(Protocol):
    """Converts an element to bytes and back: ``pickle``, or an object with these two functions."""

    def dumps(self, element: Any, /) -> bytes: ...

    def loads(self, data: bytes, /) -> Any: ...


class ElementCodec:
    """Stores nested dicts, lists, tuples, arrays, tensors, numbers, strings and bytes; nothing of it is
    executed.

    Arrays come back as arrays, tensors as tensors; both can be written to.

    Args:
        stage: Whose elements these are, for errors.

    Example:
        >>> import numpy as np
        >>> codec = ElementCodec("lmdb_cached")
        >>> codec.loads(codec.dumps({"__key__": "a", "x": np.arange(3), "jpg": b"..."}))
        {'__key__': 'a', 'x': array([0, 1, 2]), 'jpg': b'...'}
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def dumps(self, element: Any) -> bytes:
        """The bytes of an element.

        Raises:
            TypeError: It holds something else; the message tells where.
            TenbinError: It holds an array of a kind that tenbin does not know.
        """
        try:
            structure, arrays = nest.flatten(element)
        except TypeError as error:
            where, _, _ = str(error).partition(", ")  # the rest is advice for who sends it
            raise TypeError(
                f"{self._stage}: an element cannot be stored: in it, {where}, which takes a pickle; put the "
                "stage before what makes such objects, make arrays, numbers or text of them, or drop them"
            ) from error
        torch = sys.modules.get("torch")
        tensors = [torch is not None and isinstance(array, torch.Tensor) for array in arrays]
        fields = {
            "structure": structure,
            "arrays": [tenbin.encode_buffer([array]) for array in arrays],
            "tensors": tensors,
        }
        return nest.pack(fields)

    def loads(self, data: bytes) -> Any:
        """The element of some bytes.

        Raises:
            EnvelopeError: The data is not an element's.
        """
        fields = nest.unpack(data)
        arrays = [
            tenbin.decode_buffer(bytearray(encoded), output="torch" if is_tensor else "numpy")[0]
            for encoded, is_tensor in zip(fields["arrays"], fields["tensors"], strict=True)
        ]
        return nest.unflatten(fields["structure"], arrays)
