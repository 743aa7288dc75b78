"""Writes the same samples in the formats of several packages.

A dataset may have more shards than files: ``shards`` names the first one again and again, by hard links, so
that an epoch is long and little is written.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import mpwds

Sample = dict[str, Any]

sys.path.append(str(Path(__file__).parents[3]))
from tests.storage.mds import peer  # noqa: E402 - found by the line above


def in_a_fork(function: Callable[..., object], *arguments: object) -> None:
    """Calls a function in a process of its own: a fork of one that has written ArrayRecord crashes."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"writing the datasets failed: exit code {process.exitcode}")


def import_streaming(unused: Sequence[str] = ("torchvision", "transformers")) -> Any:
    """mosaicml-streaming, with torch; it imports what is ``unused``, too."""
    return peer.import_streaming(unused=unused)


def import_wids() -> Any:
    """From the folder of packages to compare with, in the virtual environment."""
    sys.path.append(str(Path(sys.prefix) / "peers"))
    import wids

    return wids


def import_grain() -> Any:
    """grain looks at flags that only a program of absl's would have parsed."""
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    return grain


def write_shards(folder: Path, samples: Sequence[Sample], per_shard: int) -> str:
    """Tar shards without links, each sample with a key of its own; returns their pattern."""
    folder.mkdir(exist_ok=True)
    with mpwds.ShardWriter(f"{folder}/x-%04d.tar", maxcount=per_shard, verbose=0) as sink:
        for number, sample in enumerate(samples):
            sink.write({"__key__": f"{number:08}", **sample})
    return f"{folder}/x-{{0000..{-(-len(samples) // per_shard) - 1:04}}}.tar"


def write_tar(folder: Path, samples: Sequence[Sample], shards: int) -> str:
    """Returns a pattern of the shards."""
    folder.mkdir()
    with mpwds.TarWriter(folder / "x-0000.tar") as sink:
        for number, sample in enumerate(samples):
            sink.write({"__key__": f"{number:06}", **sample})
    _link(folder, "x-{:04}.tar", shards)
    return f"{folder}/x-{{0000..{shards - 1:04}}}.tar"


def write_mds(folder: Path, columns: dict[str, str], samples: Sequence[Sample], shards: int) -> str:
    """By mosaicml-streaming, as a single shard; returns the folder."""
    streaming = import_streaming()
    with streaming.MDSWriter(out=str(folder), columns=columns, size_limit=None) as sink:
        for sample in samples:
            sink.write(sample)
    index = json.loads((folder / "index.json").read_text())
    (shard,) = index["shards"]
    name = shard["raw_data"]["basename"].replace("00000", "{:05}")
    _link(folder, name, shards)
    index["shards"] = [
        {**shard, "raw_data": {**shard["raw_data"], "basename": name.format(number)}}
        for number in range(shards)
    ]
    (folder / "index.json").write_text(json.dumps(index))
    return str(folder)


def write_litdata(folder: Path, samples: Sequence[Any], shards: int, per_shard: int | None = None) -> str:
    """As a single chunk by default, or as chunks without links; returns the folder."""
    from litdata.streaming.writer import BinaryWriter

    folder.mkdir(exist_ok=True)
    writer = BinaryWriter(str(folder), chunk_size=per_shard or len(samples))
    for number, sample in enumerate(samples):
        writer[number] = sample
    writer.done()
    writer.merge()
    if per_shard is None:
        index = json.loads((folder / "index.json").read_text())
        (chunk,) = index["chunks"]
        index["chunks"] = [{**chunk, "filename": f"chunk-0-{number}.bin"} for number in range(shards)]
        (folder / chunk["filename"]).rename(folder / "chunk-0-0.bin")
        _link(folder, "chunk-0-{}.bin", shards)
        (folder / "index.json").write_text(json.dumps(index))
    return str(folder)


def write_arrow(folder: Path, samples: Sequence[Sample]) -> str:
    """By Hugging Face datasets; returns the folder."""
    import datasets

    columns = {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(columns).save_to_disk(str(folder))
    return str(folder)


def write_array_record(path: Path, samples: Sequence[Sample]) -> str:
    """The values of a sample one after the other, as bytes; returns the file's name."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for sample in samples:
        writer.write(b"".join(np.asarray(value).tobytes() for value in sample.values()))
    writer.close()
    return str(path)


def prepare_energon(folder: Path) -> str:
    """Lets Energon index the tar shards of a folder; returns the folder."""
    command = [str(Path(sys.executable).with_name("energon")), "prepare", "--non-interactive"]
    command += ["--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset", "--no-progress", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return str(folder)


def energon_loader(
    folder: Path,
    value: Callable[[Sample], Any],
    batch: Callable[[list[Any]], Any],
    batch_size: int,
    workers: int,
    buffer: int | None,
    **options: Any,
) -> Any:
    """Energon's loader of the values that a function makes of samples, which are not decoded."""
    from megatron import energon

    @energon.stateless
    def cook(sample: Sample) -> Any:
        return energon.TextSample(**energon.basic_sample_keys(sample), text=value(sample))

    class Values(energon.DefaultTaskEncoder[Any, Any, Any, Any]):
        cookers = (energon.Cooker(cook),)
        decoder = None

        def batch(self, samples: list[Any]) -> Any:
            return batch([sample.text for sample in samples])

    dataset = energon.get_train_dataset(
        str(folder),
        worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=batch_size,
        shuffle_buffer_size=buffer,
        max_samples_per_sequence=None,
        task_encoder=Values(),
        **options,
    )
    return energon.get_savable_loader(dataset, checkpoint_every_sec=1)


def _link(folder: Path, name: str, shards: int) -> None:
    for shard in range(1, shards):
        os.link(folder / name.format(0), folder / name.format(shard))
