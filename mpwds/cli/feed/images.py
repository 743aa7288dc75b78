"""Datasets of images with the standard training augmentation, for ``mpwds serve`` without code."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import mpwds
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.decoding.images import open_image
from mpwds.pipeline.sources.webdataset import WebDataset
from mpwds.storage.streams.braces import Names

if TYPE_CHECKING:
    from PIL.Image import Image

EXTENSIONS = ("jpg", "jpeg", "png", "webp", "bmp", "ppm")

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)
"""Of ImageNet's channels, after division by 255; every standard recipe subtracts and divides by them."""

_SHUFFLED = 100_000  # paths
_SHUFFLED_SAMPLES = 2000
_AREA = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)
_TRIES = 10


@dataclass(frozen=True)
class TrainingCrop:
    """Function that crops a random part of an image, resizes it, and mirrors half of the images.

    A part has 8 % to 100 % of the area and a side ratio of 3/4 to 4/3 (Szegedy et al., "Going deeper with
    convolutions"). Returns float32 of shape ``[3, size, size]``, normalised with :data:`MEAN` and
    :data:`STD`.
    """

    size: int

    def __call__(self, image: Image) -> npt.NDArray[np.float32]:
        from PIL.Image import Resampling

        image = image.convert("RGB")
        box = random_box(*image.size)
        part = image.resize((self.size, self.size), Resampling.BILINEAR, box, reducing_gap=2.0)
        pixels = np.asarray(part)
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        normalised = (pixels.astype(np.float32) / np.float32(255) - MEAN) / STD
        return np.ascontiguousarray(normalised.transpose(2, 0, 1), np.float32)


def random_box(width: int, height: int) -> tuple[float, float, float, float]:
    """A random part of an image: left, top, right and bottom. The largest central part if none fits."""
    for _ in range(_TRIES):
        area = width * height * random.uniform(*_AREA)
        ratio = math.exp(random.uniform(*map(math.log, _RATIO)))
        across, down = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if across <= width and down <= height:
            left, top = random.uniform(0, width - across), random.uniform(0, height - down)
            return left, top, left + across, top + down
    across = min(width, height * _RATIO[1])
    down = min(height, width / _RATIO[0])
    left, top = (width - across) / 2, (height - down) / 2
    return left, top, left + across, top + down


def from_folder(folder: Path, size: int, batch_size: int) -> DataPipeline:
    """A dataset of the images in a folder with a folder for each class: ``(images, labels)`` in batches.

    Labels are the classes' places in the order of their names. Raises ``FileNotFoundError`` if there is no
    such folder, or no image in a folder of it.
    """
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    images = [
        (str(path), label)
        for label, members in enumerate(classes)
        for path in sorted(members.rglob("*"))
        if path.suffix.lower().lstrip(".") in EXTENSIONS
    ]
    if not images:
        raise FileNotFoundError(
            f"{folder} has no images in folders of classes: expected CLASS/NAME.jpg and the like "
            f"({', '.join(EXTENSIONS)})"
        )
    pipeline: Any = mpwds.DataPipeline(images).shuffle(_SHUFFLED).map(_Load(TrainingCrop(size)))
    dataset = pipeline.batched(batch_size)
    dataset.classes = [path.name for path in classes]
    return dataset  # type: ignore[no-any-return]  # stages are methods of any pipeline


def from_shards(urls: list[str], size: int, batch_size: int) -> DataPipeline:
    """A dataset of the images and classes (``cls``) in tar shards: ``(images, labels)`` in batches."""
    pipeline: Any = WebDataset(Names(*urls), shardshuffle=True)
    pairs = pipeline.shuffle(_SHUFFLED_SAMPLES).decode("pil")
    pairs = pairs.to_tuple(";".join(EXTENSIONS), "cls").map_tuple(TrainingCrop(size), int)
    return pairs.batched(batch_size)  # type: ignore[no-any-return]  # as above


@dataclass(frozen=True)
class _Load:
    crop: TrainingCrop

    def __call__(self, labelled: tuple[str, int]) -> tuple[npt.NDArray[np.float32], int]:
        path, label = labelled
        return self.crop(open_image(Path(path).read_bytes())), label
