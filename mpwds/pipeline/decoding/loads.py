"""The table of functions that make values of fields' bytes, by extension."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from mpwds import tenbin
from mpwds.pipeline.decoding.npy import npy_loads, npz_loads
from mpwds.pipeline.decoding.pickles import pth_loads, unpickle_loads

Load: TypeAlias = Callable[[Any], Any]


def own_load(extension: str, **options: Any) -> Load | None:
    """The library's function for an extension; ``None`` if it has none, or the program replaced it.

    These functions take memoryviews as well. What they return is the value, even if it is ``None``.

    Args:
        extension: The extension, without a dot.
        options: ``allow_pickle`` and ``max_decompressed_bytes``, for the functions that have them.

    Example:
        >>> own_load("cls", allow_pickle=False)(memoryview(b"7"))
        7
    """
    load = decoders.get(extension)
    if load is None or load is not _OWN.get(extension):
        return None
    given = {name: options[name] for name in _OPTIONS.get(load, ()) if name in options}
    return partial(load, **given) if given else load


def text_loads(data: Any) -> str:
    """The text that UTF-8 bytes are.

    Example:
        >>> text_loads(b"caf\\xc3\\xa9")
        'café'
    """
    return str(data, "utf-8")


def json_loads(data: Any) -> Any:
    """The value of a JSON text, in UTF-8, UTF-16 or UTF-32.

    Example:
        >>> json_loads(memoryview(b'{"a": [1, null]}'))
        {'a': [1, None]}
    """
    try:
        return json.loads(str(data, "utf-8"))
    except ValueError:  # another encoding, a byte order mark, or an error
        return json.loads(bytes(data))


def msgpack_loads(data: Any) -> Any:
    """The value of a MessagePack message. Maps may have keys of any kind that can be hashed.

    Example:
        >>> msgpack_loads(b"\\x81\\x01\\xa1a")
        {1: 'a'}
    """
    import msgpack

    return msgpack.unpackb(data, strict_map_key=False)


def cbor_loads(data: Any) -> Any:
    """The value of a CBOR item.

    Raises:
        ImportError: cbor2 is missing.

    Example:
        >>> cbor_loads(b"\\xa1\\x61a\\x01")
        {'a': 1}
    """
    try:
        import cbor2
    except ImportError as error:
        raise ImportError("CBOR is decoded with cbor2: pip install 'mpwds[cbor]'") from error
    return cbor2.loads(data)


_OWN: dict[str, Load] = {
    **dict.fromkeys(("txt", "text", "transcript"), text_loads),
    **dict.fromkeys(("cls", "cls2", "id", "index", "inx"), int),
    **dict.fromkeys(("json", "jsn"), json_loads),
    **dict.fromkeys(("pyd", "pickle", "pkl"), unpickle_loads),
    "pth": pth_loads,
    "npy": npy_loads,
    "npz": npz_loads,
    **dict.fromkeys(("ten", "tenbin", "tb"), tenbin.decode_buffer),
    **dict.fromkeys(("mp", "msg", "msgpack"), msgpack_loads),
    "cbor": cbor_loads,
}
_OPTIONS: dict[Load, tuple[str, ...]] = {
    unpickle_loads: ("allow_pickle",),
    pth_loads: ("allow_pickle",),
    npy_loads: ("allow_pickle",),
    npz_loads: ("allow_pickle", "max_decompressed_bytes"),
}

decoders: dict[str, Load] = dict(_OWN)
"""What ``basichandlers`` decodes: extension to function of the bytes.

A program may add to it or replace what is there. Each process has its own, and workers are processes:
``handle_extension`` travels with the dataset, an entry made here does not.
"""
