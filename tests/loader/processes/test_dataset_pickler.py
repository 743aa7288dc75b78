"""find_unpicklable: the path to the part that cannot be pickled."""

import functools
import multiprocessing
import threading

import numpy as np
import pytest

from mpwds.loader.processes.setup import find_unpicklable

lock = threading.Lock()


class Setup:
    def __init__(self, dataset):
        self.dataset = dataset
        self.argv = ["a"]


class Slotted:
    __slots__ = ("handle", "number")

    def __init__(self, handle):
        self.handle = handle
        self.number = 1


class Reader:
    def __init__(self, handle):
        self.handle = handle

    def read(self):
        return self.handle


class Refusing:
    def __reduce__(self):
        raise TypeError("no")


def enclosing(value):
    def function():
        return value

    return function


def of_the_users_program():
    variables = {"lock": lock, "__name__": "__main__"}
    exec("def read():\n    return lock\n", variables)
    return variables["read"]


def containing_itself():
    circle = [lock]
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        ([1, {"x": lock}], "dataset[1]['x'] is a lock"),
        (Reader([np.zeros(3), (lock,)]), "dataset.handle[1][0] is a lock"),
        (Reader(lock).read, "dataset.__self__.handle is a lock"),
        (Slotted(lock), "dataset.handle is a lock"),
        (enclosing(lock), "dataset's variable value is a lock"),
        (functools.partial(len, [lock]), "dataset.args[0][0] is a lock"),
        (enclosing(Reader(lock)), "dataset's variable value.handle is a lock"),
        ([Refusing()], "dataset[0] is a Refusing"),
        ([multiprocessing.Value("i")], "dataset[0] is a Synchronized"),
        (of_the_users_program(), "dataset's global lock is a lock"),
        (containing_itself(), "dataset[0] is a lock"),
    ],
)
def test_finds_the_innermost_part(dataset, expected):
    assert find_unpicklable(Setup(dataset)) == expected
