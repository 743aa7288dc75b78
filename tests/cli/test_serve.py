"""`mpwds serve`, as an operator runs it."""

import contextlib
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mpwds
from mpwds.feed import keys
from mpwds.feed.status_client import StatusClient
from tests.feed.serving import bits, free_port, locally

MPWDS = [sys.executable, "-m", "mpwds"]

PIPELINE = """
import mpwds

def double(number):
    return 2 * number

LENGTH = 24
dataset = mpwds.DataPipeline(range(LENGTH), seed=3).shuffle(8).map(double).batched(4)
"""


@contextlib.contextmanager
def serving(folder, *arguments):
    """A server, and the lines that it has printed when it is ready."""
    process = subprocess.Popen(
        [*MPWDS, "serve", *map(str, arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith(("serving", "sending")):
                break
        yield process, "".join(lines)
    finally:
        process.kill() if process.poll() is None else None
        process.communicate()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    return tmp_path


@pytest.fixture
def serve(folder, monkeypatch, run):
    """Runs ``mpwds serve`` in this process, for what is refused at once."""
    (folder / "empty").touch()
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "pipeline", raising=False)
    return functools.partial(run, "serve")


def test_a_file_names_the_dataset_and_sigterm_ends_the_server(folder):
    exec(PIPELINE, names := {})
    url = f"tcp://127.0.0.1:{free_port()}"
    with serving(folder, "pipeline.py:dataset", "--bind", url, "--workers", 2) as (process, said):
        assert f"at {url} with 2 workers" in said
        with mpwds.RemoteLoader(url, output="numpy") as loader:
            assert [bits(batch) for batch in loader] == locally(names["dataset"], 2)[0]
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=600)
        assert (process.returncode, rest) == (0, "ended\n")
    log = [line.partition(" ")[2].partition(" ") for line in errors.splitlines()]
    assert {name for name, _, _ in log} == {f"{socket.gethostname()}:{os.getpid()}"}
    comes, starts, goes = (event for _, _, event in log)
    assert comes == "(127.0.0.1) comes: 2 workers"
    assert starts == "starts epoch 0"
    assert re.fullmatch(r"\(127.0.0.1\) goes after \d+ s, 6 batches", goes)


def test_keys_and_metrics(folder):
    keys.generate(folder / "keys")
    url = f"tcp://127.0.0.1:{free_port()}"
    with serving(folder, "pipeline.py:dataset", "--bind", url, "--keys", "keys", "--metrics", 0) as (_, said):
        page = next(word for word in said.split() if word.startswith("http://127.0.0.1"))
        with mpwds.RemoteLoader(url, output="numpy", keys=folder / "keys") as loader:
            assert sum(len(batch) for batch in loader) == 24
            assert "mpwds_server_batches_total" in urllib.request.urlopen(page).read().decode()


def test_metrics_for_other_machines_need_a_token(folder):
    (folder / "token").write_text("secret\n")
    metrics = ["--metrics", "0.0.0.0:0", "--metrics-token", "token"]
    with serving(folder, "pipeline.py:dataset", "--bind", "tcp://127.0.0.1:0", *metrics) as (_, said):
        page = next(word for word in said.split() if word.startswith("http://0.0.0.0"))
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(page)
        request = urllib.request.Request(page, headers={"Authorization": "Bearer secret"})
        assert "mpwds_server_workers 4.0" in urllib.request.urlopen(request).read().decode()


WRONG = {
    "nothing.py:dataset": "there is no file nothing.py",
    "--images .": "no images in folders of classes",
    "pipeline.py:dataset --bind tcp://0.0.0.0:7880": "pass keys=",
    "pipeline.py:dataset --bind http://x": "tcp://HOST:PORT or ipc://PATH",
    "pipeline.py:dataset --keys none": "there is no key",
    "pipeline.py:dataset --start-method thread": "start_method must be one of",
    "pipeline.py:dataset --bind ipc:///nowhere/at/all": "must lie in a folder",
    "pipeline.py:dataset --metrics 0.0.0.0:0": "0.0.0.0:0 can be reached from other machines",
    "pipeline.py:dataset --metrics 0 --metrics-token empty": "empty is empty: write a",
}
MISUSED = {
    "pipeline.py": "expected FILE.py:NAME",
    "pipeline.py:other": "has no 'other'",
    "": "say what to serve",
    "pipeline.py:dataset --images .": "say what to serve",
    "pipeline.py:double": "is a function, which workers call without arguments: missing",
    "pipeline.py:LENGTH": "pipeline.py:LENGTH: a loader's dataset must be",
    "pipeline.py:dataset --epochs 2": "--epochs belongs to --tensorcom",
    "pipeline.py:dataset --batch-size 2": "--batch-size belongs to --images and --shards",
    "pipeline.py:dataset --size 2": "--size belongs to --images and --shards",
    "pipeline.py:dataset --metrics 99999": "a port is a number up to 65535",
    "pipeline.py:dataset --tensorcom zpush://host:1": "say --insecure",
    "pipeline.py:dataset --tensorcom zpub://{127.0.0.1,0.0.0.0}:1": "zpub://0.0.0.0:1 can be reached",
}
for words in [
    "--bind tcp://127.0.0.1:1",
    "--keys k",
    "--max-clients 1",
    "--workers-per-client 1",
    "--client-timeout 9",
    "--no-shared-memory",
    "--metrics 0",
    "--metrics-token token",
]:
    MISUSED[f"pipeline.py:double --tensorcom zpub://127.0.0.1:1 {words}"] = (
        f"{words.split()[0]} means nothing"
    )


@pytest.mark.parametrize("words", [*WRONG, *MISUSED])
def test_a_wrong_argument_is_one_line(serve, words):
    done = serve(*words.split())
    assert done.returncode == (2 if words in MISUSED else 1)
    assert {**WRONG, **MISUSED}[words] in " ".join(done.stderr.split())


USUAL = {
    "workers": 4,
    "keys": None,
    "insecure": False,
    "prefetch": 2,
    "start_method": "forkserver",
    "max_clients": None,
    "workers_per_client": None,
    "client_timeout": 10.0,
    "shared_memory": True,
}


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ([], {}),
        (["--workers", 3, "--keys", "k"], {"workers": 3, "keys": Path("k")}),
        (["--insecure", "--no-shared-memory"], {"insecure": True, "shared_memory": False}),
        (["--prefetch", 5, "--start-method", "spawn"], {"prefetch": 5, "start_method": "spawn"}),
        (["--max-clients", 6, "--workers-per-client", 2], {"max_clients": 6, "workers_per_client": 2}),
        (["--client-timeout", 7.5, "--bind", "ipc://x"], {"client_timeout": 7.5, "bind": "ipc://x"}),
    ],
)
def test_the_server_gets_what_the_options_say(serve, monkeypatch, words, changed):
    def server(dataset, bind, **options):
        raise ValueError(json.dumps({"bind": bind, **options}, default=str, sort_keys=True))

    monkeypatch.setattr("mpwds.feed.server.server.Server", server)
    expected = {**USUAL, "bind": "tcp://127.0.0.1:7880", **changed}
    said = serve("pipeline.py:dataset", *words).stderr
    assert said == f"mpwds serve: error: {json.dumps(expected, default=str, sort_keys=True)}\n"


def test_a_port_that_is_in_use_is_named(folder, serve):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = serve("pipeline.py:dataset", "--bind", "tcp://127.0.0.1:0", "--metrics", port)
        assert f"metrics at 127.0.0.1:{port}: Address already in use" in done.stderr
    url = f"tcp://127.0.0.1:{free_port()}"
    with serving(folder, "pipeline.py:dataset", "--bind", url):
        done = serve("pipeline.py:dataset", "--bind", url)
    assert done.returncode == 1
    assert f"cannot serve at {url}" in done.stderr
    assert "another server" in done.stderr


def test_images_in_folders_of_classes_are_served_augmented(tmp_path):
    for label, name in enumerate(["cat", "dog"]):
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(3):
            pixels = np.zeros((40, 60, 3), np.uint8) + np.arange(60, dtype=np.uint8)[:, None] + 100 * label
            Image.fromarray(pixels).save(tmp_path / "train" / name / f"{number}.png")
    url = f"tcp://127.0.0.1:{free_port()}"
    options = ["--images", "train", "--bind", url, "--workers", 1, "--size", 32, "--batch-size", 6]
    with serving(tmp_path, *options), mpwds.RemoteLoader(url) as loader:
        [(images, labels)] = list(loader)
        with StatusClient([url], timeout=120) as inspector:
            assert inspector.status()[0]["classes"] == ["cat", "dog"]
    assert images.shape == (6, 3, 32, 32)
    assert sorted(labels.tolist()) == [0, 0, 0, 1, 1, 1]
    images = images.numpy().transpose(0, 2, 3, 1) * (0.229, 0.224, 0.225) + (0.485, 0.456, 0.406)
    pixels = (images * 255).round().astype(int)
    assert ((pixels // 100).reshape(6, -1) == labels.numpy()[:, None]).all()
    assert len({tuple(image[0, :, 0]) for image in pixels}) == 6  # each is another part


def test_shards_of_images_are_sent_as_plain_tensorcom(tmp_path, write_shard):
    import tensorcom

    for number in range(4):
        write_shard(f"train-{number}.tar", {"png": np.full((20, 20, 3), number, np.uint8), "cls": number})
    port = free_port()
    receiver = tensorcom.Connection(f"zpull://127.0.0.1:{port}")
    context = receiver.context  # which close() forgets
    sent = ["--shards", "train-{0..3}.tar", "--tensorcom", f"zpush://127.0.0.1:{port}", "--epochs", 2]
    with serving(tmp_path, *sent, "--workers", 1, "--size", 16, "--batch-size", 4) as (process, _):
        batches = [receiver.recv() for _ in range(2)]
        rest, _ = process.communicate(timeout=600)
    receiver.close()
    context.term()
    assert rest == "sent 2 batches\n"
    assert [images.shape for images, _ in batches] == [(4, 3, 16, 16)] * 2
    assert sorted(batches[0][1].tolist()) == [0, 1, 2, 3]
