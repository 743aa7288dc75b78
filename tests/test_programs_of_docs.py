"""The programs of docs/distributed.md, elastic.md, indexed-access.md and mds.md, run as those pages say."""

import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mpwds

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def run(tmp_path):
    """Runs a program in a folder of its own; returns what it prints."""

    def run(program, *arguments, options=()):
        (tmp_path / "page.py").write_text(program)
        words = [sys.executable, *options, "page.py", *arguments]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_distributed_training_goes_in_step(run, tmp_path):
    rng = np.random.default_rng(0)
    for shard, samples in enumerate((30, 17, 41, 8, 25)):
        with mpwds.TarWriter(tmp_path / f"train-{shard:03}.tar") as sink:
            for number in range(samples):
                label = number % 2
                np.save(array := io.BytesIO(), rng.normal(2 * label - 1, 0.5, 12).astype(np.float32))
                sink.write({"__key__": f"{shard}-{number:03}", "npy": array.getvalue(), "cls": label})
    [program] = re.findall(
        r"```python\n(# train\.py\n.*?)```", (DOCS / "distributed.md").read_text(), re.DOTALL
    )
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    printed = run(program, "train-{000..004}.tar", options=launch)
    lines = re.findall(r"rank (\d), epoch (\d): (\d+) steps, loss (\d\.\d+)", printed)
    assert sorted((rank, epoch) for rank, epoch, *_ in lines) == [(r, e) for r in "01" for e in "012"]
    for epoch in "012":
        assert len({steps for _, of, steps, _ in lines if of == epoch}) == 1
    assert max(float(loss) for _, epoch, _, loss in lines if epoch == "2") < 0.3


def test_programs_about_indexed_access_print_what_the_page_says(run, tmp_path):
    rng = np.random.default_rng(0)
    with mpwds.ShardWriter(f"{tmp_path}/train-%03d.tar", maxcount=100, verbose=0) as sink:
        for number in range(1000):
            image = rng.integers(0, 255, (28, 28, 3), np.uint8)
            sink.write({"__key__": f"{number:06}", "png": image, "cls": number % 10})
    block = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
    blocks = block.findall((DOCS / "indexed-access.md").read_text())
    assert len(blocks) >= 5
    printed = run("\nprint('--')\n".join(code for code, _ in blocks))
    assert printed.split("--\n") == [expected for _, expected in blocks]


def test_programs_about_mds_print_what_they_should_without_a_warning(run):
    programs = re.findall(r"```python\n(.*?)```", (DOCS / "mds.md").read_text(), re.DOTALL)
    whole = "".join(each for each in programs if "# not run" not in each)
    assert run(whole, options=["-W", "error"]).splitlines() == [
        "100 3 (28, 28)",
        *["25 (25, 28, 28)"] * 4,
        "100",
        "100 {'uid': '000007', 'data': 7}",
    ]


def test_programs_about_elastic_runs_lose_nothing(run):
    programs = re.findall(r"```python\n(.*?)```", (DOCS / "elastic.md").read_text(), re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        assert run(program, options=["-W", "error"]) == ""
