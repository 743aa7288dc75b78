"""Running the command, and shards for it to read."""

import io
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest

import mpwds
from mpwds.cli import jobs
from mpwds.cli.convert import create
from mpwds.cli.main import main
from tests.storage.conftest import Web


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    """The current folder is the test's own, and nothing is written to the user's cache folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def command():
    """The words that start ``mpwds``."""
    return [sys.executable, "-m", "mpwds"]


@pytest.fixture
def run(capsys):
    """Runs ``mpwds`` with these arguments in this process, which saves importing torch each time."""

    def run(*arguments):
        returncode = main(list(map(str, arguments)))
        return subprocess.CompletedProcess(arguments, returncode, *capsys.readouterr())

    return run


@pytest.fixture
def refused(run):
    """Runs a command that must fail with this status; returns what it says."""

    def refused(*arguments, status=1):
        done = run(*arguments)
        assert done.returncode == status, done
        return done.stderr

    return refused


@pytest.fixture
def in_process(monkeypatch):
    """Has jobs done in this process: to start workers takes longer than the jobs of most tests."""

    def without_workers(items, work, workers, engine=None, **options):
        return run_jobs(items, work, 0, engine)

    run_jobs = jobs.run_jobs
    for module in (jobs, create):
        monkeypatch.setattr(module, "run_jobs", without_workers)


@pytest.fixture
def run_limited(limited):
    """Runs ``mpwds`` where files grow to so many bytes and no further."""
    program = "import sys; from mpwds.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return lambda most_bytes, *arguments: limited(most_bytes, program, *arguments)


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """A folder with the digits' shards."""
    from mpwds.cli.demo.training import ensure_digits

    directory = tmp_path_factory.mktemp("digits")
    ensure_digits(directory)
    return directory


@pytest.fixture
def web():
    """A web server that takes uploads."""
    server = Web()
    yield server
    server.close()


@pytest.fixture
def write_shard(tmp_path):
    """Writes samples, whose keys are made up, to a shard; returns its path."""

    def write(name, *samples):
        path = tmp_path / name
        with mpwds.TarWriter(path) as sink:
            for index, sample in enumerate(samples):
                sink.write({"__key__": f"{index:04d}", **sample})
        return path

    return write


@pytest.fixture
def write_files(tmp_path):
    """Writes files, given by their names with a slash for folders; returns the folder they are in."""

    def write(files, folder="source"):
        for name, content in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return tmp_path / folder

    return write


@pytest.fixture(scope="session")
def picture():
    """Makes noisy RGB images that are brightest in one channel."""

    def picture(channel, width=20, height=20):
        pixels = np.random.default_rng(width * height).integers(0, 60, (height, width, 3), np.uint8)
        pixels[..., channel] += 150
        return PIL.Image.fromarray(pixels)

    return picture


@pytest.fixture(scope="session")
def saved():
    """Makes the bytes of an image file."""

    def saved(image, image_format, **options):
        with io.BytesIO() as stream:
            image.save(stream, format=image_format, **options)
            return stream.getvalue()

    return saved
