"""The program of docs/distributed.md, run as that page says."""

import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parent.parent / "docs" / "distributed.md"


def write_shards(folder):
    rng = np.random.default_rng(0)
    for shard, samples in enumerate((30, 17, 41, 8, 25)):
        with tarfile.open(folder / f"train-{shard:03}.tar", "w") as archive:
            for number in range(samples):
                label = number % 2
                array = io.BytesIO()
                np.save(array, rng.normal(2 * label - 1, 0.5, 12).astype(np.float32))
                for field, data in (("npy", array.getvalue()), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{shard}-{number:03}.{field}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))


def test_the_program_trains_in_step(tmp_path):
    write_shards(tmp_path)
    [program] = re.findall(r"```python\n(# train\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "train.py").write_text(program)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, "train.py", "train-{000..004}.tar"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"rank (\d), epoch (\d): (\d+) steps, loss (\d\.\d+)", done.stdout)
    assert sorted((rank, epoch) for rank, epoch, *_ in lines) == [(r, e) for r in "01" for e in "012"]
    for epoch in "012":
        assert len({steps for _, of, steps, _ in lines if of == epoch}) == 1
    assert max(float(loss) for _, epoch, _, loss in lines if epoch == "2") < 0.3
