"""What the web server of these tests serves, and how tests read it."""

import random
import time

from mpwds.storage.streams.http import open_http

CONTENT, OTHER = (random.Random(seed).randbytes(300_000) for seed in range(2))


def read(web, **options):
    with open_http(web.url(), **options) as stream:
        return stream.read()


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
