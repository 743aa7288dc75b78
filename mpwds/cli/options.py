"""Options that all rooms of the command line share."""

from __future__ import annotations

import re
from typing import Annotated

import typer

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)

Json = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]


def parse_size(text: str | int) -> int:
    """The number of bytes that ``100MB``, ``1.5 GiB`` or ``4096`` stands for.

    Example:
        >>> parse_size("100MB"), parse_size("1.5GiB"), parse_size("4096")
        (100000000, 1610612736, 4096)
    """
    match = _SIZE.fullmatch(str(text).strip())
    size = 0
    if match is not None:
        step = 1024 if match[3] else 1000
        size = int(float(match[1]) * step ** " kmgt".index(match[2].lower() or " "))
    if size < 1:
        raise typer.BadParameter(f"{text!r} is no size: write a number of bytes, such as 500MB or 1GiB")
    return size
