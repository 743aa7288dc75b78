"""Turn NumPy arrays into jax arrays, where possible without a copy."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from mpwds.loader.output.replacing import replaced


def check_installed() -> None:
    """Raises ImportError if jax is not installed, without importing it."""
    if importlib.util.find_spec("jax") is None:
        raise ImportError("output='jax' needs the package jax: pip install 'mpwds[jax]'")


def with_jax_arrays(batch: Any) -> Any:
    """A batch (any nesting of dict, list, tuple, namedtuple and dataclass) with jax arrays for NumPy arrays.

    jax takes over the memory of an array (by DLPack), and holds it until no jax array and no computation that
    has begun needs it. Arrays that are not contiguous or not aligned to 64 bytes are copied. So are bfloat16
    and, unless ``jax_enable_x64`` is set, arrays of 64 bits, which become 32 as everywhere in jax. The arrays
    are on the CPU (``jax.device_put`` moves a whole batch). Arrays of objects, text or times, which jax does
    not have, stay NumPy arrays, and so do NumPy scalars.
    """
    return replaced(batch, np.ndarray, _converter())


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
