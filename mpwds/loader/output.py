"""The last step of a loader: batches become what its ``output``, ``device`` and ``pin_memory`` say."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mpwds.imports import tensor_class
from mpwds.loader.engine.epoch import NOT_YET, TAKE_TURNS, EpochBatches
from mpwds.loader.engine.options import FinalOutput
from mpwds.sharedmem.cuda import CopyStream, CudaAccess, Pinning
from mpwds.trees import tree_map


class OutputConverter:
    """Converts batches to what a loader's ``output``, ``device`` and ``pin_memory`` say.

    They come with NumPy arrays, or CPU tensors in memory that ``pinning`` has pinned. Up to ``ahead`` of them
    are copied to the device before they are asked for.
    """

    def __init__(
        self, output: FinalOutput, device: Any, pin_memory: bool, ahead: int, access: CudaAccess | None
    ) -> None:
        access = access or CudaAccess()
        self.to_device = _cuda_device(device)
        if self.to_device is not None:
            if output != "torch":
                raise ValueError(
                    f"device={self.to_device!r} is for tensors, and output is {output!r}: use "
                    "output='torch', or copy the batches yourself (jax.device_put)"
                )
            count = access.device_count()
            if int(self.to_device.partition(":")[2] or 0) >= count:
                has = f"{count} CUDA devices" if count else "no CUDA device"
                raise RuntimeError(f"device={self.to_device!r} does not exist: torch finds {has}")
        if pin_memory and output != "torch":
            raise ValueError(f"pin_memory is for tensors, and output is {output!r}")
        if output == "jax" and importlib.util.find_spec("jax") is None:
            raise ImportError("output='jax' needs the package jax: pip install 'mpwds[jax]'")
        pins = pin_memory or self.to_device is not None
        self.pinning = Pinning(access.runtime) if pins else None
        self._access = access
        self._output = output
        self._ahead = ahead

    def converted(self, source: EpochBatches, staged: bool) -> Iterator[Any]:
        """The batches of ``source`` in their final form.

        ``staged``: they come from stages, which may have put their tensors into memory of their own.
        """
        if self._output == "jax":
            return map(with_jax_arrays, source)
        if self.to_device is None:
            return map(self._pinned, source) if staged and self.pinning is not None else source
        runtime = self._access.runtime()
        if runtime is None:
            raise RuntimeError(f"device={self.to_device!r}: torch finds no CUDA device")
        return DeviceIterator(source, runtime.copy_stream(self.to_device), self._ahead)

    def _pinned(self, batch: Any) -> Any:
        return batch if self.pinning is None or self.pinning.cuda is None else pinned(batch)


class DeviceIterator(Iterator[Any]):
    """The elements of an iterator, with their tensors copied to a device.

    Copies run on a side stream, while the device computes. A batch can be used at once on the stream that is
    current when it is delivered. Up to ``ahead`` batches that have arrived are copied before they are asked
    for, and dropped if the source is ``closed``. Errors and the end come after the batches before them.
    """

    def __init__(self, source: EpochBatches, stream: CopyStream, ahead: int) -> None:
        self._source = source
        self._stream = stream
        self._ahead = ahead
        self._lock = threading.Lock()
        self._sent: deque[_Sent] = deque()
        self._original: list[Any] = []
        self._ending: Exception | None = None
        self._finalizing = sys.is_finalizing

    @property
    def ahead(self) -> int:
        """Batches that the source has delivered and this iterator has not."""
        return len(self._sent)

    def __next__(self) -> Any:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(TAKE_TURNS)
        try:
            if self._source.closed:
                self._sent.clear()
            else:
                self._send_what_is_here()
            if not self._sent:
                if self._ending is not None:
                    ending, self._ending = self._ending, None
                    raise ending
                self._send(next(self._source))
            sent = self._sent.popleft()
            self._stream.hand_over(sent.tensors, sent.mark)
            return sent.batch
        finally:
            self._lock.release()

    def _send_what_is_here(self) -> None:
        while self._ending is None and len(self._sent) <= self._ahead:
            try:
                batch = self._source.next_now()
            except Exception as ending:
                self._ending = ending.with_traceback(None)  # whose frames refer to this iterator
                return
            if batch is NOT_YET:
                return
            self._send(batch)

    def _send(self, batch: Any) -> None:
        tensors: list[Any] = []

        def copied(tensor: Any) -> Any:
            tensors.append(self._stream.copied(tensor))
            return tensors[-1]

        # This drops the batch before, which the source may have held until now: the fences of its blocks
        # then come after its copies.
        with self._stream.selected():
            self._original[:] = [batch]
            self._sent.append(_Sent(tree_map(batch, tensor_class(), copied), tensors, self._stream.mark()))

    def __del__(self) -> None:
        if self._original and not self._finalizing():
            with self._stream.selected():
                self.__dict__.clear()  # the batch, and the source that may hold it too


class _Sent(NamedTuple):
    batch: Any
    tensors: list[Any]
    mark: Any


def _cuda_device(device: Any) -> str | None:
    if device is None or (name := str(device)) in ("cpu", "cpu:0"):
        return None
    if not re.fullmatch(r"cuda(:\d+)?", name):
        raise ValueError(
            f"device must be 'cpu', 'cuda', 'cuda:1', ... or such a torch.device, got {device!r}; for other "
            "devices put .map(...) after the loader, with a function that copies"
        )
    return name


def with_jax_arrays(batch: Any) -> Any:
    """A batch, any nesting of containers, with jax arrays on the CPU in place of its NumPy arrays.

    jax takes over an array's memory (by DLPack) and holds it as long as an array or a computation needs it.
    It copies arrays that are not contiguous or not aligned to 64 bytes, bfloat16 and, unless
    ``jax_enable_x64`` is set, arrays of 64 bits, which become 32 as everywhere in jax. Arrays of objects,
    text or times, which jax does not have, and NumPy scalars stay as they are.
    """
    return tree_map(batch, np.ndarray, _converter())


@functools.cache
def _converter() -> Callable[[Any], Any]:
    import jax
    import jax.dlpack
    import jax.dtypes

    cpu = jax.devices("cpu")[0]

    def convert(array: Any) -> Any:
        dtype = array.dtype
        if dtype.kind not in "biufc" and dtype.name != "bfloat16":
            return array
        if not dtype.isnative:
            array = array.astype(dtype.newbyteorder("="))
        can_be_shared = (
            dtype.kind in "biufc"
            and jax.dtypes.canonicalize_dtype(dtype) == dtype
            and array.flags.c_contiguous
            and array.flags.writeable
            and array.nbytes > 0
            and array.ctypes.data % 64 == 0
        )
        return jax.dlpack.from_dlpack(array) if can_be_shared else jax.device_put(array, cpu)

    return convert


def pinned(element: Any) -> Any:
    """``element`` with its CPU tensors copied into pinned memory; those that are pinned already stay."""
    return tree_map(
        element, tensor_class(), lambda each: each.pin_memory() if each.device.type == "cpu" else each
    )
