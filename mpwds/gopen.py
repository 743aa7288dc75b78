"""webdataset.gopen: streams of bytes.

In webdataset ``gopen`` is both a function of the package and a module of it. So this module can be called:
importing it puts it in the function's place.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, BinaryIO

from mpwds.storage.streams.gopen import gopen, gopen_schemes, reader
from mpwds.storage.streams.urls import rewrite_url

__all__ = ["gopen", "gopen_schemes", "reader", "rewrite_url"]


class _Callable(ModuleType):
    def __call__(self, *args: Any, **keywords: Any) -> BinaryIO:
        return gopen(*args, **keywords)


sys.modules[__name__].__class__ = _Callable
