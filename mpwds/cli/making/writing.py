"""Writes planned shards, each as a whole by one worker, so that the number of workers changes nothing."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from mpwds.cli.notes import drop_notes, noted
from mpwds.cli.progress import progress
from mpwds.storage.streams.urls import is_local, local_path, without_credentials
from mpwds.storage.writing.tar_writer import TarWriter

_REPORT_BYTES = 16 << 20


class Planned(NamedTuple):
    """A shard to write: where to, its samples, read by the worker that iterates them, and their number."""

    url: str
    samples: Iterable[dict[str, Any]]
    total: int


class Written(NamedTuple):
    """A shard that is complete.

    Attributes:
        url: Its URL or path.
        samples: Number of samples.
        nbytes: Bytes of their data; ``None`` if an earlier run has written them.
        filesize: Bytes of the file; ``None`` if it is not local.
    """

    url: str
    samples: int
    nbytes: int | None
    filesize: int | None


def write_shards(shards: Sequence[Planned], jobs: int, done: Collection[str] = ()) -> list[Written]:
    """Writes shards in ``jobs`` processes, or in this one if there is only one or one shard.

    A shard appears under its name when it is complete. Errors, and Ctrl-C, leave the complete ones.

    Args:
        shards: What to write.
        jobs: How many processes may write.
        done: Names of shards that are complete.

    Returns:
        What was written, in the order of ``shards``.

    Raises:
        ValueError: Two samples of a shard have one key, or a sample cannot be written.
        OSError: A file cannot be read or written.
    """
    from mpwds.loader.multi_loader import MultiLoader
    from mpwds.pipeline.dataset import DataPipeline
    from mpwds.sharedmem.share import share

    written = {
        number: Written(shard.url, shard.total, None, _filesize(shard.url))
        for number, shard in enumerate(shards)
        if shard.url in done
    }
    left = [(number, shard) for number, shard in enumerate(shards) if number not in written]
    if not left:
        return list(written.values())
    jobs = min(jobs, len(left))
    dataset = DataPipeline(share(left)).flatmap(_write)
    before = sum(shard.samples for shard in written.values())
    total = sum(shard.total for shard in shards)
    try:
        options: Any = {"in_order": False, "output": "numpy", "start_method": "fork"}
        with (
            MultiLoader(dataset, workers=jobs if jobs > 1 else 0, **options) as loader,
            progress(total, before, in_bytes=False) as advance,
        ):
            for number, samples, shard in loader:
                advance(samples, "writing")
                if shard is not None:
                    written[number] = Written(*shard)
    except BaseException as error:
        drop_notes(error, _write.__name__)
        raise
    return [written[number] for number in range(len(shards))]


def _write(task: tuple[int, Planned]) -> Iterator[tuple[int, int, tuple[Any, ...] | None]]:
    """Writes a shard; tells in between how many samples it wrote since it last told."""
    number, (url, samples, _) = task
    keys: set[str] = set()
    told, untold, nbytes = 0, 0, 0
    with TarWriter(url, mtime=0, replace=False) as sink, noted(f"while writing {without_credentials(url)}"):
        for sample in samples:
            key = sample["__key__"]
            if key in keys:
                raise ValueError(f"the key {key!r} occurs twice")
            keys.add(key)
            nbytes += sink.write(sample)
            untold += 1
            if nbytes - told >= _REPORT_BYTES:
                yield number, untold, None
                told, untold = nbytes, 0
    yield number, untold, (url, len(keys), nbytes, _filesize(url))


def _filesize(url: str) -> int | None:
    return os.path.getsize(local_path(url)) if url != "-" and is_local(url) else None
