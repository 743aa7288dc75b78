"""What the commands from shards to shards have in common: samples in, samples out, and what is printed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator

from mpwds.cli.outputs import refuse_own_input, report, warn_of_older
from mpwds.cli.progress import progress
from mpwds.cli.resharding.options import Duplicates
from mpwds.cli.resharding.raw_samples import OpenFiles, RawSample, read_raw_samples
from mpwds.cli.resharding.sink import ShardSink
from mpwds.cli.shards import shard_urls
from mpwds.errors import ShardError
from mpwds.storage.streams.urls import is_local, local_path
from mpwds.storage.writing.tar_writer import shown_bytes

Arrange = Callable[[Iterator[RawSample]], Iterable[RawSample]]


def reshard(
    patterns: list[str],
    output: str,
    maxcount: int | None,
    maxsize: int | None,
    duplicates: Duplicates,
    force: bool,
    as_json: bool,
    arrange: Arrange = iter,
    fields: Collection[str] = (),
) -> None:
    """Copies the samples of shards to other shards, and prints how many there are.

    Args:
        patterns: The shards, as for ``shard_urls``.
        output: As for :class:`ShardSink`, and so are the limits, ``duplicates`` and ``force``.
        as_json: Print JSON.
        arrange: Puts the samples in their new order.
        fields: Extensions of the fields that ``arrange`` looks at.

    Raises:
        ShardError: A shard is damaged, or samples got lost.
        ValueError: A shard would be replaced by what is read from it.
    """
    urls = shard_urls(patterns)
    refuse_own_input(urls, output)
    read = 0

    def counted(samples: Iterator[RawSample]) -> Iterator[RawSample]:
        nonlocal read
        for sample in samples:
            read += 1
            advance(sample.size, f"{read:,} samples")
            yield sample

    with contextlib.ExitStack() as ends:
        files = ends.enter_context(contextlib.closing(OpenFiles()))
        advance = ends.enter_context(progress(local_size(urls)))
        sink = ends.enter_context(ShardSink(output, maxcount, maxsize, force, duplicates))
        for sample in arrange(counted(read_raw_samples(urls, files, fields))):
            sink.add(sample)
        if sink.samples != read:
            raise ShardError(f"{read} samples were read, but {sink.samples} written")
    _report(urls, sink, output, as_json)


def local_size(urls: Iterable[str]) -> int | None:
    """The bytes of shards; ``None`` if not all of them are local files."""
    if not all(is_local(url) and url != "-" for url in urls):
        return None
    return sum(os.path.getsize(local_path(url)) for url in urls)


def _report(urls: list[str], sink: ShardSink, output: str, as_json: bool) -> None:
    written = sink.shards
    warn_of_older(output, written)
    names = " ... ".join(dict.fromkeys([*written[:1], *written[-1:]]))
    counts = f"from {len(urls)} {'shard' if len(urls) == 1 else 'shards'} to {len(written)}"
    text = f"{sink.samples:,} samples, {shown_bytes(sink.bytes)}, {counts}: {names}"
    figures = {"samples": sink.samples, "bytes": sink.bytes, "shards": written}
    report(as_json, figures, text, to_stderr=output == "-")
