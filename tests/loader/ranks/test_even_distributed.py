"""Even epochs over real processes: torchrun, gloo, shards of different sizes."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from mpwds.storage.writing.tar_writer import TarWriter

pytestmark = pytest.mark.slow

MODES = ("drop", "pad", "wrap")
RANKS = 3
SAMPLES = (9, 4, 14, 5, 1)  # of five shards; three ranks have 14, 5 and 14


def write_shards(folder):
    number = 0
    for shard, samples in enumerate(SAMPLES):
        with TarWriter(str(folder / f"part-{shard}.tar")) as archive:
            for _ in range(samples):
                archive.write({"__key__": f"{number:04}", "cls": number})
                number += 1


def torchrun(program, *arguments, ranks, cwd=None):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each rank saw, of every case: one launch for all of them."""
    folder = tmp_path_factory.mktemp("even")
    write_shards(folder)
    torchrun(Path(__file__).with_name("even_cases.py"), folder, ranks=RANKS)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def odd(number):
    return number % 2 == 1 or number > 20


CASES = [
    *((case, even) for case in ("unknown", "shards", "rebatched") for even in MODES),
    ("workers", "wrap"),
    ("as they come", "pad"),
]


@pytest.mark.parametrize(("case", "even"), CASES)
def test_all_ranks_have_as_many_batches_in_each_epoch(case, even, found):
    kept = set(filter(odd, range(33))) if case == "unknown" else set(range(33))
    for epochs in zip(*(rank[case][even] for rank in found), strict=True):
        assert len({len(batches) for batches in epochs}) == 1
        delivered = [number for batches in epochs for batch in batches for number in batch]
        if even == "drop":
            assert len(set(delivered)) == len(delivered) > 0
            assert set(delivered) < kept
        else:
            assert set(delivered) == kept


def own_batches(rank):
    """What a rank's shards have for the case "unknown"."""
    starts = [0, *itertools.accumulate(SAMPLES)]
    kept = [n for shard in range(rank, 5, RANKS) for n in range(starts[shard], starts[shard + 1]) if odd(n)]
    return [kept[at : at + 2] for at in range(0, len(kept), 2)]


def test_what_comes_behind_a_ranks_own_batches_is_the_last_one_or_they_all_again(found):
    own = [own_batches(rank) for rank in range(RANKS)]
    least, most = min(map(len, own)), max(map(len, own))
    assert 1 < least < most
    for batches, rank in zip(own, found, strict=True):
        missing = most - len(batches)
        assert rank["unknown"]["drop"] == [batches[:least]] * 2
        assert rank["unknown"]["pad"] == [batches + batches[-1:] * missing] * 2
        assert rank["unknown"]["wrap"] == [(batches * most)[:most]] * 2


def test_an_epoch_of_another_loader_may_come_in_between(found):
    assert [[len(epoch) for epoch in rank["in between"]] for rank in found] == [[3, 5]] * RANKS


def test_models_trained_in_parallel_are_the_same_on_all_ranks(found):
    for even in MODES:
        assert found[0]["trained"][even] == found[1]["trained"][even] == found[2]["trained"][even]
    assert found[0]["trained"]["drop"] != found[0]["trained"]["pad"]


def test_many_ranks_agree_in_blocks_and_all_hear_which_one_failed(tmp_path):
    torchrun(Path(__file__).with_name("blocks_cases.py"), tmp_path, ranks=5)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(5)]
    for epochs in zip(*(epochs for epochs, _ in found), strict=True):
        assert {len(numbers) for numbers in epochs} == {9}
        assert set(itertools.chain(*epochs)) <= {number for number in range(60) if number % 3 or number > 40}
    errors = [error for _, error in found]
    failed = next(rank for rank, error in enumerate(errors) if error.startswith("OSError"))
    others = errors[:failed] + errors[failed + 1 :]
    assert all(error.startswith(f"EvenEpochError: rank {failed} failed") for error in others)
