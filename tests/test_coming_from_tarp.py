"""The page for newcomers from tarp and tarproc names every command, and its examples run."""

import gzip
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mpwds
from mpwds.cli.app import COMMANDS

PAGE = (Path(__file__).parents[1] / "docs/coming-from/tarp.md").read_text()

# By `tarp --help` and the programs that `pip install tarproc` brings.
TARP = {"cat", "create", "proc", "sort", "split"}
TARPROC = {
    *("tarcats", "tarfirst", "tarmix", "tarpcat", "tarproc", "tarshow", "tarsort", "tarsplit"),
    *("tar2tsv", "tsv2tar", "tar2db", "db2tar", "tarzmq"),
}


def theirs(heading):
    section = re.split(r"\n## ", PAGE.partition(f"\n## {heading}\n")[2])[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {command for cell in cells for command in re.findall(r"`([\w]+)", cell)}


def test_every_command_has_a_row():
    assert theirs("tarp") == TARP
    assert theirs("tarproc") == TARPROC


def test_the_commands_it_names_are_there():
    named = set(re.findall(r"mpwds ([a-z]+)\b", re.sub(r"```python.*?```", "", PAGE, flags=re.DOTALL)))
    assert named <= {*COMMANDS}


@pytest.fixture
def folder(tmp_path):
    """The shards and the program that the examples use."""
    for shard in range(4):
        with mpwds.TarWriter(tmp_path / f"in-{shard:03}.tar") as sink:
            for number in range(100):
                key = f"{shard}{number:03}"
                sink.write({"__key__": key, "txt": f"text {key}\n" * 20, "cls": number % 10})
    [program] = re.findall(r"```python\n(# smaller\.py\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "smaller.py").write_text(program)
    return tmp_path


@pytest.mark.slow
def test_its_examples_run(folder):
    [commands] = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    shell = f'mpwds() {{ "{sys.executable}" -m mpwds "$@"; }}\nset -eo pipefail\n{commands}'
    done = subprocess.run(["bash", "-c", shell], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    sorted_labels = [int(sample["cls"]) for sample in mpwds.WebDataset(str(folder / "sorted.tar"))]
    assert sorted_labels == sorted(list(range(10)) * 40)
    [sample] = [s for s in mpwds.WebDataset(str(folder / "small-003.tar")) if s["__key__"] == "3099"]
    assert gzip.decompress(sample["txt.gz"]) == b"text 3099\n" * 20


@pytest.mark.parametrize("source", ["text:7", "pipe:touch ran; echo 7"])
def test_recipes_become_lists(tmp_path, source):
    [program] = re.findall(r"```python\n(# recipe\.py\n.*?)```", PAGE, re.DOTALL)
    [commands] = re.findall(r"```sh\n(python recipe.*?)```", PAGE, re.DOTALL)
    (tmp_path / "recipe.py").write_text(program)
    (tmp_path / "one.jpg").write_bytes(b"one")
    (tmp_path / "two.jpg").write_bytes(b"two")
    (tmp_path / "recipe.txt").write_text(f"a.jpg one.jpg\na.cls text:3\nb.jpg\ttwo.jpg\nb.cls {source}\n")
    shell = f'mpwds() {{ "{sys.executable}" -m mpwds "$@"; }}\nset -e\n{commands}'
    done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert not (tmp_path / "ran").exists()
    assert (done.returncode == 0) == source.startswith("text:"), done.stderr
    if done.returncode == 0:
        found = list(mpwds.WebDataset(str(tmp_path / "made-000.tar"), empty_check=False))
        assert [(s["__key__"], s["jpg"], s["cls"]) for s in found] == [
            ("a", b"one", b"3"),
            ("b", b"two", b"7"),
        ]
