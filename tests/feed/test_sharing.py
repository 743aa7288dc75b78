"""Which servers each rank of a job connects to. Jobs of thousands of ranks are computed, not run."""

import numpy as np
import pytest

from mpwds.feed.client import sharing
from mpwds.feed.client.sharing import links, shares

WORKERS = 16
"""Of each server."""

JOBS = [(50, 8), (50, 64), (8, 64), (3, 4), (10, 16), (1000, 4096), (1000, 8)]


def urls(servers):
    return [f"tcp://10.0.{number // 250}.{number % 250}:7880" for number in range(servers)]


def table(servers, ranks):
    return links(urls(servers), ranks, min(sharing.MOST_LINKS, servers, max(2, -(-servers // ranks))))


@pytest.mark.parametrize(("servers", "ranks"), JOBS)
def test_servers_have_equally_many_ranks_and_ranks_different_servers(servers, ranks):
    found = table(servers, ranks)
    counts = np.bincount(found.ravel(), minlength=servers)
    assert counts.max() - counts.min() <= 1
    assert all(len(set(row)) == len(row) for row in found.tolist())


@pytest.mark.parametrize(("servers", "ranks"), JOBS)
def test_a_lost_server_moves_few_of_the_links_of_others(servers, ranks):
    """Ranks keep the servers that are up: these are the links of a job that begins without the server."""
    names, before = urls(servers), table(servers, ranks)
    each = before.shape[1]
    after = links(names[1:], ranks, min(each, servers - 1)) + 1
    kept = sum(len(set(old) & set(new)) for old, new in zip(before.tolist(), after.tolist(), strict=True))
    lost = int((before == 0).sum())
    assert before.size - lost - kept <= max(2, before.size // 3)


@pytest.mark.parametrize(("servers", "ranks"), [(50, 8), (8, 64), (3, 4)])
def test_all_workers_of_a_server_are_given_away_once_all_its_ranks_are_there(servers, ranks):
    given = dict.fromkeys(urls(servers), 0)
    for rank in range(ranks):
        for url, number, of in shares(urls(servers), rank, ranks):
            given[url] += WORKERS * (number + 1) // of - WORKERS * number // of
    assert set(given.values()) == {WORKERS}


@pytest.mark.parametrize(("servers", "ranks"), [*JOBS, (4, 4), (2, 2), (1, 3)])
def test_each_rank_has_a_worker_if_there_are_as_many_as_ranks(servers, ranks):
    """A server with fewer workers than ranks gives one to each of the first."""
    workers = -(-ranks // servers)
    for rank in range(0, ranks, 1 + ranks // 8):
        assert any(number < workers for _, number, _ in shares(urls(servers), rank, ranks))


def test_all_ranks_use_all_of_few_servers():
    found = [shares(urls(2), rank, 3) for rank in range(3)]
    assert [[url for url, _, of in share if of == 3] for share in found] == [urls(2)] * 3
    assert sorted(share[0].number for share in found) == [0, 1, 2]


def test_a_rank_alone_uses_as_many_as_it_may():
    assert len(shares(urls(50), 0, 1)) == sharing.MOST_LINKS
    assert len(shares(urls(50), 0, 1, most=50)) == 50


def test_a_rank_that_waits_for_more_servers_uses_as_many():
    urls = [f"tcp://cpu{number}:1" for number in range(8)]
    assert len(shares(urls, rank=3, world_size=8, least=4)) == 4
