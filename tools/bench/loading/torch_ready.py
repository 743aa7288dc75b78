"""``ReadyBatches`` for torch's DataLoader, in a module that processes which are not forked can import."""

from __future__ import annotations

from typing import Any

import torch.utils.data

from loading.ready_batches import ReadyBatches


class TorchReadyBatches(ReadyBatches, torch.utils.data.IterableDataset[Any]):
    pass
