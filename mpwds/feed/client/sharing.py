"""Which servers each rank of a job connects to.

All ranks compute the same table, so no messages are needed. Each rank prefers servers by the hash of its
number and the server's URL (rendezvous hashing): a server that is lost, or comes, moves few links. No server
gets more ranks than an equal share, so that all workers are used.

Source:
    D. G. Thaler and C. V. Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM
    Transactions on Networking 6(1), 1998; V. Mirrokni, M. Thorup and M. Zadimoghaddam, "Consistent hashing
    with bounded loads", SODA 2018.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_LINKS = 8
"""Servers that a rank connects to by default, at the most."""

_LEAST_LINKS = 2  # if one server is lost, the rank has another


class Share(NamedTuple):
    """A rank's share of a server: it is one of ``ranks`` that connect there."""

    url: str
    number: int
    ranks: int


def shares(
    urls: Sequence[str], rank: int, world_size: int, most: int = MOST_LINKS, least: int = 0
) -> list[Share]:
    """The servers that a rank connects to.

    Args:
        urls: All servers.
        rank, world_size: As in ``torch.distributed``.
        most, least: Servers for each rank, if there are as many.

    Example:
        >>> shares(["tcp://a:1", "tcp://b:1"], rank=1, world_size=2)
        [Share(url='tcp://a:1', number=1, ranks=2), Share(url='tcp://b:1', number=1, ranks=2)]
    """
    # So that each server has one rank; or else a few.
    each = min(most, max(_LEAST_LINKS, least, -(-len(urls) // world_size)))
    if len(urls) <= each:
        return [Share(url, rank, world_size) for url in urls]
    table = links(urls, world_size, each)
    users = np.argsort(table, axis=None, kind="stable") // table.shape[1]
    counts = np.bincount(table.ravel(), minlength=len(urls))
    ends = np.cumsum(counts)
    found = []
    for server in map(int, table[rank]):
        of_server = users[ends[server] - counts[server] : ends[server]]
        found.append(Share(urls[server], int(np.searchsorted(of_server, rank)), len(of_server)))
    return found


def links(urls: Sequence[str], world_size: int, each: int) -> NDArray[np.int64]:
    """The numbers of the servers that each rank connects to, as an int64 array ``[world_size, each]``."""
    hashes = np.array([zlib.crc32(url.encode()) for url in urls], np.uint64)
    users = np.zeros(len(urls), np.int64)
    table = np.empty((world_size, each), np.int64)
    for rank in range(world_size):
        preferred = np.argsort(_mixed(hashes ^ np.uint64((rank + 1) << 32)))
        least, most = (rank + 1) * each // len(urls), -(-(rank + 1) * each // len(urls))
        excess = (users[preferred] >= least).astype(int) + (users[preferred] >= most)
        chosen = preferred[np.argsort(excess, kind="stable")][:each]
        users[chosen] += 1
        table[rank] = chosen
    return table


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers that look random (the finalizer of SplitMix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = numbers ^ (numbers >> np.uint64(31))
    return mixed
