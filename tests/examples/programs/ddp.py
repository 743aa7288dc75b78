"""Fits a model by distributed data parallel training.

torchrun --nproc-per-node 2 ddp.py FOLDER [--epochs 2] [--workers 1] [--no-training]
"""

import argparse
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Vectors(Dataset):
    def __init__(self, folder):
        self.vectors = np.load(os.path.join(folder, "vectors.npy"), mmap_mode="r")
        self.targets = np.load(os.path.join(folder, "targets.npy"))

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return index, torch.tensor(self.vectors[index]), self.targets[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--no-training", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    dataset = Vectors(args.folder)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True, seed=3)
    loader = DataLoader(
        dataset, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers, drop_last=False
    )
    model = DistributedDataParallel(torch.nn.Linear(dataset.vectors.shape[1], 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch in range(args.epochs):
        began = time.perf_counter()
        sampler.set_epoch(epoch)
        seen = []
        total = torch.zeros(())
        for indices, vectors, targets in loader:
            if args.no_training:
                continue
            loss = torch.nn.functional.mse_loss(model(vectors)[:, 0], targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += indices.tolist()
            total += loss.detach()
        dist.all_reduce(total)
        every = [None] * world_size
        dist.all_gather_object(every, seen)
        if rank == 0:
            print(f"epoch {epoch}: {total.item().hex()}")
            for number, part in enumerate(every):
                print(f"epoch {epoch} rank {number}: {part}")
            print(f"seconds {time.perf_counter() - began:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
