"""An iteration that an exception ends has ended when the exception is dropped, garbage collector or not."""

import contextlib
import gc

import pytest

import mpwds
from mpwds.loader.dataloader.data_loader import DataLoader
from tests.loader.dataloader.data_loader_datasets import Numbers
from tests.loader.faults.processes import children
from tests.open_files import descriptors

pytestmark = pytest.mark.usefixtures("quick_workers")


def fail(element):
    raise ValueError(element)


def pipeline():
    return mpwds.DataPipeline(range(10))


FAILING = {
    "sample of a DataLoader": lambda: DataLoader(list(map(str, range(4))), num_workers=1, collate_fn=fail),
    "worker of a DataLoader": lambda: DataLoader(Numbers(), num_workers=1, worker_init_fn=fail),
    "dataset of a MultiLoader": lambda: mpwds.MultiLoader(pipeline().map(fail), workers=1),
    "stage behind a MultiLoader": lambda: mpwds.MultiLoader(pipeline(), workers=1).map(fail),
    "stage that runs ahead": lambda: mpwds.MultiLoader(pipeline(), workers=1).map(fail).prefetch(),
    "predicate behind a MultiLoader": lambda: mpwds.MultiLoader(pipeline(), workers=1).select(fail),
    "collation behind a MultiLoader": lambda: mpwds.MultiLoader(pipeline(), workers=1).batched(2, fail),
    "handler behind a MultiLoader": lambda: mpwds.MultiLoader(pipeline(), workers=1).map(fail, handler=fail),
    "numbers where rows are expected": lambda: mpwds.MultiLoader(pipeline(), workers=1).rebatched(2),
    "stage behind a WebLoader": lambda: mpwds.WebLoader(pipeline(), num_workers=1).map(fail),
    "training loop": lambda: map(fail, mpwds.MultiLoader(pipeline(), workers=1).map(str)),
}


def iterate(make):
    with contextlib.suppress(Exception):
        list(make())
        pytest.fail("nothing was raised")


@pytest.mark.parametrize("make", FAILING.values(), ids=FAILING)
def test_nothing_is_left_of_an_iteration_that_failed(make):
    iterate(make)  # what is imported at first use keeps frames
    gc.collect()
    gc.disable()
    try:
        processes, before = children(recursive=True), descriptors()
        iterate(make)
        assert not children(recursive=True) - processes
        assert not descriptors() - before
    finally:
        gc.enable()
