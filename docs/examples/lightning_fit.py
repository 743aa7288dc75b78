"""Lightning's Trainer, fed by a DataLoader and by a MultiLoader.

pip install 'mpwds[lightning]'
python lightning_fit.py
torchrun --nproc-per-node 2 lightning_fit.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import lightning
import torch
from stripes import HELD_OUT, TRAIN, Stripes, from_shards, network, write_shards

import mpwds


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch, number):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.network(images), labels)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, number):
        images, labels = batch
        hits = (self.network(images).argmax(1) == labels).float().mean()
        self.log("accuracy", hits, sync_dist=True, batch_size=len(labels))

    def on_train_epoch_end(self) -> None:
        metrics = self.trainer.callback_metrics
        self.print(
            f"epoch {self.current_epoch}: loss {metrics['loss']:.3f}, accuracy {metrics['accuracy']:.3f}"
        )

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def new_trainer() -> lightning.Trainer:
    lightning.seed_everything(1, verbose=False)
    return lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),  # as many as torchrun has started
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def train_on_map_style_dataset() -> None:
    options = {"batch_size": 50, "num_workers": 2, "persistent_workers": True}
    training = mpwds.DataLoader(Stripes(TRAIN), shuffle=True, **options)
    held_out = mpwds.DataLoader(Stripes(HELD_OUT), **options)
    new_trainer().fit(Classifier(), training, held_out)


def train_on_shards(folder: Path) -> None:
    pipeline = from_shards(write_shards(folder, TRAIN))
    in_order = from_shards(write_shards(folder, HELD_OUT), shuffled=False)
    with (
        mpwds.MultiLoader(pipeline, workers=2).rebatched(50, shuffle=300) as training,
        mpwds.MultiLoader(in_order, workers=1) as held_out,
    ):
        new_trainer().fit(Classifier(), training, held_out)


if __name__ == "__main__":
    train_on_map_style_dataset()
    with tempfile.TemporaryDirectory() as folder:
        train_on_shards(Path(folder))
