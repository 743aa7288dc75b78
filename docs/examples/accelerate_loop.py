"""A training loop with Accelerate, fed by DataLoaders and by a MultiLoader, and resumed.

pip install 'mpwds[huggingface]'
python accelerate_loop.py
torchrun --nproc-per-node 2 accelerate_loop.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import set_seed
from stripes import HELD_OUT, TRAIN, Stripes, from_shards, network, write_shards

import mpwds

EPOCHS = 4


@torch.no_grad()
def accuracy(accelerator, model, batches) -> float:
    hits = [accelerator.gather_for_metrics(model(images).argmax(1) == labels) for images, labels in batches]
    return float(torch.cat(hits).float().mean())


def fit(accelerator, training, held_out) -> None:
    set_seed(1)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, training, held_out = accelerator.prepare(model, optimizer, training, held_out)
    for epoch in range(EPOCHS):
        training.set_epoch(epoch)
        for images, labels in training:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        right = accuracy(accelerator, model, held_out)
        accelerator.print(f"epoch {epoch}: loss {loss:.3f}, accuracy {right:.3f}")


def main() -> None:
    mpwds.use_in_accelerate()  # from here on Accelerate builds DataLoaders of our class
    accelerator = Accelerator(cpu=True)
    held_out = mpwds.DataLoader(Stripes(HELD_OUT), batch_size=50, num_workers=2)

    training = mpwds.DataLoader(Stripes(TRAIN), batch_size=50, shuffle=True, num_workers=2)
    fit(accelerator, training, held_out)

    # The rest of an epoch, for a run that continues in the middle of it.
    rest = skip_first_batches(accelerator.prepare(training), 5)
    accelerator.print(f"batches behind the first five: {sum(1 for _ in rest)}")

    with tempfile.TemporaryDirectory() as folder:
        pipeline = from_shards(write_shards(Path(folder), TRAIN))
        with mpwds.MultiLoader(pipeline, workers=2).rebatched(50, shuffle=300) as training:
            fit(accelerator, training, held_out)
    accelerator.end_training()


if __name__ == "__main__":
    main()
