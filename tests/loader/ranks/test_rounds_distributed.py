"""Even epochs of streams over real processes that agree on each round: torchrun, gloo, changing ranks."""

import json
from collections import Counter
from pathlib import Path

import pytest

import mpwds
from tests.loader.ranks.rounds_cases import CASES, POOLS, loader_of
from tests.loader.ranks.test_even_distributed import torchrun

pytestmark = pytest.mark.slow

PHASES = ((2, 1, 8), (4, 0, 5), (3, 2, 8), (1, 3, 12), (6, 0, 0))
"""Ranks, workers of each, and steps. Each phase goes on with the states of the one before."""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """The batches of each case's job, through all phases."""
    folder, jobs, states = tmp_path_factory.mktemp("rounds"), {case: [] for case in CASES}, {}
    for ranks, workers, most in PHASES:
        (folder / "state.json").write_text(json.dumps(states))
        torchrun(Path(__file__).with_name("rounds_cases.py"), folder, workers, most, ranks=ranks)
        found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
        for case, job in jobs.items():
            steps = zip(*(rank[case]["seen"] for rank in found), strict=True)
            job += [batch for step in steps for batch in step]
            states[case] = mpwds.merge_states([rank[case]["state"] for rank in found])
    return jobs


@pytest.mark.parametrize("case", sorted(CASES.keys() - POOLS))
def test_the_order_is_that_of_an_undisturbed_run_on_one_rank(case, jobs):
    with loader_of(case, 0) as loader:
        assert jobs[case] == [batch.tolist() for batch in loader]


@pytest.mark.parametrize("case", sorted(POOLS))
def test_samples_that_stages_hold_go_with_their_streams(case, jobs):
    counts = Counter(number for batch in jobs[case] for number in batch)
    numbers = {number for number in range(600) if number % 7 != 3}
    if CASES[case][1] == "drop":
        assert counts.keys() < numbers
        assert set(counts.values()) == {1}
    else:
        assert counts.keys() == numbers
    assert counts.total() > 500
