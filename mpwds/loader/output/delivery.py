"""The last step of a loader: what its batches become when they are handed out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mpwds.loader.engine.receiving import Output
from mpwds.loader.options import FinalOutput
from mpwds.loader.output import jax_arrays
from mpwds.loader.output.device_iterator import DeviceIterator
from mpwds.loader.output.pinned_elements import pinned
from mpwds.sharedmem.cuda import CudaAccess
from mpwds.sharedmem.pinning import Pinning


class Delivery:
    """Hands batches out as a loader's ``output``, ``device`` and ``pin_memory`` say.

    Args:
        output: What arrays become. jax arrays are NumPy arrays up to here, behind all stages.
        device: Where tensors go, behind all stages; ``None`` or ``"cpu"`` leaves them where they are.
        pin_memory: Whether tensors that stay on the CPU are pinned.
        ahead: Batches to copy to the device before they are asked for.
        access: The way to CUDA.

    Attributes:
        received: What arrays are before this step.
        to_device: The CUDA device that tensors go to, or ``None``.
        pinning: What pins the memory that batches lie in before this step, or ``None``.

    Raises:
        ValueError: ``device`` is none; or it or ``pin_memory`` goes with an ``output`` other than tensors.
        RuntimeError: There is no such device here.
        ImportError: The package that the output needs is not installed.

    Example:
        >>> Delivery("torch", "cpu").to_device is None
        True
        >>> Delivery("torch", "gpu")
        Traceback (most recent call last):
        ...
        ValueError: device must be 'cpu', 'cuda', 'cuda:1', ... or such a torch.device, got 'gpu'; ...
    """

    def __init__(
        self,
        output: FinalOutput,
        device: Any = None,
        pin_memory: bool = False,
        ahead: int = 0,
        access: CudaAccess | None = None,
    ) -> None:
        self.to_device = _cuda_device(device)
        if self.to_device is not None and output != "torch":
            raise ValueError(
                f"device={self.to_device!r} is for tensors, and output is {output!r}: take output='torch', "
                "or copy the batches yourself (jax.device_put)"
            )
        self._access = access or CudaAccess()
        if self.to_device is not None:
            _check_that_it_is_there(self.to_device, self._access.device_count())
        if pin_memory and output != "torch":
            raise ValueError(f"pin_memory is for tensors, and output is {output!r}")
        if output == "jax":
            jax_arrays.check_installed()
        self.received: Output = "numpy" if output == "jax" else output
        pins = pin_memory or self.to_device is not None
        self.pinning = Pinning(self._access.runtime) if pins else None
        self._output = output
        self._ahead = ahead

    def handed_out(self, source: Iterator[Any], staged: bool = False) -> Iterator[Any]:
        """The batches of ``source`` as they are to be.

        Args:
            source: The batches. If it can be asked for those that are here already (an ``EpochIterator``), it
                is, and they are copied to the device ahead.
            staged: Whether stages may have put their tensors into memory of their own.
        """
        if self._output == "jax":
            return map(jax_arrays.with_jax_arrays, source)
        if self.to_device is None:
            return map(self._pinned, source) if staged and self.pinning is not None else source
        runtime = self._access.runtime()
        if runtime is None:
            raise RuntimeError(f"device={self.to_device!r}: torch finds no CUDA device")
        return DeviceIterator(
            source,
            runtime.copy_stream(self.to_device),
            self._ahead,
            getattr(source, "next_now", None),
            lambda: getattr(source, "closed", False),
        )

    def _pinned(self, batch: Any) -> Any:
        return batch if self.pinning is None or self.pinning.cuda is None else pinned(batch)


def _cuda_device(device: Any) -> str | None:
    name = str(device) if hasattr(device, "type") else device
    if name is None or name in ("cpu", "cpu:0"):
        return None
    if not isinstance(name, str) or not re.fullmatch(r"cuda(:\d+)?", name):
        raise ValueError(
            f"device must be 'cpu', 'cuda', 'cuda:1', ... or such a torch.device, got {device!r}; for other "
            "devices put .map(...) behind the loader, with a function that copies"
        )
    return name


def _check_that_it_is_there(device: str, count: int) -> None:
    if int(device.partition(":")[2] or 0) >= count:
        has = f"{count} CUDA devices" if count else "no CUDA device"
        raise RuntimeError(f"device={device!r} is not there: torch finds {has}")
