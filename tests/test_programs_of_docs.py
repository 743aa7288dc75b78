"""The programs of the documentation: the blocks of a page run in their order, in an empty folder.

A block that begins with a file's name (``# train.py``) becomes that file, which a later block uses; if none
does, it runs at once. All other blocks of Python run in one process, and blocks of shell between them. A
block of text is what the block before it prints; ``...`` stands for anything. Two kinds of blocks need only
be valid Python: one that begins with ``# Before`` shows another library, and one after ``<!-- not run: ...
-->`` needs what a test does not have.
"""

import ast
import doctest
import io
import os
import re
import shlex
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

import mpwds
from tests.storage.conftest import Web

DOCS = Path(__file__).parents[1] / "docs"
# These have tests of their own, with what their programs need; the examples of trainers do, too.
TESTED_ELSEWHERE = {
    "coming-from/tarp",
    "coming-from/tensorcom",
    "guides/servers/augmentation-servers",
    "guides/servers/clusters",
    "guides/servers/watching-feeds",
    "guides/training/distributed",
    "guides/training/trainers",
    "guides/training/what-bounds-my-training",
    "reference/command-line",
}
BEFORE = {
    "index": """
import io
import os
from PIL import Image
import mpwds

with mpwds.TarWriter("train-000000.tar") as sink:
    for number in range(3):
        Image.new("RGB", (256, 256)).save(image := io.BytesIO(), "JPEG")
        sink.write({"__key__": str(number), "jpg": image.getvalue(), "cls": number})
for shard in range(1, 147):
    os.link("train-000000.tar", f"train-{shard:06}.tar")

def train_step(images, labels):
    assert images.shape[1:] == (224, 224, 3)
    assert len(images) == len(labels)
"""
}
"""What a page does not show: the shards and the training step that a reader has."""
BLOCK = re.compile(
    r"^(<!-- not run: [^\n]* -->\n\n)?```(python|sh|yaml)\n(.*?)^```(?:\n\n```text\n(.*?)^```)?",
    re.MULTILINE | re.DOTALL,
)
FILE = re.compile(r"# ([\w-]+\.\w+)\n")
RAN = "-- a block ran --\n"


class Block(NamedTuple):
    comment: str
    language: str
    code: str
    prints: str

    @property
    def is_run(self) -> bool:
        if self.language == "yaml":
            return FILE.match(self.code) is not None
        return not (self.comment or self.code.startswith("# Before\n"))

    def as_python(self, used_later: str) -> str:
        """The block as a part of one program."""
        if file := FILE.match(self.code):
            written = f"import pathlib\npathlib.Path({file[1]!r}).write_text({self.code!r})\n"
            return written if file[1] in used_later else written + in_shell(f"python {file[1]}")
        return in_shell(self.code) if self.language == "sh" else self.code


def in_shell(command: str) -> str:
    words = ["bash", "-e", "-o", "pipefail", "-c", command]
    return f"import subprocess\nsubprocess.run({words!r}, check=True)\n"


def program_of(blocks: list[Block]) -> str:
    """A program that runs the blocks, and prints a line after each."""
    rest = [" ".join(later.code for later in blocks[number:]) for number in range(1, len(blocks) + 1)]
    parts = [block.as_python(later) for block, later in zip(blocks, rest, strict=True)]
    return "".join(f"{part}\nprint({RAN.strip()!r})\n" for part in parts)


def blocks_of(page: str) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall((DOCS / f"{page}.md").read_text())]


def name_of(path: Path) -> str:
    return path.relative_to(DOCS).with_suffix("").as_posix()


PAGES = [name for name in sorted(map(name_of, DOCS.rglob("*.md"))) if blocks_of(name)]


@pytest.fixture
def bucket():
    """The environment in which programs find an object store, on this machine."""
    server = Web()
    yield {"AWS_ENDPOINT_URL": server.url("").rstrip("/"), "AWS_SKIP_SIGNATURE": "true"}
    server.close()


@pytest.fixture
def run(tmp_path, bucket):
    """Runs a program in a folder of its own; returns what it prints."""

    def run(program, *arguments, options=()):
        (tmp_path / "page.py").write_text(program)
        words = [sys.executable, *options, "page.py", *arguments]
        commands = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # `mpwds` and `python`
        environment = {
            **os.environ,
            **bucket,
            "PATH": commands,
            "PYTHONPATH": str(DOCS.parent),
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "error",
        }
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page not in TESTED_ELSEWHERE])
def test_the_programs_of_a_page_print_what_it_says(run, page):
    blocks = [block for block in blocks_of(page) if block.is_run]
    printed = run(BEFORE.get(page, "") + program_of(blocks)).split(RAN)[:-1]
    for block, text in zip(blocks, printed, strict=True):
        if block.prints:
            same = doctest.OutputChecker().check_output(block.prints, text, doctest.ELLIPSIS)
            assert same, f"{block.code}\nprints\n{text}"


@pytest.mark.parametrize("page", PAGES)
def test_python_that_is_only_shown_is_valid(page):
    for block in blocks_of(page):
        if block.language == "python" and not block.is_run:
            ast.parse(block.code)


@pytest.mark.slow
def test_distributed_training_goes_in_step(run):
    shards, program, commands, *_ = (block.code for block in blocks_of("guides/training/distributed"))
    assert commands.endswith("torchrun --nproc-per-node=2 train.py 'train-{000..009}.tar'\n")
    run(shards)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    printed = run(program, "train-{000..009}.tar", options=launch)
    lines = re.findall(r"rank (\d), epoch (\d): (\d+) steps, loss (\d\.\d+)", printed)
    assert sorted((rank, epoch) for rank, epoch, *_ in lines) == [(r, e) for r in "01" for e in "012"]
    for epoch in "012":
        assert len({steps for _, of, steps, _ in lines if of == epoch}) == 1
    assert max(float(loss) for _, epoch, _, loss in lines if epoch == "2") < 0.3


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.slow
def test_an_augmentation_server_makes_the_batches_of_a_training(run, tmp_path):
    with mpwds.TarWriter(tmp_path / "train-000.tar") as sink:
        for number in range(100):
            Image.new("RGB", (40, 30)).save(image := io.BytesIO(), "JPEG")
            sink.write({"__key__": f"{number:03}", "jpg": image.getvalue(), "cls": number % 10})
    address = f"127.0.0.1:{free_port()}"
    here = {
        "/data/train-{000..999}.tar": "train-000.tar",
        "0.0.0.0:7880": address,
        "cpu{1..4}:7880": address,
        "--workers 16": "--workers 1",
        ", pin_memory=True": "",  # there may be no GPU
    }
    page = "\0".join(block.code for block in blocks_of("guides/servers/augmentation-servers")[:3])
    for words, others in here.items():
        assert words in page
        page = page.replace(words, others)
    pipeline, commands, training = page.split("\0")
    (tmp_path / "pipeline.py").write_text(pipeline)
    keygen, serve = commands.splitlines()
    program = f"""
import subprocess
import mpwds

labels_seen = []

def train_step(images, labels):
    assert tuple(images.shape[1:]) == (224, 224, 3)
    labels_seen.extend(labels.tolist())

subprocess.run({keygen!r}, shell=True, check=True, stdout=subprocess.DEVNULL)
server = subprocess.Popen({shlex.split(serve, comments=True)}, stdout=subprocess.DEVNULL)
try:
    {textwrap.indent(training, "    ").strip()}
    loader.close()
finally:
    server.terminate()
    server.wait()
print(sorted(labels_seen) == sorted([*range(10)] * 10))
"""
    assert run(program) == "True\n"


@pytest.mark.slow
def test_a_training_shows_its_metrics(run):
    port = free_port()
    [block] = [block.code for block in blocks_of("guides/servers/watching-feeds")]
    training = block.replace("port=9400", f"port={port}").replace("train_step(images, labels)", "look()")
    assert training.count("look()") == training.count(str(port)) == 1
    program = f"""
import urllib.request
import mpwds

def look():
    page = urllib.request.urlopen("http://127.0.0.1:{port}/metrics").read().decode()
    print("mpwds_trainer_batches" in page)

dataset = mpwds.DataPipeline([(0, 1)] * 8).batched(8)
loader = mpwds.MultiLoader(dataset, workers=1)
{training}
loader.close()
"""
    assert run(program) == "True\n"
