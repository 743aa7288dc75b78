"""The examples of docs/examples learn, and ranks that train together see each sample once."""

import json
import re
from itertools import chain
from pathlib import Path

import pytest

from tests.examples.conftest import ROOT

EXAMPLES = ROOT / "docs" / "examples"
RANKS = Path(__file__).parent / "ranks"
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("example", ["lightning_fit.py", "accelerate_loop.py", "keras_fit.py"])
def test_an_example_learns_from_both_loaders(run, example):
    lines = run(EXAMPLES / example)
    epochs = [re.fullmatch(r"epoch (\d): loss ([\d.]+), accuracy ([\d.]+)", line) for line in lines]
    figures = [
        (float(loss), float(accuracy)) for _, loss, accuracy in (found.groups() for found in epochs if found)
    ]
    assert len(figures) == 8
    for of_loader in (figures[:4], figures[4:]):
        (first_loss, _), *_, (last_loss, last_accuracy) = of_loader
        assert last_loss < first_loss / 4
        assert last_accuracy > 0.9


def test_a_trainer_learns_from_both_loaders_and_resumes_in_the_middle_of_an_epoch(run, tmp_path):
    lines = run(EXAMPLES / "huggingface_trainer.py", tmp_path)
    scores = [line.split()[-1] for line in lines if line.startswith("accuracy after each epoch")]
    resumed = [line.rpartition(": ")[2] for line in lines if line.startswith("resumed from checkpoint")]
    assert len(scores) == 2
    assert min(map(float, scores)) > 0.9
    assert resumed == ["True", "True"]


def test_what_the_page_shows_is_in_the_examples():
    examples = {path.name: stripped(path.read_text()) for path in EXAMPLES.glob("*.py")}
    page = (ROOT / "docs/guides/training/trainers.md").read_text()
    for section in page.split("\n## ")[1:]:
        of_section = "\n\n".join(examples[name] for name in re.findall(r"/examples/(\w+\.py)\)", section))
        blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        assert blocks
        for block in blocks:
            assert stripped(block) in of_section, block


def stripped(text):
    """Lines without their indentation."""
    return "\n".join(line.strip() for line in text.strip().splitlines())


def told(lines):
    """What the ranks told. A line may begin with what another rank printed and has not ended yet."""
    return [json.loads(line.partition("tells ")[2]) for line in lines if "tells " in line]


def seen_by_ranks(messages):
    """What each rank saw in each epoch, by case: ``{case: [[rank 0, rank 1], ...]}``."""
    cases = {}
    for report in sorted(
        (report for report in messages if "case" in report), key=lambda report: report["rank"]
    ):
        cases.setdefault(report["case"], []).append(report["epochs"])
    return {case: list(zip(*ranks, strict=True)) for case, ranks in cases.items()}


def check_each_sample_is_seen_once(seen):
    for case, epochs in seen.items():
        for number, ranks in enumerate(epochs):
            samples = sorted(sample for rank in ranks for sample in rank)
            assert samples == list(range(48)), f"{case}, epoch {number}"
        assert len(epochs) == 2, case
        assert epochs[0] != epochs[1], f"{case}: both epochs have the same order"


def test_ranks_of_lightning_see_each_sample_once(run):
    seen = seen_by_ranks(told(run(RANKS / "of_lightning.py", ranks=2)))
    assert set(seen) == {"DataLoader", "MultiLoader", "rebatched", "DataLoader of a pipeline"}
    check_each_sample_is_seen_once(seen)


def test_ranks_of_keras_see_each_sample_once(run):
    seen = seen_by_ranks(told(run(RANKS / "of_keras.py", ranks=2)))
    assert set(seen) == {"DataLoader", "MultiLoader", "rebatched"}
    check_each_sample_is_seen_once(seen)


def test_ranks_of_accelerate_and_trainer_see_each_sample_once(run, tmp_path):
    messages = told(run(RANKS / "of_huggingface.py", tmp_path, ranks=2))
    seen = seen_by_ranks(messages)
    loaders = {f"Accelerator, {loader}" for loader in ("DataLoader", "MultiLoader", "rebatched", "WebLoader")}
    assert set(seen) == loaders | {"Trainer, DataLoader", "Trainer, MultiLoader"}
    check_each_sample_is_seen_once(seen)
    refusals = [message["refused"] for message in messages if "refused" in message]
    assert len(refusals) == 2
    assert all("divides itself among the 2 ranks" in refusal for refusal in refusals)


def check_the_rest_came(resumed, count):
    assert len(resumed) == count
    for run in resumed:
        assert run["batches"] == run["expected"], (run["loader"], run["steps"])
        assert len(run["batches"]) == 30 - run["steps"]


def test_lightning_resumed_on_two_ranks_gives_each_the_rest_of_its_own(run, tmp_path):
    program = Path(__file__).parent / "programs" / "resumed_in_lightning.py"
    check_the_rest_came(told(run(program, tmp_path, ranks=2)), 20)


def test_lightning_resumed_in_the_middle_of_an_epoch_gets_the_rest_of_it(run, tmp_path):
    messages = told(run(Path(__file__).parent / "programs" / "resumed_in_lightning.py", tmp_path))
    *resumed, validation = messages
    check_the_rest_came(resumed, 10)
    epochs = [batch for sanity, batch in validation["validated"] if not sanity]
    assert len(epochs) == 12
    for first in (0, 4, 8):
        assert sorted(chain(*epochs[first : first + 4])) == list(range(12))
