"""An iteration that two threads are in at once: one of them goes on, the other is told."""

import threading

import pytest

from mpwds import MultiLoader
from mpwds.loader.output.one_thread import OneThread

pytestmark = pytest.mark.usefixtures("quick_workers")

NUMBERS = [0, 1, 2, 3]


class Gate:
    """A function of an element that stays in the second one until it is let go on."""

    def __init__(self):
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, number):
        if number == 1:
            self.entered.set()
            self.opened.wait()
        return number

    def numbers(self):
        return map(self, NUMBERS)


ITERATIONS = {
    "without workers": lambda gate: MultiLoader(gate.numbers, workers=0, output="numpy"),
    "stages without workers": lambda gate: MultiLoader(NUMBERS, workers=0, output="numpy").map(gate),
    "stages": lambda gate: MultiLoader(NUMBERS, workers=1, output="numpy").map(gate),
}


@pytest.mark.parametrize("kind", list(ITERATIONS))
def test_the_thread_that_comes_second_is_told_and_the_first_gets_all_elements(kind):
    gate = Gate()
    received = []
    with ITERATIONS[kind](gate) as loader:
        iterator = iter(loader)
        first = threading.Thread(target=lambda: received.extend(iterator))
        first.start()
        gate.entered.wait()
        with pytest.raises(RuntimeError, match="another thread is in the middle of next.. of this iteration"):
            next(iterator)
        gate.opened.set()
        first.join()
        state = loader.state_dict()
    assert received == NUMBERS
    assert state["epoch"] == 1


def test_a_value_error_of_the_program_stays_what_it_is():
    def failing():
        yield 1
        raise ValueError("generator already executing")

    elements = OneThread(failing())
    assert next(elements) == 1
    with pytest.raises(ValueError, match="generator already executing"):
        next(elements)


def test_an_iteration_that_was_closed_is_at_its_end():
    elements = OneThread(number for number in NUMBERS)
    assert next(elements) == 0
    elements.close()
    assert list(elements) == []
