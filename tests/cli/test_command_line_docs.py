"""The commands of docs/reference/command-line.md, run one after the other as that page has them."""

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from mpwds.cli.app import COMMANDS

PAGE = (Path(__file__).parents[2] / "docs/reference/command-line.md").read_text()
OF_FEEDS = {"demo", "serve", "monitor", "stat", "keygen"}


def write_pictures(folder):
    """Folders of images for two classes, 150 each."""
    rng = np.random.default_rng(0)
    for label, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for number in range(150):
            pixels = rng.integers(0, 150, (32, 32, 3), np.uint8)
            pixels[..., label] += 100
            PIL.Image.fromarray(pixels).save(folder / name / f"{number:03}.jpg")


@pytest.mark.slow
def test_its_commands_work_one_after_the_other(command, tmp_path):
    write_pictures(Path("pictures"))
    program = Path("bin/mpwds")
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
    program.chmod(0o755)
    [pipeline] = re.findall(r"```python\n# augment\.py\n(.*?)```", PAGE, re.DOTALL)
    Path("augment.py").write_text(pipeline)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(root)}
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL):
        script = ["bash", "-e", "-o", "pipefail", "-c", block]
        done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, timeout=600)
        assert done.returncode == 0, (block, done.stdout, done.stderr)


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - OF_FEEDS))
def test_each_command_for_shards_has_a_section(name):
    headings = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    assert any(name in re.findall(r"\w+", heading.partition(":")[0]) for heading in headings)
