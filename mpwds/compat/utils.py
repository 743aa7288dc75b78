"""webdataset.utils: the part of it that programs use."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TypeVar

from mpwds.compat.extradatasets import repeatedly as repeatedly
from mpwds.pipeline.context import pytorch_worker_info as pytorch_worker_info
from mpwds.pipeline.context import pytorch_worker_seed as pytorch_worker_seed
from mpwds.pipeline.parts import PipelineStage as PipelineStage
from mpwds.storage.streams.urls import enforce_security, security_enforced

T = TypeVar("T")


def identity(x: T) -> T:
    """Returns its argument: for places that want a function, in pipelines that are pickled."""
    return x


class _Module(ModuleType):
    """A module whose attribute ``enforce_security`` reads and sets secure mode."""

    @property
    def enforce_security(self) -> bool:
        return security_enforced()

    @enforce_security.setter
    def enforce_security(self, on: bool) -> None:
        enforce_security(on)


# So that `mpwds.compat.utils.enforce_security = True` takes effect, as webdataset's does.
sys.modules[__name__].__class__ = _Module
