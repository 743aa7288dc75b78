"""The memory that Python code takes."""

import contextlib
import tracemalloc


@contextlib.contextmanager
def allocating_below(most_bytes, held_bytes=None):
    """A block that never has so many bytes allocated at a time and, if given, holds fewer in the end."""
    tracemalloc.start()
    try:
        yield
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most_bytes
    assert held_bytes is None or held < held_bytes
