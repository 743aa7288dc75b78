"""What loaders ask of CUDA, and how torch does it: pinned memory, fences, copies on a stream of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

Tensor = Any
"""A ``torch.Tensor``: this module is imported where torch is not."""

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all devices
_NO_DEVICE = 127  # torch counts devices in a signed byte, and no machine has so many


class PinningRefused(Exception):
    """CUDA does not pin some memory; the message says why."""


class Fence(Protocol):
    """A place in the work of the devices: behind all that had been begun when it was made."""

    def done(self) -> bool:
        """Whether the devices have got there."""

    def wait(self) -> None:
        """Blocks until they have."""


class CopyStream(Protocol):
    """A stream of a device's work, beside the one that computes, for copies to the device."""

    def selected(self) -> AbstractContextManager[None]:
        """A block of code whose copies go to this stream, and whose fences stand behind them."""

    def copied(self, tensor: Tensor) -> Tensor:
        """Inside ``selected()``: begins the copy of a tensor. Nothing may be done with it before it is handed
        over."""

    def mark(self) -> Any:
        """A place behind all copies that have been begun, for :meth:`hand_over`."""

    def hand_over(self, tensors: Iterable[Tensor], mark: Any) -> None:
        """Lets the current stream use copies that lie before ``mark``.

        The stream waits for them, the program does not. Their memory waits for the stream in turn, before it
        is used again.
        """


class Runtime(Protocol):
    """CUDA. All of it may be called in any thread, and ``fence`` and ``unregister`` in finalizers."""

    def register(self, address: int, nbytes: int) -> None:
        """Pins memory of this process.

        Raises:
            PinningRefused: CUDA does not pin it.
        """

    def unregister(self, address: int) -> None:
        """Ends :meth:`register`; no device may be about to read there."""

    def fence(self) -> Fence | None:
        """A fence in the current streams of this thread, of all devices in use.

        ``None`` while the work of the current stream is captured into a graph: nothing can be told then.
        """

    def pinned(self, nbytes: int) -> Tensor:
        """Pinned memory as a tensor of bytes, which is not given out again before all copies of it are done.

        Raises:
            PinningRefused: There is none.
        """

    def copy_stream(self, device: str) -> CopyStream:
        """A stream for copies to ``device``, such as ``"cuda:1"``; ``"cuda"`` is the current device."""


class CudaAccess:
    """The way to CUDA: by torch, which is imported when CUDA is asked for."""

    def device_count(self) -> int:
        """Number of devices; as a rule this initialises nothing, so that the process can still be forked.

        Example:
            >>> CudaAccess().device_count() >= 0
            True
        """
        import torch

        return torch.cuda.device_count()

    def runtime(self) -> Runtime | None:
        """CUDA, initialised; ``None`` if there is no device.

        Example:
            >>> import torch
            >>> (CudaAccess().runtime() is None) == (not torch.cuda.is_available())
            True
        """
        import torch

        return TorchCuda() if torch.cuda.is_available() else None


class TorchCuda:
    """CUDA, or ROCm, by way of torch (implements :class:`Runtime`)."""

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        # A thread's current device is 0 until it says otherwise. That device may be another process' own.
        self._device: int = torch.cuda.current_device()

    def register(self, address: int, nbytes: int) -> None:
        cudart = self._torch.cuda.cudart()
        with self._torch.cuda.device(self._device):
            status = cudart.cudaHostRegister(address, nbytes, _PORTABLE)
            if int(status):
                self._forget_error()
                raise PinningRefused(f"cudaHostRegister: {cudart.cudaGetErrorString(status)}")

    def unregister(self, address: int) -> None:
        with self._torch.cuda.device(self._device):
            if int(self._torch.cuda.cudart().cudaHostUnregister(address)):
                self._forget_error()  # the memory is about to go either way

    def fence(self) -> Fence | None:
        cuda = self._torch.cuda
        if cuda.is_current_stream_capturing():
            return None
        in_use = self._torch._C._cuda_hasPrimaryContext  # a device that is asked for its stream is in use
        streams = [cuda.current_stream(index) for index in range(cuda.device_count()) if in_use(index)]
        return _Events([stream.record_event(cuda.Event(blocking=True)) for stream in streams])

    def pinned(self, nbytes: int) -> Tensor:
        torch = self._torch
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        except RuntimeError as error:
            raise PinningRefused(str(error)) from error

    def copy_stream(self, device: str) -> CopyStream:
        return TorchCopyStream(device)

    def _forget_error(self) -> None:
        """Takes back the error that a call of CUDA's own left behind.

        CUDA keeps it, and whoever launches the next kernel would find it there and be blamed for it. When a
        call of torch's own fails, torch takes back what is kept before it raises: so one is made to fail.
        """
        with contextlib.suppress(RuntimeError):
            self._torch.cuda.set_device(_NO_DEVICE)


class TorchCopyStream:
    """A side stream of a CUDA device (implements :class:`CopyStream`).

    The copies are allocated in the side stream: they then need not wait for what the device computes. In
    return their memory must be told of the stream that uses it (``record_stream``), or it would be given
    to a later copy while a computation that was begun still reads it.

    Args:
        device: ``"cuda"`` or ``"cuda:1"``.
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
        cuda = self._torch.cuda
        self._outer = cuda.current_stream(self._device)
        with cuda.stream(self._stream):
            yield

    def copied(self, tensor: Tensor) -> Tensor:
        if tensor.device.type == "cpu" and self._is_dense(tensor):
            return tensor.to(self._device, non_blocking=True)
        # A sparse one is several, not seen here; one that is on a device may wait for other work there.
        with self._torch.cuda.stream(self._outer):
            return tensor.to(self._device)

    def mark(self) -> Any:
        return self._stream.record_event()

    def hand_over(self, tensors: Iterable[Tensor], mark: Any) -> None:
        user = self._torch.cuda.current_stream(self._device)
        user.wait_event(mark)
        for tensor in tensors:
            if self._is_dense(tensor):
                tensor.record_stream(user)

    def _is_dense(self, tensor: Tensor) -> bool:
        return tensor.layout is self._torch.strided and not tensor.is_nested


class _Events:
    """A fence of events, which are to be waited for without taking the processor's time (``blocking``)."""

    def __init__(self, events: list[Any]) -> None:
        self._events = events

    def done(self) -> bool:
        return all(event.query() for event in self._events)

    def wait(self) -> None:
        for event in self._events:
            event.synchronize()
