"""What the ranks of a Keras program see, whose backend is torch."""

import os

os.environ["KERAS_BACKEND"] = "torch"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras
import torch
from samples import EPOCHS, RANKS, SAMPLES, Numbered, pipeline, report

import mpwds


class Recorder(keras.Sequential):
    """Remembers the labels that it was trained on."""

    def train_step(self, data):
        self.seen += data[1].tolist()
        return super().train_step(data)


def fit(case, loader):
    model = Recorder([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    model.seen = []
    count_epochs = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: loader.set_epoch(epoch))
    model.fit(loader, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=[count_epochs])
    per_epoch = SAMPLES // RANKS
    report(case, [model.seen[start : start + per_epoch] for start in range(0, len(model.seen), per_epoch)])


def pair(batch):
    return batch["inputs"], batch["labels"]


class Pairs(Numbered):
    def __getitem__(self, index):
        return pair(super().__getitem__(index))


def main():
    torch.distributed.init_process_group("gloo")
    sampler = torch.utils.data.DistributedSampler(range(SAMPLES))
    fit("DataLoader", mpwds.DataLoader(Pairs(), batch_size=4, sampler=sampler, num_workers=1))
    pairs = pipeline().map(pair)
    with mpwds.MultiLoader(pairs, workers=1, even="drop") as loader:
        fit("MultiLoader", mpwds.DataLoader(loader.with_length(6, silent=True), batch_size=None))
        rebatched = loader.rebatched(3, shuffle=12).with_length(8, silent=True)
        fit("rebatched", mpwds.DataLoader(rebatched, batch_size=None))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
