"""What webdataset's module of this name has that users of it use."""

from __future__ import annotations

import sys

from mpwds.pipeline.sources.resized import repeatedly
from mpwds.pipeline.stages.pipelinefilter import PipelineStage
from mpwds.storage.streams.secure import ModuleWithEnforceSecurity

__all__ = ["PipelineStage", "repeatedly"]

# So that `mpwds.utils.enforce_security = True` takes effect, as webdataset's does.
sys.modules[__name__].__class__ = ModuleWithEnforceSecurity
