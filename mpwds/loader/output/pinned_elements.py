"""Elements with their tensors in pinned memory."""

from __future__ import annotations

import sys
from typing import Any

from mpwds.loader.output.replacing import replaced


def pinned(element: Any) -> Any:
    """``element`` with copies in pinned memory of the CPU tensors in it.

    Args:
        element: A tensor, or any nesting of dict, list, tuple, namedtuple and dataclass; all else, and what
            is pinned already, is left as it is.

    Example:
        >>> pinned({"__key__": "0017", "cls": (7, None)})
        {'__key__': '0017', 'cls': (7, None)}
    """
    torch = sys.modules.get("torch")
    return element if torch is None else replaced(element, torch.Tensor, _pinned_if_on_cpu)


def _pinned_if_on_cpu(tensor: Any) -> Any:
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor
