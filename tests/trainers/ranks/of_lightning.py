"""What the ranks of a Lightning Trainer see."""

import logging
import warnings

import lightning
import torch
from samples import EPOCHS, RANKS, Model, Numbered, pipeline, report

import mpwds


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()

    def training_step(self, batch, number):
        return self.model(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(case, loader):
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=RANKS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    with loader:
        trainer.fit(module, loader)
    report(case, module.model.seen_in_epochs())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    fit("DataLoader", mpwds.DataLoader(Numbered(), batch_size=4, shuffle=True, num_workers=1))
    fit("MultiLoader", mpwds.MultiLoader(pipeline(), workers=1))
    fit("rebatched", mpwds.MultiLoader(pipeline(), workers=1).rebatched(3, shuffle=12))
    fit("DataLoader of a pipeline", mpwds.DataLoader(pipeline(), batch_size=None, num_workers=1))
