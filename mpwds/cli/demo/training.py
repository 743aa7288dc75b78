"""The demo's data, the user's image shards or scikit-learn's digits, and a small network that learns them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mpwds
from mpwds.cli.console import progress
from mpwds.errors import ShardError
from mpwds.pipeline.sources.samples import read_samples
from mpwds.storage.streams.gopen import exists
from mpwds.storage.streams.urls import local_path

if TYPE_CHECKING:
    import torch

    from mpwds.stats.report import LoaderStats

SAMPLES = 1797
"""How many digits there are."""

_SEED = 0  # two runs of the demo give the same figures
_SHUFFLED_SAMPLES = 1000  # in each worker's shuffle buffer
_IMAGES_SHOWN = 48
_SMALLEST_MAP = 4
_MOST_CHANNELS = 128
_SAMPLES_PER_SHARD = 113  # digits: 12 shards to train on, 4 held out
_TRAIN_SAMPLES = 12 * _SAMPLES_PER_SHARD
_BRIGHTEST = 16
# Fields that may hold a sample's image; the first present counts.
_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm")
_HELD_OUT_ONE_IN = 10
_LARGEST_LABEL = (1 << 63) - 1
_LABELS_PER_BATCH = 256


@dataclass(frozen=True)
class ImageTask:
    """Images to classify, for training and held out for the test.

    Both datasets yield batches of images, uint8 of shape (N, 3, size, size), and of class numbers, int64 of
    shape (N,). ``names`` are those of the classes.
    """

    train: mpwds.DataPipeline
    held_out: mpwds.DataPipeline
    train_samples: int
    held_out_samples: int
    names: Sequence[str]
    size: int
    shards: int


@dataclass(frozen=True)
class Outcome:
    """The result of training: the share of held-out samples classified correctly, statistics over all epochs,
    and the first images, uint8 of shape (N, 3, size, size), with their class numbers."""

    accuracy: float
    stats: LoaderStats
    images: torch.Tensor
    labels: torch.Tensor


def image_task(
    urls: Sequence[str], held_out_urls: Sequence[str] = (), *, size: int, batch_size: int, workers: int = 0
) -> ImageTask:
    """The task of classifying the images of shards.

    A first pass reads the labels of all samples, without decoding images, to count samples and classes.
    Labels may be any whole numbers from 0; the classes are those that occur, in their order. Without
    ``held_out_urls``, every tenth sample is held out, chosen by its key: the same ones in every run.
    """
    for url in (*urls, *held_out_urls):
        if not exists(url):
            raise FileNotFoundError(errno.ENOENT, "there is no such shard", local_path(url))
    train_labels, held_out_labels = _count_labels(urls, workers)
    if held_out_urls:
        train_labels += held_out_labels
        held_out_labels = sum(_count_labels(held_out_urls, workers), Counter())
    _check(train_labels, held_out_labels, " ".join(urls), " ".join(held_out_urls))
    classes = {label: number for number, label in enumerate(sorted(train_labels.keys() | held_out_labels))}

    def batches(dataset: mpwds.WebDataset) -> mpwds.WebDataset:
        return (
            dataset.decode(only="cls")
            .map_dict(cls=classes.__getitem__)
            .resize_center_crop(";".join(_IMAGES), size, size, layout="CHW")
            .to_tuple(";".join(_IMAGES), "cls")
            .batched(batch_size)
        )

    train = mpwds.WebDataset(urls, shardshuffle=True, seed=_SEED, empty_check=False)
    held_out = mpwds.WebDataset(held_out_urls or urls, empty_check=False)
    if not held_out_urls:
        train, held_out = train.select(lambda sample: not _is_held_out(sample)), held_out.select(_is_held_out)
    datasets = batches(train.shuffle(_SHUFFLED_SAMPLES)), batches(held_out)
    counts = train_labels.total(), held_out_labels.total()
    return ImageTask(*datasets, *counts, list(map(str, classes)), size, len(urls) + len(held_out_urls))


def _count_labels(urls: Sequence[str], workers: int) -> tuple[Counter[int], Counter[int]]:
    """Counts the samples of each label: nine tenths to train on, and the tenth to hold out."""
    dataset = mpwds.WebDataset(urls, empty_check=False).map(_label)
    train: Counter[int] = Counter()
    held_out: Counter[int] = Counter()
    options: dict[str, Any] = {"workers": min(workers, len(urls)), "in_order": False, "output": "numpy"}
    with (
        mpwds.MultiLoader(dataset.batched(_LABELS_PER_BATCH), **options) as loader,
        progress(None) as advance,
    ):
        for labels, are_held_out in loader:
            train.update(labels[~are_held_out].tolist())
            held_out.update(labels[are_held_out].tolist())
            advance(len(labels), "reading labels")
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
            f"{where}: none of its {held_out.total()} held-out samples has a label that is trained on"
        )


def _label(sample: dict[str, Any]) -> tuple[int, bool]:
    """A sample's label, and whether it is in the tenth to hold out; checks that there is an image, too."""
    fields = ", ".join(name for name in sample if not name.startswith("__"))
    if not any(name in sample for name in _IMAGES):
        raise ValueError(f"no image ({', '.join(_IMAGES)}): the sample holds {fields}")
    if "cls" not in sample:
        raise ValueError(f"no label (cls): the sample holds {fields}")
    text = sample["cls"]
    with contextlib.suppress(ValueError):
        if 0 <= int(text) <= _LARGEST_LABEL:
            return int(text), _is_held_out(sample)
    raise ValueError(f"the label in cls is {text[:40]!r}, expected a whole number from 0")


def _is_held_out(sample: dict[str, Any]) -> bool:
    key = sample["__key__"].encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") % _HELD_OUT_ONE_IN == 0


def default_cache_dir() -> Path:
    """The default folder of the digits: ``mpwds/digits`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "mpwds" / "digits"


def digits_task(directory: Path, batch_size: int = 64) -> ImageTask:
    """The task of classifying the digits that :func:`ensure_digits` wrote to ``directory``."""
    return image_task(_paths(directory, "train"), _paths(directory, "test"), size=8, batch_size=batch_size)


def ensure_digits(directory: Path) -> bool:
    """Writes the digits to ``directory`` unless they are there and readable; returns whether it did.

    1,797 images of 8 x 8 pixels as grey PNG, with their class in ``.cls``, in 12 shards to train on and 4 to
    test. The bytes are the same on every run, and each shard appears only when it is complete, so several
    processes may do this at the same time.

    Source:
        "Optical Recognition of Handwritten Digits" of the UCI Machine Learning Repository, as
        ``sklearn.datasets.load_digits`` has it.
    """
    with contextlib.suppress(OSError, ShardError):
        paths = (*_paths(directory, "train"), *_paths(directory, "test"))
        counts = [sum(1 for _ in read_samples(path)) for path in paths]
        if max(counts) == _SAMPLES_PER_SHARD and sum(counts) == SAMPLES:
            return False
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise ImportError("the digits come with scikit-learn: pip install 'mpwds[demo]'") from error
    digits = load_digits()
    images, labels = (digits.images * (255 / _BRIGHTEST)).round().astype("uint8"), digits.target
    directory.mkdir(parents=True, exist_ok=True)
    parts = train_test_split(range(SAMPLES), train_size=_TRAIN_SAMPLES, stratify=labels, random_state=_SEED)
    for part, indices in zip(("train", "test"), parts, strict=True):
        pattern = f"{directory}/".replace("%", "%%") + f"digits-{part}-%03d.tar"
        with mpwds.ShardWriter(pattern, maxcount=_SAMPLES_PER_SHARD, verbose=0, mtime=0) as sink:
            for index in indices:
                sink.write({"__key__": f"digit-{index:04d}", "png": images[index], "cls": labels[index]})
    return True


def _paths(directory: Path, part: str) -> list[str]:
    shards = 12 if part == "train" else 4
    return [str(directory / f"digits-{part}-{number:03d}.tar") for number in range(shards)]


def train(task: ImageTask, *, epochs: int, workers: int, lr: float, loader: Any = None) -> Outcome:
    """Trains a network on a task, on the GPU if there is one, and tests it on the held-out samples.

    The learning rate falls from ``lr`` to 0 along a half cosine. ``loader`` delivers the task's training
    batches; by default, local workers do.
    """
    import torch

    torch.manual_seed(_SEED)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - workers))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = small_cnn(len(task.names), task.size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    first: list[torch.Tensor] = []
    given: Any = None if loader is None else contextlib.nullcontext(loader)
    with given or mpwds.MultiLoader(task.train, workers=workers) as loader:
        for epoch in range(1, epochs + 1):
            losses = []
            with progress(task.train_samples) as advance:
                for images, labels in loader:
                    first = first or [images[:_IMAGES_SHOWN].clone(), labels[:_IMAGES_SHOWN].clone()]
                    scores = model(_scaled(images, device))
                    loss = torch.nn.functional.cross_entropy(scores, labels.to(device))
                    optimizer.zero_grad()
                    torch.autograd.backward(loss)
                    optimizer.step()
                    losses.append(loss.item())
                    advance(len(labels), f"epoch {epoch}/{epochs}  loss {losses[-1]:.3f}")
            schedule.step()
            stats = loader.stats()
            print(
                f"epoch {epoch}/{epochs}  loss {sum(losses) / len(losses):.3f}  "
                f"{stats.samples_per_s:,.0f} samples/s  waited {stats.waiting_share:.0%} for data",
                flush=True,
            )
        stats = loader.stats("start")
    right = 0
    model.eval()
    with torch.inference_mode(), mpwds.MultiLoader(task.held_out, workers=workers) as tests:
        for images, labels in tests:
            right += int((model(_scaled(images, device)).argmax(1) == labels.to(device)).sum())
    return Outcome(right / task.held_out_samples, stats, *first)


def small_cnn(classes: int, size: int) -> torch.nn.Sequential:
    """A network for RGB images of at least 8 x 8 pixels: convolutions, each at half the size, then linear.

    Example:
        >>> import torch
        >>> small_cnn(classes=10, size=8)(torch.zeros(5, 3, 8, 8)).shape
        torch.Size([5, 10])
    """
    from torch import nn

    def convolution(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    channels = 64 if size < 32 else 16
    layers = convolution(3, channels)
    while size > _SMALLEST_MAP:
        wider = min(2 * channels, _MOST_CHANNELS)
        layers += [nn.MaxPool2d(2), *convolution(channels, wider)]
        channels, size = wider, size // 2
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(4 * channels, classes))


def _scaled(images: torch.Tensor, device: torch.device) -> torch.Tensor:
    return images.to(device).float() / 255 - 0.5
