"""What ``test_rounds_distributed`` runs on each rank: some steps of even epochs of streams, from a state.

Reads states from ``<folder>/state.json``. Writes what each rank saw, and its states, to
``<folder>/<rank>.json``.
The pipelines do not know their lengths, so ranks agree on each round. A step of all ranks follows each batch.
"""

import json
import random
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from mpwds import DataPipeline, MultiLoader

STREAMS = 12
MODES = ("drop", "pad", "wrap")


def left_out_at_random(numbers):
    return (number for number in numbers if random.random() < 0.9)


def of_other_lengths(*stages):
    numbers = DataPipeline(range(600)).flatmap(lambda n: [n] * (1 + n % STREAMS % 3))
    return numbers.select(lambda n: n % 7 != 3).shuffle(20).compose(*stages).batched(4)


DATASETS = {
    "filter": of_other_lengths(),
    "generator": of_other_lengths(left_out_at_random),
    "pool": DataPipeline(range(600)).select(lambda n: n % 7 != 3).shuffle(20).batched(4),
}
CASES = {f"{name} {even}": (name, even) for name in DATASETS for even in MODES}
POOLS = {f"pool {even}" for even in MODES}


def loader_of(case, workers):
    name, even = CASES[case]
    loader = MultiLoader(DATASETS[name], workers, streams=STREAMS, even=even, seed=3, output="numpy")
    return loader.rebatched(3, shuffle=12) if case in POOLS else loader


def steps_of(case, workers, state, most):
    """The batches of some steps of an epoch, or of all that are left, and the state after them."""
    seen = []
    with loader_of(case, workers) as loader:
        if state is not None:
            loader.load_state_dict(state)
        for batch in loader:
            seen.append(batch.tolist())
            step = torch.ones(1)
            dist.all_reduce(step)
            assert step.item() == dist.get_world_size()
            if len(seen) == most:
                break
        return {"seen": seen, "state": loader.state_dict()}


def main(folder, workers, most):
    dist.init_process_group("gloo")
    states = json.loads((folder / "state.json").read_text())
    found = {case: steps_of(case, workers, states.get(case), most) for case in CASES}
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
