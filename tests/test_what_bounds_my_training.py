"""The page about stats(): each of its programs runs, and finds what it is about."""

import contextlib
import io
import re
import time
from pathlib import Path

import numpy as np
import pytest

import mpwds

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[1] / "docs/guides/training/what-bounds-my-training.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """A folder with the shards that the page's first program makes."""
    path = tmp_path_factory.mktemp("shards")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        exec(BLOCKS[0], {})
    return path


@pytest.fixture(autouse=True)
def _folder_of_shards(shards, monkeypatch):
    """Programs find the shards in the working directory."""
    monkeypatch.chdir(shards)


def run(block):
    """What a block of the page leaves behind, and what it printed."""
    names = {"mpwds": mpwds, "np": np, "time": time, "shards": "train-{0..3}.tar"}
    if "dataset =" not in block:
        names["dataset"] = mpwds.DataPipeline([(0, 0)] * 104)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(block, str(PAGE), "exec"), names)
    if "loader" in names:
        names["loader"].close()
    return names, output.getvalue()


def block_with(text):
    (block,) = [block for block in BLOCKS if text in block]
    return block


def top_stage(names):
    return max(names["loader"].stats().stages, key=lambda stage: stage.share)


def test_there_is_a_program_for_each_case():
    assert len(BLOCKS) == 10


def test_the_first_program_finds_decoding():
    names, output = run(BLOCKS[1])
    assert top_stage(names).name == "decode('rgb8')"
    assert "decode('rgb8')" in output


def test_storage_is_found():
    names, output = run(block_with("pipe:sleep"))
    assert top_stage(names).storage
    assert "storage: WebDataset" in output


def test_the_function_that_waits():
    names, _ = run(block_with("def fetch"))
    assert sum(map(len, names["dataset"])) == 400


def test_a_training_step_that_is_the_bound_is_found():
    names, output = run(block_with("time.sleep(0.02)"))
    stats = names["loader"].stats()
    assert stats.elsewhere_s > 0.02 * 99
    assert output.strip() == stats.verdict


def test_small_batches_are_slower_than_large_ones():
    _, output = run(block_with("for rows, batches in"))
    few, many = (float(rate.replace(",", "")) for rate in re.findall(r"([\d,]+) samples/s", output))
    assert few < many


def test_a_slow_worker_is_found():
    names, output = run(block_with("def unequal"))
    slow = max(names["loader"].stats().workers, key=lambda worker: worker.working_s)
    assert slow.worker == 2
    assert "worker 2 (pid" in output


def test_without_workers_decoding_is_found():
    names, output = run(block_with("workers=0"))
    assert top_stage(names).name == "decode('rgb8')"
    assert output.strip().endswith("take workers")


def test_the_live_line_is_shown(capsys):
    run(block_with("progress=True"))
    assert "samples/s, waits" in capsys.readouterr().err


def test_figures_can_be_logged_while_it_runs():
    _, output = run(block_with("as_dict()"))
    assert output.startswith("step 9: ")
