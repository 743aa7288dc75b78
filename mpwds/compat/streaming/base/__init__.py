"""mosaicml-streaming's ``base``: its programs import the same names from it, and ``base.util``."""

from __future__ import annotations

from typing import Any

from mpwds.compat import streaming
from mpwds.compat.streaming.base import util as util


def __getattr__(name: str) -> Any:
    return getattr(streaming, name)
