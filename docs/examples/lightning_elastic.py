"""Lightning's Trainer, whose checkpoints go on under another number of ranks.

pip install 'mpwds[lightning]'
torchrun --nproc-per-node 2 lightning_elastic.py FOLDER [EPOCHS]      # stop it, then:
python lightning_elastic.py FOLDER [EPOCHS]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lightning
import torch
from all_ranks import AllRanks
from lightning.pytorch.callbacks import ModelCheckpoint
from stripes import TRAIN, from_shards, network, write_shards

import mpwds

STREAMS, BATCHES_PER_STEP = 4, 2
EPOCHS = int(sys.argv[2]) if sys.argv[2:] else 5
RANKS = int(os.environ.get("WORLD_SIZE", 1))


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch, number):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.network(images), labels)
        self.losses.append(loss.detach())
        return loss

    def on_before_optimizer_step(self, optimizer) -> None:
        loss = self.all_gather(torch.stack(self.losses)).mean()
        self.print(f"step {self.global_step}: loss {loss:.4f}", flush=True)
        self.losses.clear()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def on_save_checkpoint(self, checkpoint) -> None:
        checkpoint["ranks"] = RANKS

    def on_load_checkpoint(self, checkpoint) -> None:
        """Lightning counts the batches of a rank: these ranks have delivered more or fewer each."""
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
        begun = progress["processed"] * checkpoint["ranks"] // RANKS
        ended = begun - (progress["processed"] - progress["completed"])
        progress.update(ready=begun, started=begun, processed=begun, completed=ended)


def main(folder: Path) -> None:
    lightning.seed_everything(1, verbose=False)
    pipeline = from_shards(write_shards(folder, TRAIN))
    loader = mpwds.MultiLoader(pipeline, workers=2, streams=STREAMS, even="drop", seed=1)
    batches = AllRanks(loader, length=len(TRAIN) // 50 // RANKS)
    saved = max(folder.glob("step=*.ckpt"), key=os.path.getmtime, default=None)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=RANKS,
        accumulate_grad_batches=BATCHES_PER_STEP // RANKS,  # a step sees the same samples on 1 and 2 ranks
        callbacks=[ModelCheckpoint(folder, "{step}", every_n_train_steps=4, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), batches, ckpt_path=saved)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
