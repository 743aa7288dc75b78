import hashlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import mpwds
from mpwds.cli.demo.training import ImageTask, default_cache_dir, digits_task, ensure_digits, small_cnn, train

ROOT = Path(__file__).parents[2]
TRAIN = [f"digits-train-{number:03d}.tar" for number in range(12)]
TEST = [f"digits-test-{number:03d}.tar" for number in range(4)]


def digests(directory):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def samples(directory, names):
    return list(mpwds.WebDataset([directory / name for name in names]).decode("l8"))


def test_the_shards_hold_every_digit_once_as_it_was(digits):
    from sklearn.datasets import load_digits  # takes a second

    original = load_digits()
    written = {
        int(sample["__key__"].removeprefix("digit-")): sample for sample in samples(digits, TRAIN + TEST)
    }
    assert sorted(written) == list(range(1797))
    for index, sample in written.items():
        assert sample["cls"] == original.target[index]
        np.testing.assert_allclose(sample["png"] / 255 * 16, original.images[index], atol=0.05)


@pytest.mark.parametrize("names", [TRAIN, TEST])
def test_each_part_has_all_classes_in_even_shares(digits, names):
    counts = np.bincount([sample["cls"] for sample in samples(digits, names)], minlength=10)
    assert counts.min() > 0.9 * counts.max()


def test_the_task_says_what_the_shards_hold(digits):
    task = digits_task(digits, batch_size=64)
    assert sum(len(labels) for _, labels in task.train) == task.train_samples == 1356
    assert sum(len(labels) for _, labels in task.held_out) == task.held_out_samples == 441
    images, labels = next(iter(task.train))
    assert (images.shape, images.dtype, labels.shape) == ((64, 3, 8, 8), np.uint8, (64,))


def test_the_program_of_the_readme_trains_from_them(digits):
    [program] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    step = "def train_step(images, labels):\n    print(tuple(images.shape[1:]), images.dtype, len(labels))\n"
    done = subprocess.run(
        [sys.executable, "-c", step + program], cwd=digits, capture_output=True, text=True, check=True
    )
    steps = done.stdout.splitlines()
    assert {line.rpartition(" ")[0] for line in steps} == {"(3, 8, 8) torch.uint8"}
    assert sum(int(line.rpartition(" ")[2]) for line in steps) == 3 * 1356


def test_what_is_complete_is_not_written_again(digits):
    before = {path: path.stat().st_mtime_ns for path in digits.iterdir()}
    assert not ensure_digits(digits)
    assert {path: path.stat().st_mtime_ns for path in digits.iterdir()} == before


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(Path.unlink, id="missing"),
        pytest.param(lambda shard: shard.write_bytes(shard.read_bytes()[:30_000]), id="truncated"),
        pytest.param(lambda shard: shard.write_bytes(b""), id="empty"),
        pytest.param(lambda shard: shard.write_bytes(bytes(10240)), id="without samples"),
    ],
)
def test_a_shard_that_is_not_whole_is_made_again(digits, tmp_path, spoil):
    for shard in digits.iterdir():
        (tmp_path / shard.name).write_bytes(shard.read_bytes())
    spoil(tmp_path / "digits-test-002.tar")
    assert ensure_digits(tmp_path)
    assert digests(tmp_path) == digests(digits)


def test_several_may_write_at_the_same_time(digits, tmp_path):
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ensure_digits, [tmp_path / "new"] * 4))
    assert digests(tmp_path / "new") == digests(digits)


def test_the_bytes_are_the_same_in_a_folder_called_what_a_pattern_could_mean(digits, tmp_path):
    directory = tmp_path / "50%d {1..2}::x"
    assert ensure_digits(directory)
    assert digests(directory) == digests(digits)
    assert sum(len(labels) for _, labels in digits_task(directory, 64).held_out) == 441


def test_the_cache_folder_is_where_the_system_says(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/fast/cache")
    assert default_cache_dir() == Path("/fast/cache/mpwds/digits")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/ada")
    assert default_cache_dir() == Path("/home/ada/.cache/mpwds/digits")


def test_without_scikit_learn_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'mpwds\[demo\]'"):
        ensure_digits(tmp_path / "new")


@pytest.mark.parametrize("size", [8, 9, 31, 32, 64, 100, 224])
def test_the_network_takes_images_of_any_size(size):
    assert small_cnn(classes=7, size=size)(torch.zeros(2, 3, size, size)).shape == (2, 7)


@pytest.mark.slow
def test_the_accuracy_is_measured_on_the_held_out_samples():
    def batches(count, label):
        images = np.full((count, 3, 8, 8), 200 * label, np.uint8)
        return [(images, np.full(count, label))]

    task = ImageTask(
        train=mpwds.DataPipeline(batches(30, 0) + batches(30, 1)),
        held_out=mpwds.DataPipeline([*batches(3, 1), (batches(1, 0)[0][0], np.array([1]))]),
        train_samples=60,
        held_out_samples=4,
        names=["dark", "bright"],
        size=8,
        shards=1,
    )
    outcome = train(task, epochs=20, workers=0, lr=3e-3)
    assert outcome.accuracy == 0.75
    assert outcome.stats.batches == 20 * 2
