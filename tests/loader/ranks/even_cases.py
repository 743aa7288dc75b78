"""What ``test_even_distributed`` runs on each rank: epochs of many kinds, a step of all ranks for each batch.

Writes what each rank saw to ``<folder>/<rank>.json``.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from mpwds import MultiLoader, WebDataset

FOLDER = Path(sys.argv[-1])
SHARDS = str(FOLDER / "part-{0..4}.tar")


def number_of(sample):
    return int(sample["cls"])


def keys(**given):
    """Numbers of samples, of a pipeline whose length is not known: ``map`` may drop samples."""
    return WebDataset(SHARDS, empty_check=False, **given).map(number_of)


def whole_shards():
    """The same, of a pipeline that keeps every sample."""
    return WebDataset(SHARDS, shardshuffle=True, empty_check=False).decode().to_tuple("cls")


def odd(number):
    return number % 2 == 1 or number > 20


def epoch_of(loader):
    """The numbers in the batches of an epoch, one after the other with a step that needs all ranks."""
    batches = []
    for batch in loader:
        step = torch.ones(1)
        dist.all_reduce(step)
        assert step.item() == dist.get_world_size()
        numbers = batch[0] if isinstance(batch, (tuple, list)) else batch
        batches.append([int(number) for number in numbers])
    return batches


def epochs_of(loader, number=2):
    with loader:
        return [epoch_of(loader) for _ in range(number)]


def modes(make, even=("drop", "pad", "wrap")):
    return {each: epochs_of(make(each)) for each in even}


def validation_in_between():
    """An epoch of another loader in the middle of one."""
    training = MultiLoader(keys().batched(2), workers=0, even="drop")
    validation = MultiLoader(keys().batched(3), workers=0, even="pad")
    batches = []
    for number, batch in enumerate(training):
        batches.append(batch.tolist())
        if number == 1:
            between = epoch_of(validation)
    return [batches, between]


def trained(even):
    """What a model has learnt by gradients averaged over the ranks, as each of them sees it."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with MultiLoader(keys().batched(4), workers=0, even=even) as loader:
        for batch in loader.rebatched(3, shuffle=20):
            optimizer.zero_grad()
            inputs = batch.float().unsqueeze(1)
            torch.nn.functional.mse_loss(model(inputs), 2 * inputs).backward()
            optimizer.step()
    return [parameter.tolist() for parameter in model.parameters()]


def main():
    dist.init_process_group("gloo")
    found = {
        "unknown": modes(lambda even: MultiLoader(keys().select(odd).batched(2), workers=0, even=even)),
        "shards": modes(lambda even: MultiLoader(whole_shards().batched(2), workers=0, even=even)),
        "rebatched": modes(
            lambda even: MultiLoader(keys().batched(4), workers=0, even=even).rebatched(3, shuffle=9)
        ),
        "workers": modes(
            lambda even: MultiLoader(keys(shardshuffle=True).batched(2), workers=2, even=even), ["wrap"]
        ),
        "as they come": modes(
            lambda even: MultiLoader(
                keys().batched(2), workers=2, even=even, in_order=False, persistent=False, start_method="fork"
            ),
            ["pad"],
        ),
        "in between": validation_in_between(),
        "trained": {even: trained(even) for even in ("drop", "pad", "wrap")},
    }
    (FOLDER / f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
