"""CUDA as loaders use it, by way of torch: pinned memory, fences, copies on a side stream."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

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
        """A fence in this thread's current streams of all devices in use.

        ``None`` while the current stream is captured into a graph, which allows no fence.
        """
        cuda = self._torch.cuda
        if cuda.is_current_stream_capturing():
            return None
        in_use = self._torch._C._cuda_hasPrimaryContext  # asking a device for its stream would initialise it
        streams = [cuda.current_stream(index) for index in range(cuda.device_count()) if in_use(index)]
        return Fence([stream.record_event(cuda.Event(blocking=True)) for stream in streams])

    def pinned(self, nbytes: int) -> Tensor:
        """Pinned memory as a tensor of bytes, or raises :class:`PinningRefused`.

        It is not reused before all copies from it are done.
        """
        torch = self._torch
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        except RuntimeError as error:
            raise PinningRefused(str(error)) from error

    def copy_stream(self, device: str) -> CopyStream:
        """A stream for copies to ``device``, such as ``"cuda:1"``; ``"cuda"`` is the current device."""
        return CopyStream(device)

    def _forget_error(self) -> None:
        """Clears the error that a direct CUDA call left behind.

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
        """True if the devices have passed it."""
        return all(event.query() for event in self._events)

    def wait(self) -> None:
        """Blocks until they have."""
        for event in self._events:
            event.synchronize()


class CopyStream:
    """A stream for copies to a device, beside the stream that computes.

    The copies are allocated in the side stream, so that they need not wait for what the device computes. So
    ``record_stream`` must tell the allocator which stream uses them: otherwise a later copy could get their
    memory while a computation still reads it.
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
        """Lets the current stream use copies made before ``mark``.

        The stream waits for them, the program does not. Their memory is not reused before the stream has
        finished with them.
        """
        user = self._torch.cuda.current_stream(self._device)
        user.wait_event(mark)
        for tensor in tensors:
            if self._is_dense(tensor):
                tensor.record_stream(user)

    def _is_dense(self, tensor: Tensor) -> bool:
        return tensor.layout is self._torch.strided and not tensor.is_nested
