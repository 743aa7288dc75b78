"""A rank of a job: prints what it is given in two even epochs, by servers or by workers of its own."""

import sys

import torch.distributed

import mpwds
from tests.feed.faults.checking import rows
from tests.feed.serving import bits


def few(batch):
    return batch[1][0] % 3 > 0


def unequal(**options):
    """Ranks and workers have different numbers of batches, which nobody knows in advance."""
    return rows(batches=45, **options).select(few)


def main():
    torch.distributed.init_process_group("gloo")
    even, url, *_ = *sys.argv[1:], ""
    if url:
        loader = mpwds.RemoteLoader(url, even=even, output="numpy")
    else:
        loader = mpwds.MultiLoader(unequal(), workers=2, even=even, output="numpy", start_method="spawn")
    with loader:
        for _ in range(2):
            batches = [bits(batch) for batch in loader]
            print(len(batches), *batches)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
