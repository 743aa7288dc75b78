"""The setup: one segment that carries a dataset to all workers."""

import os
import pickle
import sys
import threading
import types
import warnings

import numpy as np
import pytest
import torch

from mpwds import DataPipeline, SimpleShardList, decode, pickling, random_resized_crop, shuffle
from mpwds.loader.processes import setup
from mpwds.loader.processes.setup import WorkerSetup


def through(dataset):
    pickled = setup.PickledSetup(WorkerSetup(dataset, workers=2, blocks=4, seed=5))
    with pickled.store() as stored:
        return setup.read(stored.fileno()), os.fstat(stored.fileno()).st_size


def test_carries_functions_that_use_torch_and_attributes_called_like_its_submodules():
    def look(pictures):
        return torch.is_tensor(pictures.classes), pictures.ops, pictures.backends.cudnn

    setup.PickledSetup(WorkerSetup(look, 1, 1))
    assert pickle.loads(pickling.dumps(look)).__name__ == "look"
    assert pickle.loads(pickling.dumps(type("Kept", (), {"look": look}))).__name__ == "Kept"


@pytest.mark.parametrize(
    ("stage", "imports"),
    [(random_resized_crop("jpg", 8), True), (decode("torchRGB8"), True), (decode("rgb8"), False)],
    ids=["random_resized_crop", "decode to tensors", "decode to arrays"],
)
def test_names_torch_for_stages_that_use_it_so_that_a_fork_server_imports_it_for_all_workers(stage, imports):
    pickled = setup.PickledSetup(WorkerSetup(DataPipeline([], stage), 1, 1))
    assert ("torch" in pickled.modules) == imports


def test_arrays_lie_in_the_segment_once_aligned_and_writable():
    arrays = [np.arange(100_000), np.ones(7, np.uint8), np.zeros(0)]
    got, nbytes = through(arrays)
    assert all(np.array_equal(a, b) for a, b in zip(got.dataset, arrays, strict=True))
    assert nbytes < 800_000 + 10_000
    assert got.dataset[0].ctypes.data % 64 == 0
    got.dataset[0][0] = 5


def test_a_write_to_an_array_does_not_reach_other_workers():
    pickled = setup.PickledSetup(WorkerSetup(np.zeros(1000), workers=2, blocks=4))
    with pickled.store() as stored:
        first, second = setup.read(stored.fileno()), setup.read(stored.fileno())
    first.dataset[:] = 1
    assert second.dataset.sum() == 0


def fingerprint(dataset):
    return setup.fingerprint(WorkerSetup(dataset, workers=2, blocks=4))


@pytest.mark.parametrize("length", [0, 10, 3_000_000])
def test_the_fingerprint_stays_while_the_dataset_does(length):
    array = np.zeros(length)
    before = fingerprint([array, array[::2]])
    assert before == fingerprint([array, array[::2]])
    array += 1
    assert (before == fingerprint([array, array[::2]])) == (length == 0)


def test_a_look_at_the_dataset_in_the_trainer_leaves_its_fingerprint():
    part = DataPipeline(SimpleShardList(["a.tar", "b.tar"]))
    dataset = DataPipeline(part).shuffle(2)
    before = fingerprint(dataset)
    assert [len(list(each)) for each in (dataset, part, part.pipeline[0])] == [2, 2, 2]
    assert fingerprint(dataset) == before
    dataset.append(shuffle(3))
    assert fingerprint(dataset) != before


DEFINITIONS = [
    ("def f(): return 1", "def f(): return 2", True),
    ("def f(): return 1", "def f(): return 1", False),
    ("def f(): return 1", "import functools\n@functools.wraps(f)\ndef f(g=f): return g()", False),
    (
        "import functools\ndef w(h): return functools.wraps(h)(lambda: h())\ndef f(): pass\nf = w(f)",
        "def v(h): return functools.wraps(h)(lambda x=1: h())\nf = v(f)",
        False,
    ),
    (
        "import functools\n@functools.singledispatch\ndef g(x): pass\n@g.register\ndef _(x: int): 1\nf = _",
        "@g.register\ndef _(x: str): return 2",
        False,
    ),
    ("class f:\n def g(self): return 1", "class f:\n def g(self): return 2", True),
    ("class f:\n def g(self): return 1", "class f:\n def g(self): return 1", False),
    ("class f:\n def g(self): return 1", "def f(): return 1", False),
]


@pytest.mark.parametrize(("before", "now", "differs"), DEFINITIONS)
def test_what_the_dataset_has_an_earlier_definition_of_is_warned_of(before, now, differs, monkeypatch):
    module = types.ModuleType("defined_here")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(before, vars(module))
    worker_setup = WorkerSetup([module.f], 1, 1)
    exec(now, vars(module))
    expected = "earlier definitions of f.*: run the code"
    with pytest.warns(UserWarning, match=expected) if differs else warnings.catch_warnings():
        if not differs:
            warnings.simplefilter("error")
        setup.fingerprint(worker_setup)


def test_a_setup_that_cannot_be_pickled_has_no_fingerprint():
    assert fingerprint([threading.Lock()]) is None


def test_a_dataset_that_was_told_its_epoch_has_the_fingerprint_that_it_had():
    dataset = DataPipeline(range(3)).map(abs)
    before = fingerprint(dataset)
    dataset.set_epoch(1)
    assert fingerprint(dataset) == before


def test_messages_name_the_stream_of_a_job_not_the_worker_that_carries_it():
    second_rank = WorkerSetup([], workers=2, blocks=4, rank=1, world_size=2, streams=12)
    assert second_rank.context(2, epoch=0).place == "stream 5 of 12"
