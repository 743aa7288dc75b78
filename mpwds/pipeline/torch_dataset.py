"""Be a ``torch.utils.data.IterableDataset`` where torch is imported, without importing it."""

from __future__ import annotations

import functools
import sys
from typing import Any


class TorchIterable:
    """Base of datasets that DataLoader takes for an ``IterableDataset``.

    DataLoader tells an iterable dataset from a map-style one by ``isinstance``. To inherit from torch's class
    would import torch in every process that touches a dataset. But ``isinstance`` asks an object's
    ``__class__`` too (this is how mocks and proxies pass it), so that names a subclass of both as soon as
    ``torch.utils.data`` is imported: nobody can ask for ``IterableDataset`` before.

    Example:
        >>> import torch.utils.data
        >>> isinstance(TorchIterable(), torch.utils.data.IterableDataset)
        True
    """

    @property
    def __class__(self) -> Any:
        data = sys.modules.get("torch.utils.data")
        base = getattr(data, "IterableDataset", None)  # absent while torch is being imported
        kind: Any = type(self)  # mypy finds no __hash__ in a type whose instances redefine __class__
        return kind if base is None else _both(kind, base)

    @__class__.setter
    def __class__(self, value: Any) -> None:
        raise TypeError(f"the class of a {type(self).__name__} cannot be changed")

    def __reduce__(self) -> Any:
        # By default pickle refuses an object whose __class__ is not its type.
        return _rebuilt, (type(self), self.__dict__)


@functools.cache
def _both(kind: type, base: type) -> type:
    return type(
        kind.__name__, (kind, base), {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    )


def _rebuilt(kind: type, attributes: dict[str, Any]) -> Any:
    instance: Any = object.__new__(kind)
    instance.__dict__.update(attributes)
    return instance
