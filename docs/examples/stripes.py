"""Data for the examples: small images of stripes, whose direction is to be told.

As a map-style dataset, and as tar shards with the same samples.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.utils.data

import mpwds

TRAIN, HELD_OUT = range(1200), range(1200, 1500)
CLASSES = 3
SIZE = 16
PER_SHARD = 100


def stripes(index: int) -> tuple[np.ndarray, int]:
    """Sample ``index``: a uint8 image (16, 16), noisy, and 0, 1 or 2 for the direction of its stripes."""
    rng = np.random.default_rng(index)
    label = int(rng.integers(CLASSES))
    y, x = np.mgrid[:SIZE, :SIZE] + rng.integers(SIZE)
    wave = np.sin((y, x, y + x)[label] * rng.uniform(1.0, 1.6))
    return np.clip(128 + 60 * wave + rng.normal(0, 30, wave.shape), 0, 255).astype(np.uint8), label


class Stripes(torch.utils.data.Dataset):
    """Map-style: image (float32 (1, 16, 16) in 0 to 1) and label for each of ``indices``."""

    def __init__(self, indices: range) -> None:
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        image, label = stripes(self.indices[index])
        return scaled(image), label


def scaled(image: np.ndarray) -> np.ndarray:
    """What a network gets of an image (16, 16): float32 (1, 16, 16) in 0 to 1."""
    return image[None].astype(np.float32) / 255


def write_shards(folder: Path, indices: range) -> list[str]:
    """Writes the samples as tar shards of 100, ``image.npy`` and ``cls`` each, and returns their names."""
    pattern = f"{folder}/stripes-{indices.start}-%03d.tar"
    with mpwds.ShardWriter(pattern, maxcount=PER_SHARD, verbose=0) as writer:
        for index in indices:
            image, label = stripes(index)
            writer.write({"__key__": f"{index:06}", "image.npy": image, "cls": label})
    return sorted(map(str, folder.glob(f"stripes-{indices.start}-*.tar")))


def from_shards(urls: list[str], shuffled: bool = True) -> mpwds.WebDataset:
    """The pipeline that reads them: batches of images (float32 (50, 1, 16, 16)) and labels (int64 (50,))."""
    samples = mpwds.WebDataset(urls, shardshuffle=shuffled)
    if shuffled:
        samples = samples.shuffle(500)
    return samples.decode().to_tuple("image.npy", "cls").map_tuple(scaled, None).batched(50)


def network() -> torch.nn.Module:
    """A small network of convolutions: images (n, 1, 16, 16) to scores (n, 3)."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(16, CLASSES),
    )
