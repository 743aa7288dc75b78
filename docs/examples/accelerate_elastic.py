"""A training loop with Accelerate, whose checkpoints go on under another number of ranks.

pip install 'mpwds[huggingface]'
torchrun --nproc-per-node 2 accelerate_elastic.py FOLDER [EPOCHS]      # stop it, then:
python accelerate_elastic.py FOLDER [EPOCHS]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from all_ranks import AllRanks
from stripes import TRAIN, from_shards, network, write_shards

import mpwds

STREAMS, BATCHES_PER_STEP = 4, 2
EPOCHS = int(sys.argv[2]) if sys.argv[2:] else 5


class Steps:
    """The number of optimizer steps, which Accelerate saves."""

    def __init__(self) -> None:
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


def main(folder: Path) -> None:
    set_seed(1)
    accelerator = Accelerator(cpu=True)
    with accelerator.main_process_first():
        urls = write_shards(folder, TRAIN)
    loader = mpwds.MultiLoader(from_shards(urls), workers=2, streams=STREAMS, even="drop", seed=1)
    length, accumulate = len(TRAIN) // 50, BATCHES_PER_STEP // accelerator.num_processes
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    batches, steps = AllRanks(loader, length // accelerator.num_processes), Steps()
    accelerator.register_for_checkpointing(batches, steps)
    if saved := sorted(folder.glob("checkpoint-*"), key=os.path.getmtime):
        accelerator.load_state(str(saved[-1]))

    losses = []
    for _ in range(steps.done * BATCHES_PER_STEP // length, EPOCHS):
        for images, labels in batches:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss / accumulate)
            losses.append(loss.detach())
            if len(losses) < accumulate:
                continue
            accelerator.print(f"step {steps.done}: loss {mean(accelerator, losses):.4f}", flush=True)
            losses.clear()
            optimizer.step()
            optimizer.zero_grad()
            steps.done += 1
            if steps.done % 4 == 0:
                save(accelerator, folder, steps.done)
    accelerator.end_training()


def mean(accelerator: Accelerator, losses: list[torch.Tensor]) -> float:
    return float(accelerator.gather(torch.stack(losses)).mean())


def save(accelerator: Accelerator, folder: Path, steps: int) -> None:
    """Saves a checkpoint, which appears under its name when it is complete."""
    accelerator.save_state(str(folder / "unfinished"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (folder / "unfinished").rename(folder / f"checkpoint-{steps}")
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
