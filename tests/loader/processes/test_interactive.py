"""Interactive sessions, as far as they need no notebook: code that is reloaded counts in workers that run."""

import importlib
import sys

import pytest

import mpwds

MODULE = """
def scaled(number):
    return {factor} * number
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A user's module in an interactive session; write and reload it."""
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "scaling_of_a_session.py"
    path.write_text(MODULE.format(factor=2))
    yield importlib.import_module(path.stem), path
    del sys.modules[path.stem]


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_a_module_that_is_reloaded_counts_in_workers_that_run(module, capfd, start_method):
    scaling, path = module
    dataset = mpwds.DataPipeline(range(3)).map(lambda number: scaling.scaled(number))
    with mpwds.MultiLoader(dataset, 1, output="numpy", start_method=start_method) as loader:
        assert list(map(int, loader)) == [0, 2, 4]
        pids = loader.worker_pids
        assert (list(map(int, loader)), loader.worker_pids) == ([0, 2, 4], pids)
        path.write_text(MODULE.format(factor=500))
        importlib.reload(scaling)
        assert list(map(int, loader)) == [0, 500, 1000]
    assert capfd.readouterr().err.count("has changed: its workers start again") == 1
