"""Lightning runs that are resumed from a checkpoint in the middle of an epoch; tells what they trained on."""

import json
import os
import sys
import warnings
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import mpwds

RANKS = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
STEPS = (7, 14)  # of 10 in each of 3 epochs


class Recorder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.batches = []
        self.validated = []

    def training_step(self, batch, number):
        self.batches.append([self.current_epoch, number, batch.tolist()])
        return self.layer(batch.float()[:, None]).mean()

    def validation_step(self, batch, number):
        self.validated.append([self.trainer.sanity_checking, sorted(batch.tolist())])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def data_loader(**options):
    generator = torch.Generator().manual_seed(3)
    return mpwds.DataLoader(range(40 * RANKS), batch_size=4, shuffle=True, generator=generator, **options)


def multi_loader():
    return mpwds.MultiLoader(mpwds.DataPipeline(range(40 * RANKS)).shuffle(40).batched(4), workers=2)


LOADERS = {
    "DataLoader": lambda: data_loader(num_workers=2),
    "DataLoader, workers kept": lambda: data_loader(num_workers=2, persistent_workers=True),
    "MultiLoader": multi_loader,
    "rebatched": lambda: multi_loader().rebatched(4, shuffle=10),
    "DataLoader of rebatched": lambda: mpwds.DataLoader(
        multi_loader().rebatched(4, shuffle=10), batch_size=None
    ),
}


def trained(loader, folder, saves=False, **options):
    module = Recorder()
    saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=STEPS[0], save_top_k=-1)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=RANKS,
        logger=False,
        callbacks=[saving] if saves else [],
        enable_checkpointing=saves,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader, **options)
    return module


def tell(**what):
    sys.stdout.write(f"tells {json.dumps(what)}\n")  # at once: the ranks' lines must not be mixed
    sys.stdout.flush()


def main(folder):
    warnings.simplefilter("ignore")
    for name, make in LOADERS.items():
        whole = trained(make(), folder / name, saves=True)
        for steps in STEPS:
            rest = trained(make(), folder / name, ckpt_path=folder / name / f"step={steps}.ckpt")
            tell(loader=name, steps=steps, expected=whole.batches[steps:], batches=rest.batches)
    if RANKS == 1:
        validate(folder)


def validate(folder):
    with mpwds.MultiLoader(mpwds.DataPipeline(range(12)).shuffle(12).batched(4), workers=2) as held_out:
        module = trained(data_loader(), folder, val_dataloaders=held_out)
    tell(validated=module.validated)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
