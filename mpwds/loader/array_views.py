"""Arrays that are encoded in some memory, as views of it."""

from __future__ import annotations

import sys
from typing import Any

from mpwds import tenbin
from mpwds.tenbin.kinds import torch_dtypes


def view(memory: Any, offset: int, output: tenbin.Output) -> Any:
    """The array that is encoded at an offset.

    Args:
        memory: A buffer, or a tensor of bytes. Tensors that are made of that are views of it to torch too,
            whose allocator of pinned memory so learns where they are used.
        offset: In bytes.
        output: ``"numpy"`` or ``"torch"``.

    Raises:
        TenbinError: There is no array at that offset, or torch has no such dtype.

    Example:
        >>> import torch
        >>> memory = torch.zeros(160, dtype=torch.uint8)
        >>> tenbin.write_array(memory.numpy(), 0, torch.tensor([3, 4]))
        160
        >>> view(memory, 0, "torch")
        tensor([3, 4])
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(memory, torch.Tensor):
        return tenbin.view_array(memory, tenbin.parse_array(memory, offset), output)
    written = memory.numpy()
    header = tenbin.parse_array(written, offset)
    dtype = torch_dtypes()[1].get(header.code) if output == "torch" else None
    if dtype is None or not header.nbytes:
        return tenbin.view_array(written, header, output)
    start = header.data_offset
    return memory[start : start + header.nbytes].view(dtype).view(header.shape)
