"""Runs that are killed go on under another number of ranks, and take the steps of an undisturbed run."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

import mpwds
from tests.examples.conftest import ROOT

EXAMPLES = ROOT / "docs" / "examples"
EPOCHS, STEPS = 12, 144
FOREVER = 1000
PROGRAMS = ["lightning_elastic.py", "accelerate_elastic.py", "huggingface_elastic.py", "ray_train.py"]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request):
    needed = ["ray", "pandas"] if request.param == "ray_train.py" else []
    if not all(map(importlib.util.find_spec, needed)):
        pytest.skip("Ray Train is not installed (pip install 'ray[train]')")
    return EXAMPLES / request.param


@pytest.fixture(scope="module")
def undisturbed(program, tmp_path_factory):
    return losses_of(program, tmp_path_factory.mktemp("undisturbed"), ranks=1)


def started(program, folder, ranks, epochs):
    """Starts a program, on ranks of torchrun or, if it is Ray's, on workers that it starts itself."""
    if program.name == "ray_train.py":
        command = [program, folder, str(ranks), str(epochs)]
    else:
        command = [
            "-m",
            "torch.distributed.run",
            f"--nproc-per-node={ranks}",
            "--standalone",
            program,
            folder,
            str(epochs),
        ]
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT), str(EXAMPLES)]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with open(folder / "stderr", "w") as errors:
        return subprocess.Popen(
            [sys.executable, *command], env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )


def step_in(line):
    return re.search(r"\bstep (\d+): loss (\d+\.\d+)", line)


def losses_of(program, folder, ranks):
    with started(program, folder, ranks, EPOCHS) as process:
        found = list(filter(None, map(step_in, process.stdout)))
    assert process.returncode == 0, (folder / "stderr").read_text()
    return {int(match[1]): float(match[2]) for match in found}


def kill_after(step, program, folder, ranks):
    """Runs a program on some ranks, and kills all of them once it has taken a step."""
    with started(program, folder, ranks, FOREVER) as process:
        if program.name == "ray_train.py":  # what it prints may come when it has long gone past the end
            record = folder / "runs" / "stripes" / "checkpoint_manager_snapshot.json"
            while not (record.exists() and "checkpoint_dir_name" in record.read_text()):  # Ray knows one
                assert process.poll() is None, (folder / "stderr").read_text()
                time.sleep(0.01)
        else:
            assert any((found := step_in(line)) and int(found[1]) >= step for line in process.stdout)
        running = psutil.Process(process.pid)
        trainers = running.children()
        for each in [running, *trainers]:
            each.send_signal(signal.SIGKILL)
        psutil.wait_procs(trainers, timeout=60)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_killed_run_takes_the_same_steps_on_another_number_of_ranks(
    program, before, after, undisturbed, tmp_path
):
    assert set(undisturbed) == set(range(STEPS))
    kill_after(9, program, tmp_path, before)
    resumed = losses_of(program, tmp_path, after)
    assert 4 <= min(resumed) < STEPS - 1
    assert resumed == {
        step: pytest.approx(undisturbed[step], abs=2e-3) for step in range(min(resumed), STEPS)
    }


def test_a_state_after_an_epochs_last_batch_goes_on_with_the_next_epoch(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    from all_ranks import AllRanks

    dataset = mpwds.DataPipeline(range(8)).shuffle(4)
    loaders = [mpwds.MultiLoader(dataset, workers=0, streams=4, output="numpy") for _ in range(2)]
    first, second = (AllRanks(loader, length=8) for loader in loaders)
    batches = iter(first)
    for _ in range(8):
        next(batches)
    second.load_state_dict(first.state_dict())
    list(batches)
    with pytest.warns(UserWarning, match="had nothing left"):
        assert list(map(int, second)) == list(map(int, first))
