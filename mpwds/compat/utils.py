"""What webdataset's module of this name has that users of it use."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TypeVar

from mpwds.compat.extradatasets import repeatedly
from mpwds.pipeline.context import pytorch_worker_info, pytorch_worker_seed
from mpwds.pipeline.stages.pipelinefilter import PipelineStage
from mpwds.storage.streams.secure import enforce_security, security_enforced

__all__ = ["PipelineStage", "identity", "pytorch_worker_info", "pytorch_worker_seed", "repeatedly"]

T = TypeVar("T")


def identity(x: T) -> T:
    """What it is given: for places that want a function, in pipelines that are pickled.

    Example:
        >>> identity("a")
        'a'
    """
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
