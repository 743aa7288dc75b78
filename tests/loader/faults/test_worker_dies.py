"""A worker dies or fails, at each step of its life: the trainer hears it in its turn, and can begin again."""

import os
import re
import signal

import numpy as np
import pytest

from mpwds.errors import WorkerDied
from tests.loader.faults.misfortunes import (
    CHEAP,
    EXCEPTIONS,
    EXITCODES,
    FAULTS,
    KINDS,
    LARGE,
    LENGTH,
    STEPS,
    UNLUCKY,
    Numbers,
    endless,
    loader_of,
    numbers_in,
    pids_of,
)
from tests.loader.faults.processes import wait_until_gone, wait_until_idle
from tests.marks import slow

pytestmark = pytest.mark.usefixtures("one_fork_server")

FORKS = ("fork", "DataLoader by fork")
FEW = ("SIGKILL", "os._exit", "exception")
FEW_FAULTS = [*FEW, *slow(*(fault for fault in FAULTS if fault not in FEW))]


def happens(kind, step, fault):
    """Whether a case can happen, and for loaders that are slow to start, is one of those to try."""
    if step == "unpickling" and kind in FORKS:
        return False
    if (kind, step, fault) == ("DataLoader", "unpickling", "exception"):  # its workers are forks then
        return False
    dear = [("unpickling", "SIGKILL"), ("unpickling", "exception"), ("writing a block", "SIGKILL")]
    return kind in CHEAP or (step, fault) in dear


def case(kind, step, fault):
    """Quick: both sorts of fault at each step with one loader, and deaths with another."""
    sorts = fault in ("SIGKILL", "exception")
    quick = (kind == "DataLoader" and sorts) or (
        kind == "fork" and (fault == "SIGKILL" or step == "between batches")
    )
    quick = quick or (kind, step, fault) == ("spawn", "unpickling", "SIGKILL")
    return pytest.param(kind, step, fault, marks=() if quick else pytest.mark.slow)


CASES = [
    case(kind, step, fault)
    for kind in KINDS
    for step in STEPS
    for fault in FAULTS
    if happens(kind, step, fault)
]


@pytest.mark.parametrize(("kind", "step", "fault"), CASES)
def test_a_misfortune_is_told_in_its_turn_and_the_next_epoch_is_whole(kind, step, fault, tmp_path, capfd):
    loader = loader_of(kind, Numbers(step=step, fault=fault, mark=tmp_path / "mark"))
    received = []
    with pytest.raises(EXCEPTIONS.get(fault, WorkerDied)) as caught:
        for number in numbers_in(loader):
            received.append(number)
    if type(caught.value) is WorkerDied:
        assert caught.value.exitcode == EXITCODES[fault]
        how = {3: "exited with status 3 .*: see its message above"}.get(
            EXITCODES[fault], f"was killed by {fault}"
        )
        assert re.search(how, str(caught.value))
    last = {"unpickling": len(received), "before the first batch": 1}.get(step, UNLUCKY)
    assert received == list(range(last))
    assert list(numbers_in(loader)) == list(range(LENGTH))
    loader.close()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGKILL, "SIGKILL .*: by somebody, or for want of memory"),
        (signal.SIGRTMIN + 2, f"signal {signal.SIGRTMIN + 2} .*: see the system's log"),
    ],
)
@pytest.mark.parametrize("size", [1, LARGE], ids=["to send", "for a block"])
@pytest.mark.parametrize("kind", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_worker_killed_while_it_waits_is_told_after_what_it_had_sent(kind, size, number, how):
    loader = loader_of(kind, endless(size))
    iterator = iter(loader)
    next(iterator)
    pid = loader.worker_pids[1]
    wait_until_idle(pid)
    os.kill(pid, number)
    with pytest.raises(WorkerDied, match=rf"worker 1 \(pid {pid}\) was killed by {how}"):
        for _ in iterator:
            pass
    assert sum(1 for _ in zip(range(20), loader, strict=False)) == 20
    loader.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGALRM], ids=lambda n: n.name)
@pytest.mark.parametrize("kind", CHEAP)
def test_a_worker_killed_between_epochs_is_told_in_the_next_and_the_one_after_is_whole(kind, number):
    options = {} if kind == "fork" else {"persistent_workers": True}
    loader = loader_of(kind, Numbers(), **options)
    iterator = iter(loader)
    assert list(numbers_in(iterator)) == list(range(LENGTH))
    pid = pids_of(loader, iterator)[1]
    wait_until_idle(pid)
    os.kill(pid, number)
    wait_until_gone([pid])
    with pytest.raises(WorkerDied) as caught:
        list(loader)
    assert caught.value.exitcode == -number
    assert list(numbers_in(loader)) == list(range(LENGTH))
    loader.close()


@pytest.mark.parametrize("fault", FEW_FAULTS)
@pytest.mark.parametrize("kind", ["fork", *slow("spawn")])
def test_what_happens_while_a_dataset_is_closed_with_its_loader_is_nobodys_concern(kind, fault, capfd):
    def generate():
        try:
            while True:
                yield 1
        finally:
            FAULTS[fault]()

    with loader_of(kind, generate) as loader:
        next(iter(loader))
    assert loader.worker_pids == []
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("fault", FEW_FAULTS)
def test_what_happens_while_an_epoch_left_early_is_closed_is_told_in_the_next(fault, tmp_path):
    misfortune = Numbers(step="closing", fault=fault, mark=tmp_path / "mark")

    def generate():
        try:
            for number in range(LENGTH):
                yield np.full(LARGE, number)
        finally:
            misfortune.happen("closing")

    with loader_of("fork", generate) as loader:
        next(iter(loader))
        if fault in EXCEPTIONS:
            with pytest.warns(RuntimeWarning, match="an epoch that was left early failed in worker"):
                received = list(numbers_in(loader))
        else:
            with pytest.raises(WorkerDied) as caught:
                list(loader)
            assert caught.value.exitcode == EXITCODES[fault]
            received = list(numbers_in(loader))
        assert received == [number for number in range(LENGTH) for _ in range(2)]
