"""webdataset.utils: the part of it that programs use."""

from __future__ import annotations

import sys
from typing import TypeVar

from mpwds.compat.extradatasets import repeatedly as repeatedly
from mpwds.pipeline.context import pytorch_worker_info as pytorch_worker_info
from mpwds.pipeline.context import pytorch_worker_seed as pytorch_worker_seed
from mpwds.pipeline.stages.pipelinefilter import PipelineStage as PipelineStage
from mpwds.storage.streams.secure import ModuleWithEnforceSecurity

T = TypeVar("T")


def identity(x: T) -> T:
    """Returns its argument: for places that want a function, in pipelines that are pickled."""
    return x


# Makes `mpwds.compat.utils.enforce_security = True` take effect, as in webdataset.
sys.modules[__name__].__class__ = ModuleWithEnforceSecurity
