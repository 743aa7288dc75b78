"""Addresses and connections for the tests of tensorcom's protocol."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading

import braceexpand
import numpy as np
import pytest
import tensorcom
import zmq

from mpwds.tensorcom import Connection

PATIENCE_S = 600


@pytest.fixture(autouse=True)
def _nothing_left(nothing_left):
    """Every test here leaves no process, descriptor or shared memory behind."""


@pytest.fixture
def folder():
    """A folder for sockets: pytest's own have names too long for them. No socket remains in it."""
    path = tempfile.mkdtemp()
    yield path
    remaining = os.listdir(path)
    shutil.rmtree(path)
    assert remaining == []


@contextlib.contextmanager
def ours(url=None, timeout=PATIENCE_S, **options):
    connection = Connection(url, timeout=timeout, **options)
    try:
        yield connection
    finally:
        connection.close(0)


@contextlib.contextmanager
def theirs(url, **options):
    connection = tensorcom.Connection(url, **options)
    context = connection.context
    try:
        yield connection
    finally:
        connection.socket.close(0)
        context.term()
        # ZeroMQ leaves the files of sockets, and tensorcom, too.
        for each in [url] if "{" not in url else braceexpand.braceexpand(url):
            path = each.partition("ipc://")[2]
            if path and tensorcom.zcom.schemes[each.partition("+")[0]][1]:
                os.unlink(path)


@contextlib.contextmanager
def meanwhile(function, *arguments):
    """Calls a function in a thread, and waits for its end."""
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    yield
    thread.join()


def run_python(program):
    """What a program prints."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def exchanged(sender, receiver, batch):
    """What ``receiver`` receives of a batch; it is sent again until then: subscribing takes a while."""
    received = []
    thread = threading.Thread(target=lambda: received.append(receiver.recv()))
    thread.start()
    while thread.is_alive():
        if sender.socket.poll(10, zmq.POLLOUT):
            sender.send(batch)
        thread.join(0.01)
    return received[0]


def a_batch(size=4):
    return [np.arange(size * 12, dtype="uint8").reshape(size, 2, 2, 3), np.arange(size, dtype="int32")]
