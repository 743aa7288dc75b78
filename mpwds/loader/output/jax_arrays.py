"""Turn NumPy arrays into jax arrays, where possible without a copy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mpwds.loader.output.replacing import replaced


def with_jax_arrays(batch: Any) -> Any:
    """A batch, any nesting of containers, with jax arrays on the CPU in place of its NumPy arrays.

    jax takes over an array's memory (by DLPack) and holds it as long as an array or a computation needs it.
    It copies arrays that are not contiguous or not aligned to 64 bytes, bfloat16 and, unless
    ``jax_enable_x64`` is set, arrays of 64 bits, which become 32 as everywhere in jax. Arrays of objects,
    text or times, which jax does not have, and NumPy scalars stay as they are.
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
