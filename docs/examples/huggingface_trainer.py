"""Hugging Face's Trainer, fed by DataLoaders and by a MultiLoader, interrupted and resumed.

pip install 'mpwds[huggingface]'
python huggingface_trainer.py [folder for checkpoints]
torchrun --nproc-per-node 2 huggingface_trainer.py [folder]
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch
from stripes import HELD_OUT, TRAIN, Stripes, from_shards, network, write_shards
from transformers import Trainer, TrainingArguments, set_seed

import mpwds

EPOCHS = 4
STEPS = len(TRAIN) // 50 // int(os.environ.get("WORLD_SIZE", 1))


def named(sample):
    """A sample or a batch as Trainer wants it: the arguments of the model's forward."""
    return dict(zip(("image", "labels"), sample, strict=True))


class NamedStripes(Stripes):
    def __getitem__(self, index):
        return named(super().__getitem__(index))


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, image, labels):
        scores = self.network(image)
        return {"loss": torch.nn.functional.cross_entropy(scores, labels), "scores": scores}


class LoaderTrainer(Trainer):
    """A Trainer whose train_dataset is a loader: it delivers batches, and each rank has one of its own."""

    def get_train_dataloader(self):
        return mpwds.DataLoader(self.train_dataset, batch_size=None)


def accuracy(prediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


def fit(kind: type[Trainer], training, folder: str, resume: str | None = None) -> Trainer:
    set_seed(1)
    options = TrainingArguments(
        folder,
        per_device_train_batch_size=50,
        per_device_eval_batch_size=50,
        num_train_epochs=EPOCHS,
        learning_rate=0.02,
        eval_strategy="epoch",
        save_strategy="steps",
        save_steps=0.4,  # after 0.4 of all steps, within the second epoch
        dataloader_num_workers=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = kind(
        Classifier(),
        options,
        train_dataset=training,
        eval_dataset=NamedStripes(HELD_OUT),
        compute_metrics=accuracy,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def fit_twice(kind: type[Trainer], make_training, folder: Path) -> None:
    """Trains, then does the later part of it once more, from the checkpoint."""
    whole = fit(kind, make_training(), str(folder))
    checkpoint = min(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    resumed = fit(kind, make_training(), str(folder), resume=str(checkpoint))
    if whole.is_world_process_zero():
        scores = [log["eval_accuracy"] for log in whole.state.log_history if "eval_accuracy" in log]
        print("accuracy after each epoch:", *(f"{score:.3f}" for score in scores))
        pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
        print(f"resumed from {checkpoint.name}: same weights:", all(torch.equal(a, b) for a, b in pairs))


def main(output: Path) -> None:
    # Trainer makes its DataLoaders itself, with Accelerate: of our class from here on.
    mpwds.use_in_accelerate()
    fit_twice(Trainer, lambda: NamedStripes(TRAIN), output / "map-style")

    with tempfile.TemporaryDirectory() as shards:
        urls = write_shards(Path(shards), TRAIN)

        def loader():
            batches = mpwds.MultiLoader(from_shards(urls).map(named), workers=2).rebatched(50, shuffle=300)
            return batches.with_length(STEPS, silent=True)

        fit_twice(LoaderTrainer, loader, output / "shards")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "huggingface_output"))
