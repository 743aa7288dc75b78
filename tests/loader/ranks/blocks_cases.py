"""What ``test_even_distributed`` runs on each of five ranks, which agree in blocks of three and two.

Writes the numbers of each epoch and the error of the last one to ``<folder>/<rank>.json``.
"""

import json
import sys
from pathlib import Path

import torch.distributed as dist

from mpwds import DataPipeline, EvenEpochError, MultiLoader
from mpwds.loader import even

FOLDER = Path(sys.argv[-1])


def kept(number):
    return number if number % 3 or number > 40 else None


def refused(number):
    if number == 53:
        raise OSError("no such sample")
    return kept(number)


if __name__ == "__main__":
    even.MOST_IN_MESH = 3
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with MultiLoader(DataPipeline(range(60)).map(kept), workers=0, even="drop") as loader:
        epochs = [[int(number) for number in loader] for _ in range(2)]
    error = ""
    try:
        with MultiLoader(DataPipeline(range(60)).map(refused), workers=0, even="drop") as loader:
            list(loader)
    except (EvenEpochError, OSError) as raised:
        error = f"{type(raised).__name__}: {raised}"
    (FOLDER / f"{rank}.json").write_text(json.dumps([epochs, error]))
    dist.barrier()
    dist.destroy_process_group()
