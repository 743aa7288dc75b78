"""Measures how batches get to a GPU: what the link gives, what loaders make of it, what of it is hidden.

    python tools/bench/device.py              # about three minutes
    python tools/bench/device.py --seconds 0.5

*Link*: the same bytes copied again and again from memory that is pageable, that torch has pinned, and from a
batch of ``MultiLoader(pin_memory=True)``, which lies in shared memory that is registered with CUDA. The last
two should be alike.

*Loaders*: workers yield a ready batch again and again, so that nothing but the way to the device is measured.
``to`` is ``batch.to("cuda", non_blocking=True)`` in the loop.

*Overlap*: a step of matrix products that takes about as long as the copy of a batch. ``both`` is a loop that
copies and computes; hidden is the part of the copy's time that it does not add. The loop reads the loss back
in each step (``synchronous``) or does not.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
import torch.utils.data

import mpwds

SHAPE = (64, 3, 224, 224)
NBYTES = 64 * 3 * 224 * 224 * 4


class ReadyBatches(torch.utils.data.IterableDataset[torch.Tensor]):
    """Yields a batch for ever, a little changed each time."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        batch = torch.ones(SHAPE)
        for number in itertools.count():
            batch.view(-1)[number % 1000] = number % 100
            yield batch


def rate(step: Callable[[], object], seconds: float) -> float:
    """Calls of ``step`` a second, with all the work that they begin."""
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    count = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        step()
        count += 1
        if count % 20 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return count / (time.perf_counter() - start)


def measure_link(seconds: float) -> None:
    print("Link, copies of a batch of 38.5 MB")
    target = torch.empty(SHAPE, device="cuda")
    with mpwds.MultiLoader(ReadyBatches(), workers=1, pin_memory=True) as loader:
        batch = next(iter(loader))
        sources = {
            "pageable": torch.ones(SHAPE),
            "pinned by torch": torch.ones(SHAPE).pin_memory(),
            "batch of MultiLoader(pin_memory=True)": batch,
        }
        for name, source in sources.items():
            copies = rate(partial(target.copy_, source, non_blocking=True), seconds)
            print(f"  {name:40} {copies * NBYTES / 1e9:8.1f} GB/s   is_pinned {source.is_pinned()}")


def loaders(workers: int) -> Iterator[tuple[str, Iterator[torch.Tensor]]]:
    """Batches on the device for ever, by each way there, one after the other."""
    dataset = ReadyBatches()
    theirs = {"batch_size": None, "num_workers": workers, "pin_memory": True}
    copied: dict[str, Callable[[], Iterable[Any]]] = {
        "torch DataLoader(pin_memory=True), to": lambda: torch.utils.data.DataLoader(dataset, **theirs),
        "mpwds DataLoader(pin_memory=True), to": lambda: mpwds.DataLoader(dataset, **theirs),
        "MultiLoader, to": lambda: mpwds.MultiLoader(dataset, workers),
        "MultiLoader(pin_memory=True), to": lambda: mpwds.MultiLoader(dataset, workers, pin_memory=True),
    }
    for name, make in copied.items():
        yield name, (batch.to("cuda", non_blocking=True) for batch in make())
    yield "MultiLoader(device='cuda')", iter(mpwds.MultiLoader(dataset, workers, device="cuda"))


def measure_loaders(workers: int, seconds: float) -> None:
    print(f"Loaders, {workers} workers")
    for name, batches in loaders(workers):
        per_second = rate(batches.__next__, seconds)
        print(f"  {name:40} {per_second:8.0f} batches/s {per_second * NBYTES / 1e9:8.1f} GB/s", flush=True)


def measure_overlap(workers: int, seconds: float) -> None:
    matrix = torch.randn(2048, 2048, device="cuda") / 50
    source, target = torch.ones(SHAPE).pin_memory(), torch.empty(SHAPE, device="cuda")
    copy_s = 1 / rate(lambda: target.copy_(source, non_blocking=True), seconds)
    product_s = 1 / rate(lambda: matrix @ matrix, seconds)
    products = max(1, round(copy_s / product_s))

    def step(batches: Iterator[torch.Tensor], synchronous: bool) -> None:
        result = matrix * next(batches).view(-1)[0]
        for _ in range(products):
            result = result @ matrix
        if synchronous:
            result[0, 0].item()

    for synchronous in (False, True):
        compute_s = 1 / rate(partial(step, itertools.repeat(target), synchronous), seconds)
        print(
            f"Overlap, {'synchronous' if synchronous else 'asynchronous'} steps: a copy takes "
            f"{copy_s * 1e3:.2f} ms, a step {compute_s * 1e3:.2f} ms"
        )
        for name, batches in loaders(workers):
            both_s = 1 / rate(partial(step, batches, synchronous), seconds)
            hidden = (compute_s + copy_s - both_s) / copy_s
            print(f"  {name:40} both {both_s * 1e3:8.2f} ms   hidden {hidden:6.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device")
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    measure_link(options.seconds)
    measure_loaders(options.workers, options.seconds)
    measure_overlap(options.workers, options.seconds)


if __name__ == "__main__":
    main()
