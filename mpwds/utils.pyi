from mpwds.compat.helpers import identity as identity
from mpwds.compat.helpers import repeatedly as repeatedly
from mpwds.pipeline.coercion import PipelineStage as PipelineStage
from mpwds.pipeline.context import pytorch_worker_info as pytorch_worker_info
from mpwds.pipeline.context import pytorch_worker_seed as pytorch_worker_seed

enforce_security: bool
