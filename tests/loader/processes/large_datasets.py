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


class Indexed:
    """A map-style dataset that reads all of its data for every sample."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return int(np.asarray(self.data).sum(dtype=np.int64))


class Writing:
    """Writes its worker's number into its data, then yields the beginning of it."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        yield 0
        worker = int(os.environ["WORKER"])
        self.data[worker] = worker + 1
        yield self.data[:2].tolist()
