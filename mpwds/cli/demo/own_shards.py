"""The user's own image shards as a task for the demo."""

from __future__ import annotations

import errno
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import mpwds
from mpwds.cli.demo.training import SEED, SHUFFLED_SAMPLES, ImageTask, LiveLine
from mpwds.pipeline.decoding.decoders import handle_extension
from mpwds.pipeline.decoding.images import open_image
from mpwds.storage.streams.patterns import expand_urls
from mpwds.storage.streams.urls import local_path

if TYPE_CHECKING:
    from PIL.Image import Image

# Fields of a sample that may hold its image; the first one present counts.
IMAGE_FIELDS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm")

_LABEL_FIELD = "cls"
_HELD_OUT_ONE_IN = 10
_LARGEST_LABEL = (1 << 63) - 1
_LABELS_PER_BATCH = 256


def own_task(
    patterns: Sequence[str], held_out_patterns: Sequence[str], *, size: int, batch_size: int, workers: int
) -> ImageTask:
    """The task of classifying the images of the user's shards.

    A first pass reads the labels of all samples, without decoding images, to count samples and classes.
    Labels may be any whole numbers from 0; the classes are those that occur, in their order. Without
    ``held_out_patterns``, every tenth sample is held out, chosen by its key: the same ones in every run.

    Raises:
        FileNotFoundError: A shard does not exist.
        ShardError: A shard is damaged or not a tar file.
        ValueError: A sample has no image or no label; there are no samples to train on or to hold out; all
            samples to train on have one class; or no held-out sample has a class to train on.
    """
    urls, held_out_urls = _existing(patterns), _existing(held_out_patterns)
    if held_out_urls:
        train_labels, _ = _count_labels(urls, lambda sample: False, workers)
        _, held_out_labels = _count_labels(held_out_urls, lambda sample: True, workers)
    else:
        train_labels, held_out_labels = _count_labels(urls, _is_held_out, workers)
    _check(train_labels, held_out_labels, " ".join(patterns), " ".join(held_out_patterns))
    labels = sorted(train_labels.keys() | held_out_labels)
    classes = {label: number for number, label in enumerate(labels)}

    def batches(dataset: mpwds.WebDataset) -> mpwds.WebDataset:
        return (
            dataset.decode(
                handle_extension(" ".join(IMAGE_FIELDS), partial(fit, size=size)),
                only=(*IMAGE_FIELDS, _LABEL_FIELD),
            )
            .to_tuple(";".join(IMAGE_FIELDS), _LABEL_FIELD)
            .map_tuple(None, classes.__getitem__)
            .batched(batch_size)
        )

    train = mpwds.WebDataset(urls, shardshuffle=True, seed=SEED, empty_check=False)
    held_out = mpwds.WebDataset(held_out_urls or urls, empty_check=False)
    if not held_out_urls:
        train, held_out = train.select(lambda sample: not _is_held_out(sample)), held_out.select(_is_held_out)
    return ImageTask(
        train=batches(train.shuffle(SHUFFLED_SAMPLES)),
        held_out=batches(held_out),
        train_samples=train_labels.total(),
        held_out_samples=held_out_labels.total(),
        names=[str(label) for label in classes],
        size=size,
        shards=len(urls) + len(held_out_urls),
        place=" ".join((*patterns, *held_out_patterns)),
    )


def _count_labels(urls: list[str], is_held_out: Any, workers: int) -> tuple[Counter[int], Counter[int]]:
    """How many samples of each label there are to train on, and held out."""
    dataset = mpwds.WebDataset(urls, empty_check=False).map(partial(_label, is_held_out=is_held_out))
    train: Counter[int] = Counter()
    held_out: Counter[int] = Counter()
    with mpwds.MultiLoader(
        dataset.batched(_LABELS_PER_BATCH), workers=min(workers, len(urls)), in_order=False, output="numpy"
    ) as loader:
        line = LiveLine()
        for labels, are_held_out in loader:
            train.update(labels[~are_held_out].tolist())
            held_out.update(labels[are_held_out].tolist())
            line.show(f"reading labels  {train.total() + held_out.total():,} samples")
        line.clear()
    return train, held_out


def _check(train: Counter[int], held_out: Counter[int], data: str, test: str) -> None:
    samples = train.total() + held_out.total()
    if not samples or (test and not train):
        raise ValueError(f"--data {data}: there are no samples in it")
    if test and not held_out:
        raise ValueError(f"--test {test}: there are no samples in it")
    if not held_out or not train:
        raise ValueError(
            f"--data {data}: of its {samples} samples, one in {_HELD_OUT_ONE_IN} is held out. That leaves "
            f"{train.total()} for training and {held_out.total()} for the test: give more samples, or name "
            "the held-out shards with --test"
        )
    if len(train) == 1:
        raise ValueError(
            f"--data {data}: all {train.total()} samples to train on have the label {min(train)}, and with "
            "one class there is nothing to learn"
        )
    if train.keys().isdisjoint(held_out):
        where = f"--test {test}" if test else f"--data {data}"
        raise ValueError(
            f"{where}: none of its {held_out.total()} held-out samples has a label that occurs among those "
            "to train on"
        )


def _existing(patterns: Sequence[str]) -> list[str]:
    urls = [url for pattern in patterns for url in expand_urls(pattern)]
    for url in urls:
        path = local_path(url)
        if not os.path.exists(path):
            raise FileNotFoundError(errno.ENOENT, "there is no such shard", path)
    return urls


def _label(sample: dict[str, Any], is_held_out: Any) -> tuple[int, bool]:
    """A sample's label, and whether it is held out; checks that there is an image, too."""
    fields = [name for name in sample if not name.startswith("__")]
    if not any(name in sample for name in IMAGE_FIELDS):
        raise ValueError(f"no image ({', '.join(IMAGE_FIELDS)}): the sample holds {', '.join(fields)}")
    if _LABEL_FIELD not in sample:
        raise ValueError(f"no label ({_LABEL_FIELD}): the sample holds {', '.join(fields)}")
    text = sample[_LABEL_FIELD]
    try:
        label = int(text)
    except ValueError:
        label = -1
    if not 0 <= label <= _LARGEST_LABEL:
        raise ValueError(f"the label in {_LABEL_FIELD} is {text[:40]!r}, expected a whole number from 0")
    return label, is_held_out(sample)


def _is_held_out(sample: dict[str, Any]) -> bool:
    key = sample["__key__"].encode("utf-8", "surrogateescape")
    digest = hashlib.blake2b(key, digest_size=8).digest()
    return int.from_bytes(digest, "little") % _HELD_OUT_ONE_IN == 0


def fit(data: bytes, size: int) -> npt.NDArray[np.uint8]:
    """Decodes an image to a square of RGB pixels: scaled until its shorter side fits, the middle cut out.

    Returns:
        uint8 of shape (3, size, size).

    Example:
        >>> fit(b"P5 4 2 255 " + bytes([9, 0, 255, 9] * 2), size=2)[0].tolist()
        [[0, 255], [0, 255]]
    """
    with open_image(data) as image:
        import PIL.Image
        import PIL.ImageOps

        image.draft("RGB", (size, size))  # a large JPEG is decoded at a fraction of its resolution
        upright = PIL.ImageOps.exif_transpose(image)
        square = PIL.ImageOps.fit(_as_rgb(upright), (size, size), PIL.Image.Resampling.BILINEAR)
    pixels: npt.NDArray[np.uint8] = np.asarray(square).transpose(2, 0, 1)
    return pixels


def _as_rgb(image: Image) -> Image:
    if image.mode.startswith("I"):  # 16 bits: convert() would clip at 255 instead of scaling
        import PIL.Image

        high_bytes: npt.NDArray[Any] = np.clip(np.asarray(image) >> 8, 0, 255)
        image = PIL.Image.fromarray(high_bytes.astype(np.uint8))
    return image.convert("RGB")
