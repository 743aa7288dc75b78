"""The envelope: a msgpack map with a version, which carries a structure and further fields."""

from __future__ import annotations

from typing import Any

import msgpack

from mpwds.errors import EnvelopeError
from mpwds.tenbin import Buffer

VERSION = 1
_HARMLESS_NBYTES = 1 << 10
"""False claims in so few bytes make msgpack allocate 8 MB at the most."""


def pack(fields: dict[str, Any]) -> bytes:
    """Make an envelope.

    Args:
        fields: Values of msgpack's types: None, bool, int of 64 bits, float, str, bytes, list, dict. The
            name ``"mpwds"`` is taken by the version. Tuples arrive as lists.

    Raises:
        TypeError: A value is of another type.
        ValueError: A value is out of msgpack's range, or a field is called ``"mpwds"``.

    Example:
        >>> from mpwds.nest import unpack
        >>> unpack(pack({"sequence": 7}))
        {'sequence': 7}
    """
    if "mpwds" in fields:
        raise ValueError("an envelope's field 'mpwds' holds its version: use another name")
    envelope = {"mpwds": VERSION, **fields}
    try:
        try:
            packed: bytes = msgpack.packb(envelope)
        except UnicodeEncodeError:  # a lone surrogate, from a file name for instance, is str too
            packed = msgpack.packb(envelope, unicode_errors="surrogatepass")
    except OverflowError as error:
        raise ValueError(f"cannot send this in an envelope: {error}") from error
    return packed


def unpack(data: Buffer, *, trusted: bool = False) -> dict[str, Any]:
    """Open an envelope.

    Args:
        data: The envelope; any C-contiguous buffer.
        trusted: Parse the bytes at once: they come from another process of this program. Bytes of a file or a
            network are first checked, so that a false length in them costs no memory.

    Raises:
        EnvelopeError: The bytes are not an envelope, or of another version.
    """
    try:
        if not trusted and memoryview(data).nbytes > _HARMLESS_NBYTES:
            # Each of many nested arrays may claim as many elements as there are bytes, and msgpack allocates
            # all of them. Skipping allocates nothing, and fails at the first false claim.
            scout = msgpack.Unpacker(max_buffer_size=memoryview(data).nbytes)
            scout.feed(data)
            scout.skip()
        fields = msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogatepass")
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise EnvelopeError(f"the bytes are not an envelope: {error or type(error).__name__}") from error
    version = fields.pop("mpwds", None) if type(fields) is dict else None
    if type(version) is not int:
        raise EnvelopeError("the message is not an envelope of mpwds: it has no version")
    if version != VERSION:
        raise EnvelopeError(
            f"the envelope is of version {version}, this mpwds speaks version {VERSION}: "
            "use the same mpwds on both sides"
        )
    if not trusted and not set(map(type, fields)) <= {str}:
        raise EnvelopeError("the envelope has a field whose name is not a str")
    opened: dict[str, Any] = fields
    return opened
