"""Shards for the tests of indexed datasets."""

import functools
import http.server
import threading

import pytest

import mpwds


@pytest.fixture
def tar_shards(tmp_path):
    """The pattern of three tar shards of 4, 0 and 7 samples: ``cls`` counts through them."""
    number = 0
    for shard, samples in enumerate((4, 0, 7)):
        with mpwds.TarWriter(str(tmp_path / f"x-{shard}.tar")) as sink:
            for _ in range(samples):
                sink.write({"__key__": f"k{number}", "cls": number, "txt": "abc"[shard]})
                number += 1
    return str(tmp_path / "x-{0..2}.tar")


@pytest.fixture
def served(tmp_path):
    """A web server of the files in ``tmp_path``, without ranges: its URL, and the paths it was asked for."""
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            asked.append(self.path)

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=tmp_path)
    ) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()
