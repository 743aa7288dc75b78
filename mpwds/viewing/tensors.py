"""The tensors of a batch: where they are, and statistics of their values over batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mpwds.imports import tensor_class

BINS = 24
"""Bins of a histogram."""

_AT_ONCE = 1 << 18  # values, which then stay in the processor's cache

Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Leaf:
    """The content of one place of a batch: an array, several of one kind, texts, or another object."""

    path: str  # [0], ["image"]["left"]
    arrays: tuple[Values, ...]  # several of a list whose arrays differ in size; none of texts and others
    texts: tuple[str, ...]  # empty for arrays
    dtype: str  # name of the element type, as float32; of others the Python type
    shape: tuple[int | str, ...]  # "*" stands for a size that differs between the arrays


def leaves(batch: Any) -> list[Leaf]:
    """The leaves of a batch of arrays, tensors, numbers and texts in dicts, lists and tuples, in order.

    Lists of numbers and lists of arrays of one kind, below the top, count as one leaf.

    Example:
        >>> for leaf in leaves((np.zeros((2, 3), "uint8"), {"txt": ["a", "b"]})):
        ...     print(leaf.path, leaf.dtype, leaf.shape)
        [0] uint8 (2, 3)
        [1]["txt"] str (2,)
    """
    return list(_walk(batch, ""))


def _walk(node: Any, path: str) -> Iterator[Leaf]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            quoted = f'"{key}"' if isinstance(key, str) else repr(key)
            yield from _walk(value, f"{path}[{quoted}]")
    elif isinstance(node, (list, tuple)):
        if path and (one := _as_one(node, path)):
            yield one
        else:
            for position, value in enumerate(node):
                yield from _walk(value, f"{path}[{position}]")
    else:
        yield _leaf(node, path)


def _as_one(nodes: Any, path: str) -> Leaf | None:
    """A list of elements of one kind; ``None`` if their kinds differ."""
    if not nodes:
        return None
    if all(isinstance(node, (str, bytes)) for node in nodes):
        return Leaf(path, (), tuple(map(_text, nodes)), type(nodes[0]).__name__, (len(nodes),))
    if all(isinstance(node, (bool, int, float)) for node in nodes):
        return _leaf(np.asarray(nodes), path)
    arrays = [_array(node) for node in nodes]
    kinds = {None if array is None else (array[1], array[0].ndim) for array in arrays}
    found = [array[0] for array in arrays if array is not None]
    if len(kinds) > 1 or not found:
        return None
    shape: tuple[int | str, ...] = found[0].shape
    for array in found:
        shape = _common(shape, array.shape)
    name = next(array[1] for array in arrays if array is not None)
    return Leaf(path, tuple(found), (), name, (len(found), *shape))


def _leaf(node: Any, path: str) -> Leaf:
    if (array := _array(node)) is not None:
        values, name = array
        return Leaf(path, (values,), (), name, values.shape)
    if isinstance(node, np.ndarray):  # of texts or objects
        texts = tuple(str(value) for value in node.flat)
        return Leaf(path, (), texts, "str" if node.dtype.kind in "US" else str(node.dtype), node.shape)
    if isinstance(node, tensor_class()):
        return Leaf(path, (), (f"{node.layout} tensor",), str(node.dtype).removeprefix("torch."), ())
    texts = (_text(node),) if isinstance(node, (str, bytes)) else (repr(node),)
    return Leaf(path, (), texts, type(node).__name__, ())


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _array(node: Any) -> tuple[Values, str] | None:
    """A numeric array that NumPy can compute with, and the name of its type; ``None`` for other objects."""
    if isinstance(node, tensor_class()):
        name = str(node.dtype).removeprefix("torch.")
        try:
            tensor = node.detach().cpu().resolve_conj().resolve_neg()
            if tensor.dtype.is_floating_point and name not in ("float16", "float32", "float64"):
                tensor = tensor.float()
            return tensor.numpy(), name
        except (TypeError, RuntimeError):  # sparse, nested, quantized
            return None
    if isinstance(node, (bool, int, float, np.generic)):
        node = np.asarray(node)
    if not isinstance(node, np.ndarray) or node.dtype.kind in "OUSMm":
        return None
    name = node.dtype.name
    if node.dtype.kind == "V":  # bfloat16 and its like, which packages add to NumPy
        if name.startswith("void"):
            return None
        node = node.astype(np.float32)
    return node, name


@dataclass(frozen=True)
class TensorFigures:
    """Statistics of one place's values over the batches seen. Complex values count by magnitude."""

    path: str  # where the tensor is in a batch
    dtype: str
    shape: tuple[int | str, ...]  # "*" for sizes that differ
    batches: int  # that had it
    elements: int
    low: float | None  # the least value; None if there is none that is finite
    high: float | None
    mean: float | None  # of the finite values
    std: float | None
    nans: int
    infinities: int
    bins: tuple[int, ...]  # how many values each bin of the histogram has
    first_edge: float  # where the first bin begins
    bin_width: float
    texts: tuple[str, ...] = ()  # the first ones, where there is no number

    @property
    def filled_bins(self) -> tuple[int, ...]:
        """The histogram without the empty bins at its ends."""
        filled = [position for position, count in enumerate(self.bins) if count]
        return self.bins[filled[0] : filled[-1] + 1] if filled else ()

    def as_dict(self) -> dict[str, Any]:
        """The same as numbers, strings and lists, for JSON; what is not finite is ``None``."""
        plain = dataclasses.asdict(self)
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in plain.items()
        }


class TensorStatistics:
    """Adds up batches; memory does not grow with their number.

    Example:
        >>> statistics = TensorStatistics()
        >>> statistics.add({"x": np.array([1.0, 2.0, np.nan])})
        >>> (x,) = statistics.read()
        >>> x.path, x.low, x.high, x.mean, x.nans
        ('["x"]', 1.0, 2.0, 1.5, 1)
    """

    def __init__(self) -> None:
        self._tensors: dict[str, _Tensor] = {}

    def add(self, batch: Any) -> None:
        """Adds a batch."""
        for leaf in leaves(batch):
            self._tensors.setdefault(leaf.path, _Tensor(leaf)).add(leaf)

    def read(self) -> list[TensorFigures]:
        """The statistics so far, one entry for each place of a batch."""
        return [tensor.read() for tensor in self._tensors.values()]


@dataclass
class _Tensor:
    last: Leaf
    shape: tuple[int | str, ...] = ()
    dtypes: dict[str, None] = field(default_factory=dict)
    batches: int = 0
    elements: int = 0
    finite: int = 0
    nans: int = 0
    infinities: int = 0
    low: float = math.inf
    high: float = -math.inf
    mean: float = 0.0
    squares: float = 0.0  # of distances from the mean
    histogram: _Histogram | None = None

    def add(self, leaf: Leaf) -> None:
        self.shape = _common(self.shape, leaf.shape) if self.batches else leaf.shape
        self.batches += 1
        self.dtypes[leaf.dtype] = None
        self.last = leaf
        with np.errstate(over="ignore", invalid="ignore"):
            for array in leaf.arrays:
                flat = array.reshape(-1)
                for start in range(0, flat.size, _AT_ONCE):
                    self._add(flat[start : start + _AT_ONCE])

    def _add(self, values: Values) -> None:
        self.elements += values.size
        if values.dtype.kind in "bc":
            values = np.abs(values) if values.dtype.kind == "c" else values.view(np.uint8)
        if values.dtype.kind == "f":
            finite = np.isfinite(values)
            if not finite.all():
                nans = int(np.isnan(values).sum())
                self.nans += nans
                self.infinities += int(values.size - finite.sum()) - nans
                values = values[finite]
        if not values.size:
            return
        low, high = values.min().item(), values.max().item()
        self.low, self.high = min(self.low, low), max(self.high, high)
        # Chan's way of joining means and variances: squares of large values do not cancel.
        mean = float(values.mean(dtype=np.float64))
        squares = float(values.var(dtype=np.float64)) * values.size
        total = self.finite + values.size
        distance = mean - self.mean
        self.squares += squares + distance * distance * self.finite * (values.size / total)
        self.mean += distance * (values.size / total)
        self.finite = total
        if self.histogram is None:
            self.histogram = _Histogram(values.dtype, low, high)
        self.histogram.add(values, low, high)

    def read(self) -> TensorFigures:
        histogram = self.histogram
        some = self.finite > 0
        return TensorFigures(
            path=self.last.path,
            dtype=" or ".join(self.dtypes),
            shape=self.shape,
            batches=self.batches,
            elements=self.elements,
            low=self.low if some else None,
            high=self.high if some else None,
            mean=self.mean if some else None,
            std=math.sqrt(self.squares / self.finite) if some else None,
            nans=self.nans,
            infinities=self.infinities,
            bins=() if histogram is None else tuple(histogram.counts.tolist()),
            first_edge=0.0 if histogram is None else histogram.low,
            bin_width=0.0 if histogram is None else histogram.width,
            texts=self.last.texts,
        )


def _common(one: tuple[int | str, ...], other: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """A shape that both match."""
    if len(one) != len(other):
        return ("...",)
    return tuple(a if a == b else "*" for a, b in zip(one, other, strict=True))


class _Histogram:
    """Equal bins that become twice as wide when a value lies outside them."""

    def __init__(self, dtype: np.dtype[Any], low: float, high: float) -> None:
        self.counts = np.zeros(BINS, np.int64)
        if dtype == np.uint8 and high - low >= BINS:
            self.low, self.width = 0.0, 256 / BINS
        elif dtype.kind in "iub":  # so that each bin holds equally many whole numbers
            self.low, self.width = float(low), float(max(1, -(-(int(high) - int(low) + 1) // BINS)))
        else:
            width = high / BINS - low / BINS  # the difference itself may overflow
            is_wide = width > abs(low) * 1e-9
            self.low, self.width = float(low), width if is_wide else max(abs(low), 1.0) / BINS

    def add(self, values: Values, low: float, high: float) -> None:
        while high >= self.low + BINS * self.width * 1.0000001:
            self._widen(downward=False)
        while low < self.low:
            self._widen(downward=True)
        bins = np.nan_to_num((values.astype(np.float64) - self.low) / self.width)
        places = np.clip(bins, 0, BINS - 1).astype(np.intp)
        self.counts += np.bincount(places, minlength=BINS)

    def _widen(self, *, downward: bool) -> None:
        pairs = self.counts.reshape(-1, 2).sum(1)
        nothing = np.zeros_like(pairs)
        if downward:
            self.low -= BINS * self.width
        self.counts = np.concatenate([nothing, pairs] if downward else [pairs, nothing])
        self.width *= 2
