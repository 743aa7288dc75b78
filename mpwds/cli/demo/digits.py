"""The demo's own dataset: scikit-learn's handwritten digits, as tar shards in a cache folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mpwds.cli.demo.training import SEED, SHUFFLED_SAMPLES, ImageTask

SAMPLES = 1797
CLASSES = 10
SIZE = 8
TRAIN_SHARDS = 12
HELD_OUT_SHARDS = 4

_SAMPLES_PER_SHARD = -(-SAMPLES // (TRAIN_SHARDS + HELD_OUT_SHARDS))
_TRAIN_SAMPLES = TRAIN_SHARDS * _SAMPLES_PER_SHARD
_BRIGHTEST = 16


def default_cache_dir() -> Path:
    """The default folder of the digits: ``mpwds/digits`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "mpwds" / "digits"


def digits_task(directory: Path, batch_size: int) -> ImageTask:
    """The task of classifying the digits that :func:`ensure_digits` wrote to ``directory``."""
    import mpwds

    def batches(dataset: mpwds.WebDataset) -> mpwds.WebDataset:
        return (
            dataset.decode("rgb8")
            .to_tuple("png", "cls")
            .map_tuple(lambda image: image.transpose(2, 0, 1), None)
            .batched(batch_size)
        )

    train = mpwds.WebDataset(_paths(directory, "train"), shardshuffle=True, seed=SEED)
    return ImageTask(
        train=batches(train.shuffle(SHUFFLED_SAMPLES)),
        held_out=batches(mpwds.WebDataset(_paths(directory, "test"))),
        train_samples=_TRAIN_SAMPLES,
        held_out_samples=SAMPLES - _TRAIN_SAMPLES,
        names=[str(digit) for digit in range(CLASSES)],
        size=SIZE,
        shards=TRAIN_SHARDS + HELD_OUT_SHARDS,
        place=str(directory),
    )


def ensure_digits(directory: Path) -> bool:
    """Writes the digits to ``directory`` unless they are there and readable; returns whether it did.

    1,797 images of 8 x 8 pixels as grey PNG, with their class in ``.cls``, in 12 shards to train on and 4 to
    test. The bytes are the same on every run, and each shard appears only when it is complete, so several
    processes may do this at the same time.

    Source:
        "Optical Recognition of Handwritten Digits" of the UCI Machine Learning Repository, as
        ``sklearn.datasets.load_digits`` has it.
    """
    if _is_complete(directory):
        return False
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise ImportError("the digits come with scikit-learn: pip install 'mpwds[demo]'") from error
    digits = load_digits()
    images, labels = (digits.images * (255 / _BRIGHTEST)).round().astype("uint8"), digits.target
    directory.mkdir(parents=True, exist_ok=True)
    train, test = train_test_split(
        range(SAMPLES), train_size=_TRAIN_SAMPLES, stratify=labels, random_state=SEED
    )
    _write(directory, "train", train, images, labels)
    _write(directory, "test", test, images, labels)
    return True


def _write(directory: Path, part: str, indices: list[int], images: Any, labels: Any) -> None:
    import mpwds

    pattern = f"{directory}/".replace("%", "%%") + f"digits-{part}-%03d.tar"
    with mpwds.ShardWriter(pattern, maxcount=_SAMPLES_PER_SHARD, verbose=0, mtime=0) as sink:
        for index in indices:
            sink.write({"__key__": f"digit-{index:04d}", "png": images[index], "cls": labels[index]})


def _is_complete(directory: Path) -> bool:
    from mpwds.errors import ShardError
    from mpwds.pipeline.sources.samples import read_samples

    try:
        paths = (*_paths(directory, "train"), *_paths(directory, "test"))
        counts = [sum(1 for _ in read_samples(path)) for path in paths]
    except (OSError, ShardError):
        return False
    return max(counts) == _SAMPLES_PER_SHARD and sum(counts) == SAMPLES


def _paths(directory: Path, part: str) -> list[str]:
    shards = TRAIN_SHARDS if part == "train" else HELD_OUT_SHARDS
    return [str(directory / f"digits-{part}-{number:03d}.tar") for number in range(shards)]
