"""What the ranks of an Accelerator and of a Trainer see."""

import sys

import accelerate
import torch
import transformers
from samples import EPOCHS, RANKS, SAMPLES, Model, Numbered, pipeline, report, tell

import mpwds

STEPS = SAMPLES // 4 // RANKS


def loop(case, loader):
    """A training loop with an Accelerator."""
    accelerator = accelerate.Accelerator(cpu=True)
    module = Model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    model, optimizer, prepared = accelerator.prepare(module, optimizer, loader)
    with loader:
        for epoch in range(EPOCHS):
            prepared.set_epoch(epoch)
            for batch in prepared:
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
    report(f"Accelerator, {case}", module.seen_in_epochs())


class LoaderTrainer(transformers.Trainer):
    def get_train_dataloader(self):
        return mpwds.DataLoader(self.train_dataset, batch_size=None)


def train(case, kind, dataset):
    """Trainer."""
    options = transformers.TrainingArguments(
        sys.argv[1],
        per_device_train_batch_size=4,
        num_train_epochs=EPOCHS,
        dataloader_num_workers=1 if kind is transformers.Trainer else 0,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    model = Model()
    kind(model, options, train_dataset=dataset).train()
    report(f"Trainer, {case}", model.seen_in_epochs())


if __name__ == "__main__":
    mpwds.use_in_accelerate()
    loop("DataLoader", mpwds.DataLoader(Numbered(), batch_size=4, shuffle=True, num_workers=1))
    loop("MultiLoader", mpwds.MultiLoader(pipeline(), workers=1))
    loop("rebatched", mpwds.MultiLoader(pipeline(), workers=1).rebatched(4, shuffle=12))
    loop("WebLoader", mpwds.WebLoader(pipeline(), batch_size=None, num_workers=1))
    train("DataLoader", transformers.Trainer, Numbered())
    with mpwds.MultiLoader(pipeline(), workers=1).with_length(STEPS, silent=True) as batches:
        train("MultiLoader", LoaderTrainer, batches)
    try:
        train("pipeline", transformers.Trainer, pipeline().with_length(STEPS, silent=True))
    except ValueError as error:
        tell({"refused": str(error)})
