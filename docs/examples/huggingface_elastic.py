"""Hugging Face's Trainer, whose checkpoints go on under another number of ranks.

pip install 'mpwds[huggingface]'
torchrun --nproc-per-node 2 huggingface_elastic.py FOLDER [EPOCHS]      # stop it, then:
python huggingface_elastic.py FOLDER [EPOCHS]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from all_ranks import AllRanks
from huggingface_trainer import Classifier, named
from stripes import TRAIN, from_shards, write_shards
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

import mpwds

STREAMS, BATCHES_PER_STEP = 4, 2
EPOCHS = int(sys.argv[2]) if sys.argv[2:] else 5
RANKS = int(os.environ.get("WORLD_SIZE", 1))


class ElasticTrainer(Trainer):
    """A Trainer whose train_dataset is an ``AllRanks``."""

    def get_train_dataloader(self):
        return self.train_dataset


class SaveLoader(TrainerCallback):
    """Keeps the loader's state in each checkpoint."""

    def __init__(self, batches: AllRanks) -> None:
        self.batches = batches

    def on_save(self, args, state, control, **kwargs) -> None:
        saved = self.batches.state_dict()
        if state.is_world_process_zero:
            path = Path(args.output_dir, f"checkpoint-{state.global_step}", "loader.json")
            path.with_suffix(".new").write_text(json.dumps(saved))
            path.with_suffix(".new").rename(path)

    def on_log(self, args, state, control, logs, **kwargs) -> None:
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step - 1}: loss {float(logs['loss']):.4f}", flush=True)


def main(folder: Path) -> None:
    set_seed(1)
    options = TrainingArguments(
        str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=50,
        gradient_accumulation_steps=BATCHES_PER_STEP // RANKS,
        ignore_data_skip=True,  # the loader's state says where it is
        learning_rate=0.01,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_steps=4,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    with options.main_process_first():
        urls = write_shards(folder, TRAIN)
    pipeline = from_shards(urls).map(named)
    loader = mpwds.MultiLoader(pipeline, workers=2, streams=STREAMS, even="drop", seed=1)
    batches = AllRanks(loader, length=len(TRAIN) // 50 // RANKS)
    saved = max(folder.glob("checkpoint-*/loader.json"), key=os.path.getmtime, default=None)
    if saved is not None:
        batches.load_state_dict(json.loads(saved.read_text()))
    trainer = ElasticTrainer(Classifier(), options, train_dataset=batches, callbacks=[SaveLoader(batches)])
    trainer.train(resume_from_checkpoint=None if saved is None else str(saved.parent))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
