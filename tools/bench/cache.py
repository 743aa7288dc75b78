"""Measures what fetching a small shard costs with few and with many shards in the cache.

    python tools/bench/cache.py                     # 100 and 100,000 shards, half a minute
    python tools/bench/cache.py --shards 100 1000   # others

``below the limit``: nothing has to be removed. ``at the limit``: the cache is full, so each fetch removes a
shard. All shards are counted once in as many fetches as a sixteenth of them, so this is the mean over that
many fetches. Shards have 1,000 bytes and come from memory. Nothing waits for the disk (``fsync``),
which would cost the same in both.

The cache consists of 200,000 small files. They are in memory (``/dev/shm``) if 2 GB are free there, or else
in a temporary folder (``TMPDIR``); ``--directory`` names another place. The shards that are there at the
beginning are sparse files, because the benchmark never reads them: it finds, counts and removes them.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import tempfile
import time

from mpwds.storage.caches.fetch import CacheEntry
from mpwds.storage.caches.shard_cache import ShardCache

_SHARD = bytes(1000)

Cost = tuple[float, float]
"""Milliseconds a fetch: of the wall clock, and of the processor."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of a fetch with few and with many cached shards")
    parser.add_argument("--shards", type=int, nargs=2, default=[100, 100_000])
    parser.add_argument(
        "--fetches", type=int, default=300, help="fetches below the limit, and at least at it"
    )
    parser.add_argument("--directory", default=_memory(), help="folder in which to make the caches")
    arguments = parser.parse_args()
    os.fsync = lambda fd: None
    few, many = arguments.shards
    costs = [_costs(shards, arguments.fetches, arguments.directory) for shards in (few, many)]
    print(f"{'ms a fetch':<32}{few:>10,} shards{many:>10,} shards{'ratio':>8}")
    for row, name in enumerate(("below the limit", "at the limit")):
        for column, clock in enumerate(("wall clock", "processor")):
            one, other = (cost[row][column] for cost in costs)
            print(f"{f'{name}, {clock}':<32}{one:>17.3f}{other:>17.3f}{other / one:>8.2f}")


def _memory() -> str | None:
    """A folder in memory, if it has room for the files."""
    folder = "/dev/shm"
    return folder if os.path.isdir(folder) and shutil.disk_usage(folder).free > 2e9 else None


def _costs(shards: int, fetches: int, folder: str | None) -> tuple[Cost, Cost]:
    """The costs below the limit and at it."""
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        _fill(directory, shards)
        roomy = ShardCache(directory, 1e12, validator=None, opener=_open)
        _fetch(roomy, "first", 1)
        below = _fetch(roomy, "below", fetches)
        full = ShardCache(directory, len(_SHARD) * (shards + fetches + 1), validator=None, opener=_open)
        return below, _fetch(full, "at", max(fetches, (shards + fetches) // 16))


def _open(url: str, offset: int) -> io.BytesIO:
    return io.BytesIO(_SHARD)


def _fill(directory: str, shards: int) -> None:
    """Puts shards into a cache as if it had fetched them."""
    os.makedirs(os.path.join(directory, ".mpwds"))
    for number in range(shards):
        entry = CacheEntry.of(directory, f"http://host/{number:06}.tar")
        mark = json.dumps({"source": entry.source}).encode()
        for path, data in ((entry.path, b""), (entry.mark, mark)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            os.write(file, data) if data else os.ftruncate(file, len(_SHARD))
            os.close(file)


def _fetch(cache: ShardCache, name: str, count: int) -> Cost:
    """The cost of a fetch, until its shard has its name."""
    began = time.perf_counter(), time.process_time()
    for number in range(count):
        url = f"http://host/{name}-{number}.tar"
        with cache.open(url) as stream:
            stream.read()
        path = cache.path(url)
        while not os.path.exists(path):
            time.sleep(0.0002)
    ended = time.perf_counter(), time.process_time()
    return (ended[0] - began[0]) / count * 1000, (ended[1] - began[1]) / count * 1000


if __name__ == "__main__":
    main()
