"""The demo's training: a small convolutional network, a MultiLoader, and how long it waits for data."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mpwds
from mpwds.cli.progress import Progress

if TYPE_CHECKING:
    import torch

    from mpwds.pipeline.dataset import DataPipeline

SEED = 0
"""Two runs of the demo give the same figures."""

SHUFFLED_SAMPLES = 1000
"""Size of each worker's shuffle buffer."""

IMAGES_SHOWN = 48
"""Images of the first batch that the demo shows."""

_SMALLEST_MAP = 4
_MOST_CHANNELS = 128


@dataclass(frozen=True)
class ImageTask:
    """Images to classify, for training and held out for the test.

    Args:
        train: Yields batches of images, uint8 of shape (N, 3, size, size), and of class numbers, int64 of
            shape (N,).
        held_out: The same, of samples that ``train`` does not yield.
        train_samples: Number of samples in an epoch of ``train``.
        held_out_samples: Number of samples in ``held_out``.
        names: Names of the classes, in the order of their numbers.
        size: Height and width of the images in pixels.
        shards: Number of shards that all these come from.
        place: Where the shards are, for people.
    """

    train: DataPipeline
    held_out: DataPipeline
    train_samples: int
    held_out_samples: int
    names: Sequence[str]
    size: int
    shards: int
    place: str


@dataclass(frozen=True)
class Settings:
    """How to train; the learning rate falls from ``lr`` to 0 along a half cosine."""

    epochs: int
    workers: int
    lr: float


@dataclass
class Outcome:
    """The result of training.

    Attributes:
        accuracy: Share of the held-out samples that are classified correctly.
        samples: Samples trained on, over all epochs.
        seconds: Time spent training, without the test at the end.
        waited_s: The part of it spent in the loader's ``next()``.
        first_batch_s: The part of that until the first batch came, with the workers' start.
        images: The first images, uint8 of shape (N, 3, size, size), at most 48.
        labels: Their class numbers.
    """

    accuracy: float = 0.0
    samples: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    first_batch_s: float = 0.0
    images: Any = None
    labels: Any = None

    @property
    def waiting(self) -> float:
        """Share of the training time after the first batch that was spent waiting for data."""
        return (self.waited_s - self.first_batch_s) / (self.seconds - self.first_batch_s)


def train(task: ImageTask, settings: Settings, progress: Progress) -> Outcome:
    """Trains a network on a task, on the GPU if there is one, and tests it on the held-out samples."""
    import torch

    torch.manual_seed(SEED)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - settings.workers))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = small_cnn(len(task.names), task.size).to(device)
    outcome = Outcome()
    _fit(model, device, task, settings, outcome, progress)
    progress.show("testing on the held-out samples")
    outcome.accuracy = _accuracy(model, device, task, settings)
    return outcome


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


def _fit(
    model: torch.nn.Module,
    device: torch.device,
    task: ImageTask,
    settings: Settings,
    outcome: Outcome,
    progress: Progress,
) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.epochs)
    model.train()
    with mpwds.MultiLoader(task.train, workers=settings.workers) as loader:
        for epoch in range(1, settings.epochs + 1):
            watch = _Stopwatch()
            samples, loss_sum, line = 0, 0.0, ""
            for images, labels in watch.timed(loader):
                if outcome.images is None:
                    outcome.images, outcome.labels = (
                        images[:IMAGES_SHOWN].clone(),
                        labels[:IMAGES_SHOWN].clone(),
                    )
                loss = torch.nn.functional.cross_entropy(model(_scaled(images, device)), labels.to(device))
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                samples += len(labels)
                loss_sum += loss.item() * len(labels)
                line = (
                    f"epoch {epoch}/{settings.epochs}  loss {loss_sum / samples:.3f}  "
                    f"{samples / watch.seconds:,.0f} samples/s  "
                    f"waited {watch.waited_s / watch.seconds:.0%} for data"
                )
                progress.show(line, (epoch - 1 + samples / task.train_samples) / settings.epochs)
            schedule.step()
            progress.milestone(line, epoch / settings.epochs)
            outcome.samples += samples
            outcome.seconds += watch.seconds
            outcome.waited_s += watch.waited_s
            if epoch == 1:
                outcome.first_batch_s = watch.first_s


def _accuracy(model: torch.nn.Module, device: torch.device, task: ImageTask, settings: Settings) -> float:
    import torch

    model.eval()
    right = 0
    with torch.inference_mode(), mpwds.MultiLoader(task.held_out, workers=settings.workers) as loader:
        for images, labels in loader:
            right += int((model(_scaled(images, device)).argmax(1) == labels.to(device)).sum())
    return right / task.held_out_samples


def _scaled(images: torch.Tensor, device: torch.device) -> torch.Tensor:
    return images.to(device).float() / 255 - 0.5


class _Stopwatch:
    """Measures an epoch, and the part of it spent waiting for batches."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self.waited_s = 0.0
        self.first_s = 0.0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began_s

    def timed(self, loader: Iterable[Any]) -> Iterator[Any]:
        asked_s = time.perf_counter()
        batches = iter(loader)
        for batch in batches:
            self.waited_s += time.perf_counter() - asked_s
            self.first_s = self.first_s or self.waited_s
            yield batch
            asked_s = time.perf_counter()
        self.waited_s += time.perf_counter() - asked_s
