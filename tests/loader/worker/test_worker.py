"""A worker's elements of an epoch, and when it saves its state."""

import time

import pytest

from mpwds.errors import MpwdsError
from mpwds.loader.resume.progress import Position, unpack_state
from mpwds.loader.worker import elements
from mpwds.loader.worker.elements import WorkerIterator
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline

LATER = 10 * elements.STATE_EVERY_S


def begun(position=None, dataset=None):
    dataset = DataPipeline(range(20)).shuffle(4) if dataset is None else dataset
    return WorkerIterator(dataset, Context(), *([] if position is None else [position]))


def test_it_saves_no_state_before_it_is_time():
    running = begun()
    next(running)
    assert running.state(time.monotonic()) is None


def test_it_saves_a_state_behind_the_last_element_from_which_another_goes_on():
    whole = list(begun())
    running = begun()
    for _ in range(7):
        next(running)
    state = running.state(time.monotonic() + LATER)
    assert list(begun(Position(7, state, 7))) == whole[7:]
    assert unpack_state(state)["source"] == {"cursor": 10}


def test_the_next_state_is_due_after_that_time_again():
    running = begun()
    next(running)
    assert running.state(time.monotonic() + LATER) is not None
    assert running.state(time.monotonic()) is None
    assert running.state(time.monotonic() + LATER) is not None


def test_a_state_that_is_dear_is_saved_less_often(monkeypatch):
    running = begun()
    next(running)
    took_s = 7.0
    began = time.monotonic() + LATER
    monkeypatch.setattr(elements.time, "monotonic", lambda: began + took_s)
    assert running.state(began) is not None
    due = began + took_s + took_s / elements.STATE_SHARE
    assert running.state(due - 1) is None
    assert running.state(due + 1) is not None


def test_elements_from_the_state_to_the_position_are_counted():
    running = begun(Position(first=3))
    assert [running.number for _ in running] == list(range(20))


def test_a_position_behind_the_end_is_an_error():
    with pytest.raises(MpwdsError, match="made 20 batches, 21 were delivered before"):
        list(begun(Position(first=21)))


def test_a_dataset_without_state_says_so_once():
    running = begun(dataset=lambda: iter("abc"))
    next(running)
    assert running.state(0) == "a function has no state"
    assert running.state(0) is None


def test_when_it_is_closed_its_files_are():
    closed = []

    def dataset():
        try:
            yield from "abc"
        finally:
            closed.append(True)

    running = begun(dataset=dataset)
    next(running)
    running.close()
    assert closed == [True]
