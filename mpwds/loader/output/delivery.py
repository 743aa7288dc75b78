"""The last step of a loader: batches become what its ``output``, ``device`` and ``pin_memory`` say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mpwds.loader.engine.options import FinalOutput
from mpwds.loader.engine.receiving import Output
from mpwds.loader.output.replacing import pinned
from mpwds.sharedmem.cuda import CudaAccess
from mpwds.sharedmem.pinning import Pinning


class Delivery:
    """Hands batches out as a loader's ``output``, ``device`` and ``pin_memory`` say.

    Args:
        output: What arrays become. Up to this step, jax arrays are NumPy arrays.
        device: Where tensors go in this step; ``None`` or ``"cpu"`` leaves them where they are.
        pin_memory: Whether tensors that stay on the CPU are pinned.
        ahead: Batches to copy to the device before they are asked for.
        access: The way to CUDA.

    Attributes:
        received: What arrays are before this step.
        to_device: The CUDA device that tensors go to, or ``None``.
        pinning: Pins the memory of batches before this step, or is ``None``.

    Raises:
        ValueError: ``device`` is invalid, or ``device`` or ``pin_memory`` was combined with a non-torch
            ``output``.
        RuntimeError: The device does not exist here.
        ImportError: The package that the output needs is not installed.
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
        self._access = access or CudaAccess()
        if self.to_device is not None:
            if output != "torch":
                raise ValueError(
                    f"device={self.to_device!r} is for tensors, and output is {output!r}: use "
                    "output='torch', or copy the batches yourself (jax.device_put)"
                )
            count = self._access.device_count()
            if int(self.to_device.partition(":")[2] or 0) >= count:
                has = f"{count} CUDA devices" if count else "no CUDA device"
                raise RuntimeError(f"device={self.to_device!r} does not exist: torch finds {has}")
        if pin_memory and output != "torch":
            raise ValueError(f"pin_memory is for tensors, and output is {output!r}")
        if output == "jax":
            from mpwds.loader.output import jax_arrays

            jax_arrays.check_installed()
        self.received: Output = "numpy" if output == "jax" else output
        pins = pin_memory or self.to_device is not None
        self.pinning = Pinning(self._access.runtime) if pins else None
        self._output = output
        self._ahead = ahead

    def handed_out(self, source: Iterator[Any], staged: bool = False) -> Iterator[Any]:
        """The batches of ``source`` in their final form.

        Args:
            source: The batches. Those that an ``EpochIterator`` has received already are copied to the device
                ahead.
            staged: Whether stages may have put their tensors into memory of their own.
        """
        if self._output == "jax":
            from mpwds.loader.output import jax_arrays

            return map(jax_arrays.with_jax_arrays, source)
        if self.to_device is None:
            return map(self._pinned, source) if staged and self.pinning is not None else source
        from mpwds.loader.output.device_iterator import DeviceIterator

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
