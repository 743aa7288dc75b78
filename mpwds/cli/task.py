"""What the demo trains on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpwds.pipeline.dataset import DataPipeline

SEED = 0
"""Seed of all that is random in the demo, so that two runs give the same figures."""

SHUFFLED_SAMPLES = 1000
"""Samples that each worker holds to draw from."""


@dataclass(frozen=True)
class ImageTask:
    """Images to classify: for training, and held out to see what was learned.

    Args:
        train: Yields batches of images, uint8 of shape (N, 3, size, size), and of class numbers, int64 of
            shape (N,).
        held_out: The same, of samples that ``train`` does not yield.
        train_samples: Number of samples in an epoch of ``train``.
        held_out_samples: Number of samples in ``held_out``.
        classes: Number of classes; their numbers start at 0.
        size: Height and width of the images in pixels.
        shards: Number of shards that all these come from.
        place: Where the shards lie.
    """

    train: DataPipeline
    held_out: DataPipeline
    train_samples: int
    held_out_samples: int
    classes: int
    size: int
    shards: int
    place: str
