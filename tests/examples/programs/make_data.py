"""Makes what the programs train on: a folder of photographs, a file of tokens, a file of vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import PIL.Image

CLASSES = ("bridges", "clouds", "doors", "lamps")


def photographs(folder: Path, per_class: int, size: int) -> None:
    """Writes ``train`` and ``val``, a folder of JPEG files for each class in both; ``val`` has fewer."""
    for part, count in (("train", per_class), ("val", max(per_class // 4, 1))):
        for number, name in enumerate(CLASSES):
            (folder / part / name).mkdir(parents=True)
            for index in range(count):
                rng = np.random.default_rng([number, index, part == "val"])
                coarse = rng.integers(0, 160, (8, 8, 3), np.uint8)
                coarse[:, number::4] += 95
                image = PIL.Image.fromarray(coarse).resize((size, size), PIL.Image.Resampling.BICUBIC)
                image.save(folder / part / name / f"{index:05}.jpg", quality=90)


def tokens(folder: Path, documents: int, mean_length: int) -> None:
    """Writes ``tokens.bin``, documents of uint16 tokens in a row, and ``offsets.npy``, where they begin."""
    rng = np.random.default_rng(0)
    lengths = rng.geometric(1 / mean_length, documents) + 1
    steps = rng.integers(1, 4, lengths.sum())
    (np.cumsum(steps) % 500 + 1).astype(np.uint16).tofile(folder / "tokens.bin")
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(lengths)]))


def vectors(folder: Path, rows: int, width: int) -> None:
    """Writes ``vectors.npy`` (float32) and ``targets.npy``, which depend on them linearly."""
    rng = np.random.default_rng(0)
    rows_of = rng.normal(size=(rows, width)).astype(np.float32)
    np.save(folder / "vectors.npy", rows_of)
    np.save(folder / "targets.npy", (rows_of @ rng.normal(size=width)).astype(np.float32))
