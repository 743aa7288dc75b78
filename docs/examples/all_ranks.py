"""A loader for trainers that save what rank 0 has: its state is that of all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

import mpwds


class AllRanks:
    """A ``MultiLoader`` with ``streams=``, whose state any number of ranks can load.

    Args:
        loader: This rank's loader.
        length: Batches of this rank in an epoch.
    """

    def __init__(self, loader: mpwds.MultiLoader, length: int) -> None:
        self.loader = loader
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        """An epoch: the next one, if the loaded state was saved after the last batch of its own."""
        begun = False
        for _ in range(2):
            if not begun:
                for batch in self.loader:
                    begun = True
                    yield batch

    def state_dict(self) -> dict[str, Any]:
        """All ranks call this after the same step."""
        states = [self.loader.state_dict()]
        if dist.is_initialized():
            states *= dist.get_world_size()
            dist.all_gather_object(states, states[0])
        return mpwds.merge_states(states)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)
