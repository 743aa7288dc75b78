"""Keras 3 on torch, fed by DataLoaders and by a MultiLoader.

pip install 'mpwds[keras]'
python keras_fit.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import keras
from stripes import CLASSES, HELD_OUT, SIZE, TRAIN, Stripes, from_shards, write_shards

import mpwds

STEPS = len(TRAIN) // 50


def classifier() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.layers.Input((1, SIZE, SIZE)),
            keras.layers.Conv2D(16, 3, activation="relu", data_format="channels_first"),
            keras.layers.Conv2D(16, 3, activation="relu", data_format="channels_first"),
            keras.layers.GlobalAveragePooling2D(data_format="channels_first"),
            keras.layers.Dense(CLASSES),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
    return model


def report(history: keras.callbacks.History) -> None:
    figures = zip(history.history["loss"], history.history["val_accuracy"], strict=True)
    for epoch, (loss, accuracy) in enumerate(figures):
        print(f"epoch {epoch}: loss {loss:.3f}, accuracy {accuracy:.3f}")


def main() -> None:
    options = {"batch_size": 50, "num_workers": 2, "persistent_workers": True}
    held_out = mpwds.DataLoader(Stripes(HELD_OUT), **options)

    training = mpwds.DataLoader(Stripes(TRAIN), shuffle=True, **options)
    report(classifier().fit(training, validation_data=held_out, epochs=4, verbose=0, shuffle=False))

    with tempfile.TemporaryDirectory() as folder:
        pipeline = from_shards(write_shards(Path(folder), TRAIN))
        with mpwds.MultiLoader(pipeline, workers=2).rebatched(50, shuffle=300) as loader:
            training = mpwds.DataLoader(loader.with_length(STEPS, silent=True), batch_size=None)
            report(classifier().fit(training, validation_data=held_out, epochs=4, verbose=0, shuffle=False))


if __name__ == "__main__":
    main()
