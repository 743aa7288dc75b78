"""Ray Train, whose checkpoints go on under another number of workers.

pip install mpwds 'ray[train]'
python ray_train.py FOLDER 2 [EPOCHS]      # stop it, then:
python ray_train.py FOLDER 1 [EPOCHS]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
from stripes import TRAIN, from_shards, network, write_shards

import mpwds

STREAMS, BATCHES_PER_STEP = 4, 2


def train(config) -> None:
    context = ray.train.get_context()
    rank, accumulate = context.get_world_rank(), BATCHES_PER_STEP // context.get_world_size()
    pipeline = from_shards(config["urls"])
    loader = mpwds.MultiLoader(pipeline, workers=2, streams=STREAMS, even="drop", seed=1)
    torch.manual_seed(1)
    model = ray.train.torch.prepare_model(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    steps, epoch, losses = 0, 0, []
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            states = [json.loads(path.read_text()) for path in Path(folder).glob("loader-*.json")]
            saved = torch.load(Path(folder, "training.pt"))
        loader.load_state_dict(mpwds.merge_states(states))
        unwrapped(model).load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        steps, epoch = saved["steps"], saved["epoch"]
    for epoch in range(epoch, config["epochs"]):  # noqa: B020  # from the epoch of the checkpoint on
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            (loss / accumulate).backward()
            losses.append(loss.item())
            if len(losses) < accumulate:
                continue
            loss = mean(losses)
            losses.clear()
            if rank == 0:
                print(f"step {steps}: loss {loss:.4f}", flush=True)
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps % 16 == 0:
                saved = {"optimizer": optimizer.state_dict(), "steps": steps, "epoch": epoch}
                save(rank, loader, {**saved, "model": unwrapped(model).state_dict()}, loss)


def save(rank: int, loader: mpwds.MultiLoader, training: dict[str, Any], loss: float) -> None:
    """Reports a checkpoint. Ray puts the files of all workers into one folder."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"loader-{rank}.json").write_text(json.dumps(loader.state_dict()))
        if rank == 0:
            torch.save(training, Path(folder, "training.pt"))
        ray.train.report({"loss": loss}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def mean(losses: list[float]) -> float:
    """Of all workers."""
    of_all = torch.tensor(losses).mean()
    torch.distributed.all_reduce(of_all)
    return float(of_all) / torch.distributed.get_world_size()


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside ``DistributedDataParallel``, which one worker does without."""
    return getattr(model, "module", model)


def main(folder: Path, workers: int, epochs: int) -> None:
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"urls": write_shards(folder, TRAIN), "epochs": epochs},
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        run_config=ray.train.RunConfig(
            name="stripes",  # a run of the same name goes on from its last checkpoint
            storage_path=str(folder / "runs"),
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else 5)
