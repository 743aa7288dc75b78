"""Sizes as mosaicml-streaming writes them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])?b)?", re.IGNORECASE)
_POWERS = {None: 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_binary_size(size: int | str | None) -> int | None:
    """A number of bytes, also of text such as ``"64mb"``, of 1024 kB each; ``None`` for 0.

    Example:
        >>> parse_binary_size("1.5kb"), parse_binary_size("100"), parse_binary_size(None)
        (1536, 100, None)
    """
    if isinstance(size, str):
        match = _SIZE.fullmatch(size.strip())
        if match is None:
            raise ValueError(f"a size must be a number of bytes, or text such as '64mb', got {size!r}")
        size = int(float(match[1]) * 1024 ** _POWERS[match[2] and match[2].lower()])
    if size is not None and size < 0:
        raise ValueError(f"a size must not be negative, got {size}")
    return int(size) if size else None
