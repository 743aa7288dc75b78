"""A server in a process of its own: reads a pickle of its arguments, prints its URL, serves until SIGTERM."""

import logging
import pickle
import signal
import sys

from mpwds.feed.server.server import Server


def serve(pickled):
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    dataset, url, options = pickle.loads(pickled)
    with Server(dataset, url, **options) as server:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.stop())
        print(server.url, flush=True)
        server.serve()


if __name__ == "__main__":
    serve(sys.stdin.buffer.read())
