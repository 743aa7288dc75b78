"""Checks, converts and counts batches at the ends of a connection."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mpwds.errors import TenbinError
from mpwds.imports import tensor_class
from mpwds.tenbin.array import describe
from mpwds.viewing.wording import per


def tonumpy(dtype: Any = None, transpose: bool = True) -> Callable[[Any], Any]:
    """A function that turns a tensor into an array, and leaves anything else as it is.

    Args:
        dtype: The array's dtype; the tensor's by default.
        transpose: Move the channels of images (3 or 4 of them) from torch's place to the last.

    Example:
        >>> import torch
        >>> tonumpy("float32")(torch.zeros(8, 3, 32, 32)).shape
        (8, 32, 32, 3)
    """

    def convert(a: Any) -> Any:
        if not isinstance(a, tensor_class()):
            return a
        a = a.detach().cpu().numpy()
        if transpose and a.ndim in (3, 4) and a.shape[-3] in (3, 4):
            a = a.swapaxes(-3, -2).swapaxes(-2, -1)
        return a if dtype is None else a.astype(dtype)

    return convert


def totorch(dtype: Any = None, device: Any = "cpu", transpose: bool = True) -> Callable[[Any], Any]:
    """A function that turns an array into a tensor, and leaves anything else as it is.

    Args:
        dtype: The tensor's dtype, or its name. By default floating-point numbers become float32, integers of
            16 bits and more int64, and others keep theirs.
        device: Where to put the tensor.
        transpose: Move the channels of images (3 or 4 of them) from the last place to torch's.

    Example:
        >>> totorch()(np.zeros((8, 32, 32, 3), "float16")).shape
        torch.Size([8, 3, 32, 32])
    """

    def convert(a: Any) -> Any:
        if not isinstance(a, np.ndarray):
            return a
        import torch

        kind = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        if a.dtype.kind == "f" and kind is None:
            kind = torch.float32
        elif a.dtype.kind in "iu" and a.itemsize > 1:
            a = a.astype(np.int64, copy=False)  # some versions of torch have no larger unsigned types
        if transpose and a.ndim in (3, 4) and a.shape[-1] in (3, 4):
            a = a.swapaxes(-1, -2).swapaxes(-2, -3)
        return tensor_of(a).to(device=device, dtype=kind)

    return convert


def tensor_of(a: Any) -> Any:
    """A tensor of an array, which shares its memory if that is writable."""
    import torch

    return torch.as_tensor(a.copy() if isinstance(a, np.ndarray) and not a.flags.writeable else a)


converter_table = {"torch": totorch(), "torch_cuda": totorch(device="cuda"), "numpy": tonumpy()}


def transform_with(sample: Sequence[Any], transformers: Sequence[Any] | None) -> Sequence[Any]:
    """The elements of ``sample``, each through a function; functions are used in turn if there are fewer.

    ``None`` among the functions leaves an element as it is; no functions leave all.

    Raises:
        ValueError: There are more functions than elements.

    Example:
        >>> transform_with(["a", "b", "c"], [str.upper, None])
        ['A', 'b', 'C']
    """
    if not transformers:
        return sample
    if len(transformers) > len(sample):
        raise ValueError(f"{len(transformers)} functions for a batch of {len(sample)} arrays")
    functions = itertools.cycle(transformers)
    return [x if f is None else f(x) for x, f in zip(sample, functions, strict=False)]


def listify(x: Any) -> Sequence[Any] | None:
    """``None`` and lists as they are, anything else in a list."""
    return x if x is None or isinstance(x, (list, tuple)) else [x]


def arrays_of(batch: Any) -> Mapping[Any, Any]:
    """The arrays of a batch by place: of a list, a tuple, or a dict.

    Raises:
        TenbinError: The batch, or one of its elements, is something else; the message names it and its type.

    Example:
        >>> arrays_of({"label": "cat"})
        Traceback (most recent call last):
        mpwds.errors.TenbinError: element 'label' of a batch: expected an array or a tensor, got str. ...
    """
    if not isinstance(batch, (Mapping, list, tuple)):
        kind = type(batch).__qualname__
        raise TenbinError(f"a batch must be a list, a tuple or a dict of arrays, got {kind}")
    arrays = batch if isinstance(batch, Mapping) else dict(enumerate(batch))
    for place, array in arrays.items():
        try:
            describe(array)
        except TenbinError as error:
            raise TenbinError(
                f"element {place!r} of a batch: {error}. tensorcom carries flat batches of arrays only"
            ) from None
    return arrays


class Statistics:
    """Counts batches and their bytes, with rates since the start and over the last ``horizon`` batches.

    Example:
        >>> stats = Statistics()
        >>> stats.add(1000)
        >>> stats.count, stats.total
        (1, 1000.0)
    """

    def __init__(self, horizon: int = 1000) -> None:
        self.horizon = horizon
        self.reset()

    def reset(self) -> None:
        """Forgets everything, and starts now."""
        self.start = self.last = time.monotonic()  # s
        self.count = 0
        self.total = 0.0
        self.recent: deque[tuple[float, float]] = deque(maxlen=self.horizon)

    def add(self, x: float) -> None:
        """Counts a batch of ``x`` bytes, now."""
        self.last = time.monotonic()
        self.count += 1
        self.total += x
        self.recent.append((self.last, x))

    def rate(self) -> float:
        """Batches per second since the start."""
        return per(self.count, self.last - self.start)

    def throughput(self) -> float:
        """Bytes per second since the start."""
        return per(self.total, self.last - self.start)

    def recent_rate(self) -> float:
        """Batches per second, recently."""
        return per(len(self.recent) - 1, self._span())

    def recent_throughput(self) -> float:
        """Bytes per second, recently."""
        return per(sum(x for _, x in list(self.recent)[1:]), self._span())

    def summary(self) -> str:
        """The recent rates in words."""
        return f"rate {self.recent_rate():.1f} msg/s throughput {self.recent_throughput():.2e} bytes/s"

    def _span(self) -> float:
        return self.recent[-1][0] - self.recent[0][0] if self.recent else 0.0


class Reports:
    """Prints the number of samples and the rates, about every ``every`` samples; never if that is below 1."""

    def __init__(self, stats: Statistics, every: int) -> None:
        self._stats = stats
        self._every = every
        self._count = 0
        self._due = 0

    def add(self, samples: int) -> None:
        if self._every > 0 and self._count >= self._due:
            print("count", self._count, self._stats.summary())
            self._due += self._every
        self._count += samples
