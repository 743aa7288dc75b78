"""Which servers each rank of a job connects to.

All ranks compute the same table, so no messages are needed. Each rank prefers servers by the hash of its
number and the server's URL (rendezvous hashing): a server that is lost, or comes, moves few links. No server
gets many more ranks than an equal share, so that all workers are used. No server is the first of more ranks
than an equal share, and one with few workers gives them to the ranks of which it is the first. So each rank
has a worker if servers have equally many, and there are as many workers as ranks.

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
_TAKEN = 3  # more than any excess


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
        [Share(url='tcp://a:1', number=0, ranks=2), Share(url='tcp://b:1', number=1, ranks=2)]
    """
    # So that each server has one rank; or else a few.
    each = min(most, max(_LEAST_LINKS, least, -(-len(urls) // world_size)))
    table = links(urls, world_size, min(each, len(urls)))
    found = []
    for server in sorted(map(int, table[rank])):
        users = np.nonzero(np.equal(table.T, server))[1]  # those of which it is the first come first
        found.append(Share(urls[server], int(np.flatnonzero(users == rank)[0]), len(users)))
    return found


def links(urls: Sequence[str], world_size: int, each: int) -> NDArray[np.int64]:
    """The numbers of the servers that each rank connects to, as an int64 array ``[world_size, each]``.

    A rank's first server comes first.
    """
    hashes = np.array([zlib.crc32(url.encode()) for url in urls], np.uint64)
    users = np.zeros(len(urls), np.int64)
    table = np.empty((world_size, each), np.int64)
    for place in range(each):
        for rank in range(world_size):
            preferred = np.argsort(_mixed(hashes ^ np.uint64((rank + 1) << 32)))
            dealt = place * world_size + rank + 1
            excess = (users >= dealt // len(urls)).astype(int) + (users >= -(-dealt // len(urls)))
            excess[table[rank, :place]] = _TAKEN
            chosen = preferred[excess[preferred].argmin()]
            users[chosen] += 1
            table[rank, place] = chosen
    return table


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers that look random (the finalizer of SplitMix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = numbers ^ (numbers >> np.uint64(31))
    return mixed
