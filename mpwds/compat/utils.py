"""What webdataset's module of this name has that users of it use."""

from __future__ import annotations

import sys
from typing import TypeVar

from mpwds.compat.extradatasets import repeatedly
from mpwds.pipeline.context import pytorch_worker_info, pytorch_worker_seed
from mpwds.pipeline.stages.pipelinefilter import PipelineStage
from mpwds.storage.streams.secure import ModuleWithEnforceSecurity

__all__ = ["PipelineStage", "identity", "pytorch_worker_info", "pytorch_worker_seed", "repeatedly"]

T = TypeVar("T")


def identity(x: T) -> T:
    """What it is given: for places that want a function, in pipelines that are pickled.

    Example:
        >>> identity("a")
        'a'
    """
    return x


# So that `mpwds.compat.utils.enforce_security = True` takes effect, as webdataset's does.
sys.modules[__name__].__class__ = ModuleWithEnforceSecurity
