"""Unpickle what a shard holds: only when the program said so, and never where it must not."""

from __future__ import annotations

import io
import os
import pickle
from typing import Any

from mpwds.errors import DecodeError
from mpwds.storage.streams.secure import refuse_in_secure_mode

pytorch_weights_only = os.environ.get("WDS_PYTORCH_WEIGHTS_ONLY", "0") == "1"
"""``torch_loads`` keeps to ``weights_only=True`` even with ``allow_pickle=True``."""

_SAFE_TORCH = (2, 6)  # before it, weights_only=True could be made to run code (CVE-2025-32434)


def check_allowed(what: str, allow_pickle: bool) -> None:
    """Raises unless pickles may be loaded here.

    Args:
        what: What the data is, for the message.
        allow_pickle: The program's permission.

    Raises:
        DecodeError: They may not: permission is missing.
        SecurityError: ``WDS_SECURE=1``, which overrules permission.

    Example:
        >>> check_allowed("a pickle", allow_pickle=True)
    """
    refuse_in_secure_mode(f"pickles may not be loaded (it is {what})")
    if not allow_pickle:
        raise DecodeError(
            f"it is {what}, and loading it would run whatever code it holds; if you trust whoever wrote the "
            "shard, pass allow_pickle=True to decode(); to leave the field alone, name the others with only="
        )


def unpickle_loads(data: Any, allow_pickle: bool = False) -> Any:
    """The object that a pickle makes.

    Args:
        data: The pickle, bytes or a memoryview.
        allow_pickle: Whether to do it at all: the author of the pickle can run any code.

    Raises:
        DecodeError: It is not allowed.
        SecurityError: ``WDS_SECURE=1``, which overrules ``allow_pickle``.

    Source:
        ``webdataset.autodecode.unpickle_loads``.

    Example:
        >>> unpickle_loads(pickle.dumps({"a": 1}), allow_pickle=True)
        {'a': 1}
    """
    check_allowed("a pickle", allow_pickle)
    return pickle.loads(data)


def torch_loads(data: Any, allow_pickle: bool = False) -> Any:
    """The object that ``torch.save`` stored, on the CPU: tensors in plain containers, and plain values.

    Args:
        data: The file's bytes, or a memoryview of them.
        allow_pickle: Load objects of any class too, by pickle: the author of the data can run any code.
            ``WDS_PYTORCH_WEIGHTS_ONLY=1`` in the environment overrules it.

    Raises:
        DecodeError: The data holds other objects and ``allow_pickle`` is false; or torch is older than 2.6,
            whose ``weights_only=True`` does not protect.
        SecurityError: ``WDS_SECURE=1``, which refuses all such data.
        ImportError: torch is missing.

    Source:
        ``webdataset.autodecode.torch_loads``.

    Example:
        >>> import torch
        >>> stream = io.BytesIO()
        >>> torch.save({"a": torch.arange(2)}, stream)
        >>> torch_loads(stream.getvalue())
        {'a': tensor([0, 1])}
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError("pth files are decoded with torch: pip install torch") from error
    refuse_in_secure_mode("pickles may not be loaded (it is for torch.load)")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _SAFE_TORCH:
        check_allowed(
            f"for torch.load, which is unsafe before torch 2.6 (this is {torch.__version__})", allow_pickle
        )
    try:
        return torch.load(
            io.BytesIO(data), map_location="cpu", weights_only=not allow_pickle or pytorch_weights_only
        )
    except pickle.UnpicklingError:
        check_allowed("damaged, or a pickle of more than tensors and plain values", allow_pickle)
        raise


def pth_loads(data: Any, allow_pickle: bool = False) -> Any:
    """The value of a ``pth`` field for ``decode``. A file of ``torch.save`` counts as a pickle.

    Args:
        data: The file's bytes, or a memoryview of them.
        allow_pickle: Whether to load it at all.

    Raises:
        DecodeError: It is not allowed.
        SecurityError: ``WDS_SECURE=1``, which overrules ``allow_pickle``.
        ImportError: torch is missing.

    Example:
        >>> import torch
        >>> stream = io.BytesIO()
        >>> torch.save({"a": torch.arange(2)}, stream)
        >>> pth_loads(stream.getvalue(), allow_pickle=True)
        {'a': tensor([0, 1])}
    """
    check_allowed("a file of torch.save, which is a pickle", allow_pickle)
    return torch_loads(data, allow_pickle=True)
