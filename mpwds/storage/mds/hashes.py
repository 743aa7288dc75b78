"""Hashes of shards."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from mpwds.imports import require


def digest(name: str, data: bytes) -> str:
    """The hash of ``data``, in hexadecimal digits.

    Args:
        name: Any of ``hashlib`` of fixed length, or of xxhash: ``"sha1"``, ``"xxh3_64"``.
        data: The bytes.

    Raises:
        ValueError: There is no such hash.
        ImportError: xxhash is missing.

    Source:
        ``streaming.base.hashing``.

    Example:
        >>> digest("md5", b"")
        'd41d8cd98f00b204e9800998ecf8427e'
    """
    if name in hashlib.algorithms_available and not name.startswith("shake_"):
        return hashlib.new(name, data, usedforsecurity=False).hexdigest()
    if name.startswith("xxh"):
        xxhash = require("xxhash", f"the hash {name} needs xxhash: pip install 'mpwds[mds]'")
        if name in xxhash.algorithms_available:
            found: str = getattr(xxhash, name)(data).hexdigest()
            return found
    raise ValueError(f"there is no hash {name!r}: choose one of hashlib, such as 'sha1', or of xxhash")


def mismatch(data: bytes, hashes: Mapping[str, str]) -> str:
    """Says which of the hashes is not that of ``data``; an empty string if all are."""
    for name, expected in hashes.items():
        found = digest(name, data)
        if found != expected:
            return f"its {name} is {found}, and the index says {expected}"
    return ""
