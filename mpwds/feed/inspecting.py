"""Asks feed servers for their status, and for copies of the batches that they send."""

from __future__ import annotations

import os
from typing import Any


class Inspector:
    """To be replaced by the core's."""

    def __init__(
        self, urls: list[str], keys: str | os.PathLike[str] | None = None, insecure: bool = False
    ) -> None:
        raise NotImplementedError

    def __enter__(self) -> Inspector:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def status(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def peek(self, timeout: float) -> tuple[dict[str, Any], Any]:
        raise NotImplementedError
