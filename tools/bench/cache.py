"""Measures what fetching a small shard costs with few and with many shards in the cache.

    python tools/bench/cache.py                     # 100 and 100,000 shards, about a minute
    python tools/bench/cache.py --shards 100 1000   # others

``below the limit``: nothing has to be removed. ``at the limit``: the cache is full, so each fetch removes a
shard. All shards are counted once in as many fetches as a sixteenth of them, so this is the mean over that
many fetches. Shards have 1,000 bytes and come from memory; nothing waits for the disk (``fsync``), which
would cost the same in both. The cache, 200,000 small files, is in a temporary folder (``TMPDIR``).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
import time
import zlib

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
    arguments = parser.parse_args()
    os.fsync = lambda fd: None
    few, many = arguments.shards
    costs = [_costs(shards, arguments.fetches) for shards in (few, many)]
    print(f"{'ms a fetch':<32}{few:>10,} shards{many:>10,} shards{'ratio':>8}")
    for row, name in enumerate(("below the limit", "at the limit")):
        for column, clock in enumerate(("wall clock", "processor")):
            one, other = (cost[row][column] for cost in costs)
            print(f"{f'{name}, {clock}':<32}{one:>17.3f}{other:>17.3f}{other / one:>8.2f}")


def _costs(shards: int, fetches: int) -> tuple[Cost, Cost]:
    """The costs below the limit and at it."""
    with tempfile.TemporaryDirectory() as directory:
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
        with open(entry.path, "wb") as file:
            file.write(_SHARD)
        mark = Mark(entry.source, len(_SHARD), zlib.crc32(_SHARD), os.stat(entry.path).st_mtime_ns)
        with open(entry.mark, "w", encoding="ascii") as note:
            json.dump(mark._asdict(), note)


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
