"""CUDA as loaders use it, by way of torch: pinned memory, fences, copies on a side stream."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import mmap
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mpwds import interrupts
from mpwds.errors import SharedMemoryError
from mpwds.sharedmem import segment
from mpwds.warn import warn

Tensor = Any
"""A ``torch.Tensor``: this module is imported also where torch is not."""

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all devices
_NO_DEVICE = 127  # torch counts devices in a signed byte, and no machine has so many


class PinningRefused(Exception):
    """CUDA refused to pin memory; the message says why."""


class CudaAccess:
    """The way to CUDA: by torch, which is imported when CUDA is asked for."""

    def device_count(self) -> int:
        """Number of devices; this usually initialises nothing, so that the process can still be forked."""
        import torch

        return torch.cuda.device_count()

    def runtime(self) -> Runtime | None:
        """CUDA, initialised; ``None`` if there is no device."""
        import torch

        return Runtime() if torch.cuda.is_available() else None


class Runtime:
    """CUDA, or ROCm. Any thread may call it, and finalizers may call ``fence`` and ``unregister``."""

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        # Other threads start with device 0 as current, which may belong to another process.
        self._device: int = torch.cuda.current_device()

    def register(self, address: int, nbytes: int) -> None:
        """Pins memory of this process, or raises :class:`PinningRefused`."""
        cudart = self._torch.cuda.cudart()
        with self._torch.cuda.device(self._device):
            status = cudart.cudaHostRegister(address, nbytes, _PORTABLE)
            if int(status):
                self._forget_error()
                raise PinningRefused(f"cudaHostRegister: {cudart.cudaGetErrorString(status)}")

    def unregister(self, address: int) -> None:
        """Ends :meth:`register`; no device may still read there."""
        with self._torch.cuda.device(self._device):
            if int(self._torch.cuda.cudart().cudaHostUnregister(address)):
                self._forget_error()  # the memory is about to go either way

    def fence(self) -> Fence | None:
        """A fence in this thread's current streams of all devices in use; ``None`` while one is captured."""
        cuda = self._torch.cuda
        if cuda.is_current_stream_capturing():
            return None
        in_use = self._torch._C._cuda_hasPrimaryContext  # asking a device for its stream would initialise it
        streams = [cuda.current_stream(index) for index in range(cuda.device_count()) if in_use(index)]
        return Fence([stream.record_event(cuda.Event(blocking=True)) for stream in streams])

    def pinned(self, nbytes: int) -> Tensor:
        """Pinned bytes as a tensor, not reused before copies from it are done, or :class:`PinningRefused`."""
        torch = self._torch
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        except RuntimeError as error:
            raise PinningRefused(str(error)) from error

    def copy_stream(self, device: str) -> CopyStream:
        """A stream for copies to ``device``, such as ``"cuda:1"``; ``"cuda"`` is the current device."""
        return CopyStream(device)

    def _forget_error(self) -> None:
        """Clears the error that a direct CUDA call left.

        CUDA keeps the error, and the next kernel launch would report it. When one of torch's own calls fails,
        torch clears the kept error before it raises, so this makes one fail.
        """
        with contextlib.suppress(RuntimeError):
            self._torch.cuda.set_device(_NO_DEVICE)


class Fence:
    """A point in the work of the devices, after everything that had begun when it was made."""

    def __init__(self, events: list[Any]) -> None:
        self._events = events  # made with `blocking`: waiting for them takes no processor time

    def done(self) -> bool:
        return all(event.query() for event in self._events)

    def wait(self) -> None:
        for event in self._events:
            event.synchronize()


class CopyStream:
    """A stream for copies to a device, beside the stream that computes.

    Copies are allocated in the side stream, so that they need not wait for computations. ``record_stream``
    tells the allocator which stream uses them: a later copy could get their memory while it is read.
    """

    def __init__(self, device: str) -> None:
        import torch

        self._torch: Any = torch
        parsed = torch.device(device)
        index = torch.cuda.current_device() if parsed.index is None else parsed.index
        self._device = torch.device("cuda", index)
        self._stream = self._torch.cuda.Stream(self._device)
        self._outer = torch.cuda.current_stream(self._device)

    @contextlib.contextmanager
    def selected(self) -> Iterator[None]:
        """Inside, copies go to this stream, and fences cover them."""
        cuda = self._torch.cuda
        self._outer = cuda.current_stream(self._device)
        with cuda.stream(self._stream):
            yield

    def copied(self, tensor: Tensor) -> Tensor:
        """Inside ``selected()``: begins the copy of a tensor, which must not be used before ``hand_over``."""
        if tensor.device.type == "cpu" and self._is_dense(tensor):
            return tensor.to(self._device, non_blocking=True)
        # A sparse tensor consists of several; one that is on a device may wait for other work there.
        with self._torch.cuda.stream(self._outer):
            return tensor.to(self._device)

    def mark(self) -> Any:
        """A point after all copies that have begun, for :meth:`hand_over`."""
        return self._stream.record_event()

    def hand_over(self, tensors: Iterable[Tensor], mark: Any) -> None:
        """Has the current stream, but not the program, wait for the copies made before ``mark``."""
        user = self._torch.cuda.current_stream(self._device)
        user.wait_event(mark)
        for tensor in tensors:
            if self._is_dense(tensor):
                tensor.record_stream(user)

    def _is_dense(self, tensor: Tensor) -> bool:
        return tensor.layout is self._torch.strided and not tensor.is_nested


PATIENCE_S = 0.2  # the end of a mapping waits so long for devices that read it; if they still do, it is kept
_STEP_S = 0.001


class PinnedMapping(mmap.mmap):
    """A mapping that is registered with CUDA until nothing refers to it any more.

    It must be unregistered before it is unmapped, and not while a device reads it. ``mmap`` unmaps before it
    calls weak references back, so ``__del__`` unregisters. Mappings that the interpreter does not collect are
    unregistered at exit. A fork of this process, which does not use CUDA, does nothing.
    """

    cuda: Runtime | None = None  # that it is registered with
    _has_last_fence = False

    def pin(self, cuda: Runtime, fences: list[Fence | None]) -> None:
        """Registers the mapping, whose pages must have their memory, or raises :class:`PinningRefused`.

        Its end waits for the fences that are then in ``fences``, the caller's list.
        """
        self._fences = fences
        self._owner = os.getpid()
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self))
        # Bound here, because the end may come after modules are gone.
        self._finalizing = sys.is_finalizing
        cuda.register(self._address, len(self))
        self.cuda = cuda
        _pinned.add(self)

    def unpin(self, patience_s: float = 0.0) -> bool:
        """Unregisters it unless devices still read it after ``patience_s``; false if they do."""
        cuda = self.cuda
        if cuda is None or os.getpid() != self._owner:
            return True
        deadline = time.monotonic() + patience_s
        while not self._unread(cuda):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_STEP_S)
        self.cuda = None
        cuda.unregister(self._address)
        return True

    def _unread(self, cuda: Runtime) -> bool:
        # A last fence: the code that dropped the mapping may have begun a copy just before.
        if not self._has_last_fence:
            last = cuda.fence()
            if last is None:
                return False
            self._fences = [*self._fences, last]
            self._has_last_fence = True
        return all(fence is None or fence.done() for fence in self._fences)

    def __del__(self) -> None:
        if self.cuda is None or self._finalizing():
            return
        try:
            if self.unpin(PATIENCE_S):
                return
        except KeyboardInterrupt as interrupt:
            _still_read.append(self)  # before anything that another Ctrl-C may interrupt
            interrupts.defer(interrupt)
            return
        except RuntimeError:
            pass  # the device has failed; the program's next CUDA call raises the error
        _still_read.append(self)


_pinned: weakref.WeakSet[PinnedMapping] = weakref.WeakSet()
_still_read: list[PinnedMapping] = []


def _unpin_late() -> None:
    for mapping in tuple(_still_read):
        if mapping.unpin():
            with contextlib.suppress(ValueError):  # another thread was faster
                _still_read.remove(mapping)


@atexit.register
def _unpin_all() -> None:
    for mapping in (*_pinned, *_still_read):
        with contextlib.suppress(RuntimeError):  # of a device that has failed
            mapping.unpin(PATIENCE_S)


class Pinning:
    """Pinned memory for the batches of one loader; without CUDA, or if CUDA refuses, it warns once.

    ``find_cuda`` is called when memory is first needed. ``without`` is, for the warning, the consequence if
    the workers' shared memory cannot be pinned.
    """

    def __init__(
        self,
        find_cuda: Callable[[], Runtime | None],
        without: str = "batches are delivered unpinned, and copying them to a device makes the program wait",
    ) -> None:
        self._find_cuda = find_cuda
        self._without = without
        self._looked = False
        self._cuda: Runtime | None = None
        self._refused: set[str] = set()

    @property
    def cuda(self) -> Runtime | None:
        if not self._looked:
            self._cuda = self._find_cuda()
            self._looked = True
            if self._cuda is None:
                warn("pin_memory=True has no effect: torch finds no CUDA device")
        return self._cuda

    def map(
        self, descriptor: int, nbytes: int, fences: list[Fence | None]
    ) -> tuple[mmap.mmap, Runtime | None]:
        """A segment's memory, pinned if possible, and the runtime that it is registered with, if any.

        Pinning gives all of it its memory now. The caller puts the fences of released blocks in ``fences``.
        """
        _unpin_late()
        mapping = segment.map_as(PinnedMapping, descriptor, nbytes)
        cuda = self.cuda
        if cuda is not None and "segment" not in self._refused:
            try:
                segment.commit(descriptor, 0, nbytes)
                mapping.pin(cuda, fences)
            except (PinningRefused, SharedMemoryError) as error:
                self._refuse("segment", f"{nbytes / 1e6:,.1f} MB of a worker's shared memory", error)
        return mapping, mapping.cuda

    def memory(self, nbytes: int) -> Any:
        """Pinned memory as a tensor of bytes; ``None`` if it is not available."""
        cuda = self.cuda
        if cuda is None or "memory" in self._refused:
            return None
        try:
            return cuda.pinned(nbytes)
        except PinningRefused as error:
            self._refuse("memory", f"{nbytes / 1e6:,.1f} MB", error)
            return None

    def copy(self, source: memoryview) -> Any:
        """A copy of some bytes in pinned memory, as a tensor; ``None`` if it is not available."""
        memory = self.memory(source.nbytes)
        if memory is not None:
            memory.numpy()[:] = source
        return memory

    def _refuse(self, which: str, what: str, error: Exception) -> None:
        self._refused.add(which)
        warn(
            f"{what} could not be pinned ({error}): {self._without}. See the limit on locked memory "
            "(ulimit -l), or use fewer workers, a lower prefetch or smaller batches"
        )
