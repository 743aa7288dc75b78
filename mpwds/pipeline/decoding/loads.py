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


def own_load(extension: str, allow_pickle: bool) -> Load | None:
    """The function for an extension, or ``None`` if a program put one of its own into ``decoders``.

    This library's own take memoryviews as well, and what they return is the value, ``None`` included.

    Example:
        >>> own_load("cls", False)(memoryview(b"7"))
        7
    """
    load = decoders.get(extension)
    if load is not _OWN.get(extension):
        return None
    return _UNPICKLING.get(extension, load) if allow_pickle else load


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
_UNPICKLING: dict[str, Load] = {
    **dict.fromkeys(("pyd", "pickle", "pkl"), partial(unpickle_loads, allow_pickle=True)),
    "pth": partial(pth_loads, allow_pickle=True),
    "npy": partial(npy_loads, allow_pickle=True),
    "npz": partial(npz_loads, allow_pickle=True),
}

decoders: dict[str, Load] = dict(_OWN)
"""What ``basichandlers`` decodes: extension to function of the bytes.

A program may add to it or replace what is there. Each process has its own, and workers are processes:
``handle_extension`` travels with the dataset, an entry made here does not.
"""
