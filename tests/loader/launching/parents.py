"""A dataset that needs nothing to be imported, for what is started anew in each test."""

import os


class Parent:
    """Each element is the process that started the worker."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return os.getppid()
