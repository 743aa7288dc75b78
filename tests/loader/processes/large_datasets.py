"""Datasets that workers import without torch."""

import os

import numpy as np


class Touching:
    """Reads all of its data in every worker; yields its sum each time."""

    def __init__(self, data, times=3):
        self.data = data
        self.times = times

    def __iter__(self):
        for _ in range(self.times):
            yield int(np.asarray(self.data).sum(dtype=np.int64))


class Writing:
    """Writes its worker's number into its data, and yields it."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        worker = int(os.environ["WORKER"])
        self.data[worker] = worker + 1
        yield worker
