"""Runs tests that other packages wrote, with the package itself and with mpwds in its place, and compares.

    python tools/suites.py webdataset
    python tools/suites.py torch --file test_dataloader.py

`webdataset` downloads the source distribution of the release that is installed, and runs the tests in it on
shards that this file writes. Tests that need torchvision are skipped.

`torch` runs torch's tests of DataLoader. They are not in torch's wheel: the file is
https://github.com/pytorch/pytorch/blob/v2.6.0/test/test_dataloader.py, or that of another release. torch's
test helpers need `pip install expecttest`.

Each suite runs twice, in copies of its files and in fresh processes. In the second copy the imports are
changed as the pages of docs/coming-from/ tell users to change theirs. The exit status is 0 if the tests that
pass with the package alone are those of ``EXPECTED``.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

import mpwds as wds

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 900
"""Of a single test. On a busy machine, a process that a test starts may need minutes."""

TORCH_FILE = "https://github.com/pytorch/pytorch/blob/v2.6.0/test/test_dataloader.py"

EXPECTED: dict[str, dict[str, tuple[str, ...]]] = {
    "webdataset": {
        "mpwds warns of workers without a shard, and they are idle": (
            "test_loaders.test_check_empty_throws_ValueError",
        ),
        "errors in secure mode have other texts": (
            "test_security.TestEnforceSecurity.test_file_url_access_blocked_when_security_enabled",
            "test_security.TestEnforceSecurity.test_local_file_access_blocked_when_security_enabled",
            "test_security.TestEnforceSecurity.test_pickle_loads_blocked_when_security_enabled",
            "test_security.TestEnforceSecurity.test_pipe_url_blocked_when_security_enabled",
            "test_security.TestEnforceSecurity.test_torch_loads_blocked_when_security_enabled",
            "test_security.TestEnforceSecurity.test_url_rewriting_blocked_when_security_enabled",
        ),
        "pickles need permission": (
            "test_security.TestEnforceSecurity.test_autodecode_integration_with_security",
            "test_security.TestEnforceSecurity.test_pickle_loads_allowed_when_security_disabled",
            "test_writer.test_writer3",
        ),
        "a sample that is cut off is left out": (
            "test_pipeline.test_dataset_missing_rename_raises",
            "test_pipeline.test_dataset_missing_totuple_raises",
        ),
        "a wrong argument is a TypeError": ("test_cache.test_url_to_cache_name_non_string_input",),
        "the dataset counts epochs, not the stage": ("test_shuffles.test_detshuffle",),
        "a shard is locked by the reader that claimed it": (
            "test_shardlists.TestDirectoryShardList.test_cleanup_files_without_processes",
        ),
    },
    "torch": {
        "an iterator's `_workers` have a `pid`, and no other attribute of processes": (
            "test_dataloader.TestDataLoader.test_partial_workers",
            "test_dataloader.TestDataLoaderPersistentWorkers.test_iterable_style_dataset",
            "test_dataloader.TestDataLoaderPersistentWorkers.test_partial_workers",
        ),
    },
}
"""The tests of each suite that pass with the package and not with mpwds, by reason."""

NETWORK = r"https?://(storage\.googleapis\.com/webdataset|storage\.googleapis\.com|httpbin\.org)"
"""What webdataset's tests read from the network; a server of this program takes its place."""

# What the tests of webdataset import from a file that the source distribution lacks.
CONFTEST = """
import inspect
import pytest

local_data = "testdata/imagenet-000000.tgz"
compressed = "testdata/compressed.tar"
remote_loc = "{server}/testdata/"
remote_shards = "openimages-train-0000{{00..03}}.tar"
remote_shard = "openimages-train-000001.tar"
remote_sample = "{server}/testdata/sample.tgz"

def count_samples_tuple(source, n=10000):
    count = 0
    for sample in source:
        if count == n:
            break
        assert isinstance(sample, (tuple, dict, list)), sample
        count += 1
    return count

def pytest_configure(config):
    config.addinivalue_line("markers", "quick: of webdataset")

def pytest_collection_modifyitems(items):
    for item in items:
        if "torchvision" in inspect.getsource(item.function):
            item.add_marker(pytest.mark.skip("needs torchvision"))
"""

# One test imports a function of imageio.
IMAGEIO = """
import numpy
import PIL.Image

def imread(stream):
    return numpy.asarray(PIL.Image.open(stream))
"""


KINDS = ("passed", "failed", "skipped")


class Outcome(NamedTuple):
    """How a test ended."""

    kind: str
    """One of ``KINDS``."""

    error: str = ""
    """The first line of the error."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=("webdataset", "torch"))
    parser.add_argument("--file", type=Path, default=Path("test_dataloader.py"), help="torch's file of tests")
    options = parser.parse_args()
    if options.suite == "torch" and not options.file.is_file():
        sys.exit(f"suites: there is no {options.file}: get it from {TORCH_FILE}")
    with tempfile.TemporaryDirectory(prefix="mpwds-suites-") as temporary:
        theirs, ours = Path(temporary, options.suite), Path(temporary, "mpwds")
        if options.suite == "torch":
            text = options.file.read_text().replace("JOIN_TIMEOUT = 60.0", "JOIN_TIMEOUT = 180.0")
            tests = {options.file.name: text}
            change = with_our_dataloader
        else:
            tests = tests_of_webdataset(Path(temporary))
            change = with_our_webdataset
        for folder in (theirs, ours):
            for name, text in tests.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(change(text) if folder is ours else text)
            if options.suite == "webdataset":
                write_shards(folder / "testdata")
        expected = compare(options.suite, run(theirs), run(ours))
    sys.exit(0 if expected else 1)


def with_our_dataloader(text: str) -> str:
    """The same file with `mpwds.DataLoader`, also in the programs that the tests run."""
    text = text.replace("torch.utils.data.DataLoader", "DataLoader")
    imports = r"^( *)from torch\.utils\.data import (\([^)]*\bDataLoader\b[^)]*\)|.*\bDataLoader\b.*)$"
    return re.sub(imports, r"\g<0>\n\1from mpwds import DataLoader", text, flags=re.MULTILINE)


def with_our_webdataset(text: str) -> str:
    return re.sub(r"^( *)(from|import) webdataset\b", r"\1\2 mpwds", text, flags=re.MULTILINE)


def tests_of_webdataset(folder: Path) -> dict[str, str]:
    """The files of its tests, by name. A server for what they read from the network runs until the end."""
    release = f"webdataset=={importlib.metadata.version('webdataset')}"
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    done = subprocess.run([*download, "--no-binary", ":all:", release], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"suites: pip cannot download the source distribution of {release}:\n{done.stderr}")
    server = Server(("127.0.0.1", 0), functools.partial(Handler, directory=folder / "mpwds"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    tests = {"tests/__init__.py": "", "imageio/__init__.py": "", "imageio/v3.py": IMAGEIO}
    with tarfile.open(next(folder.glob("webdataset-*.tar.gz"))) as archive:
        for member in archive:
            file = archive.extractfile(member) if "/tests/" in member.name else None
            if file is not None:
                tests[member.name.partition("/")[2]] = re.sub(NETWORK, address, file.read().decode())
    return {**tests, "tests/conftest.py": CONFTEST.format(server=address)}


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *args: object) -> None:
        """Clients stop in the middle of a file."""


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


def write_shards(folder: Path) -> None:
    """Shards with the names, fields and numbers of samples that webdataset's tests expect."""
    folder.mkdir()
    random = np.random.default_rng(0)
    with wds.TarWriter(str(folder / "imagenet-000000.tgz")) as shard:
        for number in range(47):
            image = np.zeros((793, 600, 3) if number == 0 else (32, 40, 3), np.uint8)
            image[:16] = random.integers(0, 256, image[:16].shape)
            fields = {"cls": number, "png": image, "wnid": b"n01440764", "xml": b"<annotation/>"}
            shard.write({"__key__": f"{number:06}", **fields})
    with wds.TarWriter(str(folder / "sample.tgz")) as shard:
        shard.write({"__key__": "10", "cls": 0, "png": image})
    with wds.TarWriter(str(folder / "compressed.tar")) as shard:
        shard.write({"__key__": "0", "txt.gz": "hello\n"})
    with wds.TarWriter(str(folder / "tendata.tar")) as shard:
        for number in range(100):
            shard.write({"__key__": str(number), "ten": [np.zeros((28, 28)), np.ones((28, 28))]})
    for name in ("00", "01", "02", "03"):
        with wds.TarWriter(str(folder / f"openimages-train-0000{name}.tar")) as shard:
            for number in range(40):
                shard.write({"__key__": f"{name}-{number}", "jpg": image, "json": [number]})


def run(folder: Path) -> dict[str, Outcome]:
    """How each test in a folder ends, by its name."""
    print(f"running the tests with {folder.name}", flush=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    options = (
        f"-p no:cacheprovider --rootdir . --color no --timeout {TIMEOUT_S} --junitxml report.xml".split()
    )
    command = [sys.executable, "-m", "pytest", "-q", *options, "-o", "junit_logging=no", "."]
    log, report = folder / "log", folder / "report.xml"
    with open(log, "w") as file:
        subprocess.run(command, cwd=folder, env=environment, stdout=file, stderr=file)
    if not report.exists() or all(
        outcome(case).kind != "passed" for case in ET.parse(report).iter("testcase")
    ):
        sys.exit(f"suites: no test passes with {folder.name}:\n{log.read_text()[-2000:]}")
    return {
        f"{case.get('classname', '').removeprefix('tests.')}.{case.get('name')}": outcome(case)
        for case in ET.parse(report).iter("testcase")
    }


def outcome(case: ET.Element) -> Outcome:
    """How a test ended; one that is marked as failing failed, unless it passed."""
    for tag in ("failure", "error", "skipped"):
        if (found := case.find(tag)) is not None:
            error = found.get("message", "").strip().partition("\n")[0]
            if "Unexpected success" in error:
                return Outcome("passed")
            skipped = tag == "skipped" and found.get("type") != "pytest.xfail"
            return Outcome("skipped" if skipped else "failed", error)
    return Outcome("passed")


def compare(suite: str, theirs: dict[str, Outcome], ours: dict[str, Outcome]) -> bool:
    """Prints what differs, and returns whether all of it is expected."""
    for name, outcomes in ((suite, theirs), ("mpwds", ours)):
        kinds = Counter(outcome.kind for outcome in outcomes.values())
        print(f"{name}: {len(outcomes)} tests, " + ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS))
    passed, passed_here = (
        {name for name, outcome in outcomes.items() if outcome.kind == "passed"}
        for outcomes in (theirs, ours)
    )
    reasons = {name: reason for reason, names in EXPECTED[suite].items() for name in names}
    print(f"{len(passed - passed_here)} pass with {suite} only:")
    for name in sorted(passed - passed_here):
        error = ours[name].error if name in ours else "was not run"
        print(f"  {name}\n    {error}\n    {reasons.get(name, 'NOT EXPECTED')}")
    print(f"{len(passed_here - passed)} pass with mpwds only:")
    for name in sorted(passed_here - passed):
        print(f"  {name}\n    {theirs[name].error if name in theirs else 'was not run'}")
    same_now = passed & passed_here & reasons.keys()
    for name in sorted(same_now):
        print(f"{name} passes with both: take it out of EXPECTED")
    return not same_now and passed - passed_here <= reasons.keys()


if __name__ == "__main__":
    main()
