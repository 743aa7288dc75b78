"""The demo's training: a small convolutional network, and a MultiLoader that feeds it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mpwds

if TYPE_CHECKING:
    import torch

    from mpwds.pipeline.dataset import DataPipeline
    from mpwds.stats.report import LoaderStats

SEED = 0  # two runs of the demo give the same figures
SHUFFLED_SAMPLES = 1000  # in each worker's shuffle buffer
IMAGES_SHOWN = 48

_SMALLEST_MAP = 4
_MOST_CHANNELS = 128


@dataclass(frozen=True)
class ImageTask:
    """Images to classify, for training and held out for the test.

    Both datasets yield batches of images, uint8 of shape (N, 3, size, size), and of class numbers, int64 of
    shape (N,).
    """

    train: DataPipeline
    held_out: DataPipeline
    train_samples: int
    held_out_samples: int
    names: Sequence[str]  # of the classes, in the order of their numbers
    size: int  # height and width of the images in pixels
    shards: int
    place: str  # where the shards are, for people


@dataclass(frozen=True)
class Outcome:
    """The result of training."""

    accuracy: float  # share of the held-out samples that are classified correctly
    stats: LoaderStats  # of the training, over all epochs
    images: Any  # the first ones, uint8 of shape (N, 3, size, size)
    labels: Any  # their class numbers


def train(task: ImageTask, *, epochs: int, workers: int, lr: float, loader: Any = None) -> Outcome:
    """Trains a network on a task, on the GPU if there is one, and tests it on the held-out samples.

    The learning rate falls from ``lr`` to 0 along a half cosine. ``loader`` delivers the task's training
    batches; by default, local workers do.
    """
    import torch

    torch.manual_seed(SEED)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - workers))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = small_cnn(len(task.names), task.size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    first: list[torch.Tensor] = []
    local = (
        mpwds.MultiLoader(task.train, workers=workers) if loader is None else contextlib.nullcontext(loader)
    )
    with local as loader:
        for epoch in range(1, epochs + 1):
            losses = []
            line = LiveLine()
            for images, labels in loader:
                first = first or [images[:IMAGES_SHOWN].clone(), labels[:IMAGES_SHOWN].clone()]
                loss = torch.nn.functional.cross_entropy(model(_scaled(images, device)), labels.to(device))
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                losses.append(loss.item())
                line.show(f"epoch {epoch}/{epochs}  batch {len(losses)}  loss {losses[-1]:.3f}")
            schedule.step()
            stats = loader.stats()
            line.clear()
            print(
                f"epoch {epoch}/{epochs}  loss {sum(losses) / len(losses):.3f}  "
                f"{stats.samples_per_s:,.0f} samples/s  waited {stats.waiting_share:.0%} for data",
                flush=True,
            )
    return Outcome(_accuracy(model, device, task, workers), loader.stats("start"), *first)


class LiveLine:
    """A line that a terminal redraws in place, ten times a second at most; elsewhere it is not shown."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def show(self, text: str) -> None:
        if sys.stdout.isatty() and time.monotonic() >= self._next_s:
            print(f"\r{text}\x1b[K", end="", flush=True)
            self._next_s = time.monotonic() + 0.1

    def clear(self) -> None:
        if sys.stdout.isatty():
            print("\r\x1b[K", end="", flush=True)


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


def _accuracy(model: torch.nn.Module, device: torch.device, task: ImageTask, workers: int) -> float:
    import torch

    model.eval()
    right = 0
    with torch.inference_mode(), mpwds.MultiLoader(task.held_out, workers=workers) as loader:
        for images, labels in loader:
            right += int((model(_scaled(images, device)).argmax(1) == labels.to(device)).sum())
    return right / task.held_out_samples


def _scaled(images: torch.Tensor, device: torch.device) -> torch.Tensor:
    return images.to(device).float() / 255 - 0.5
