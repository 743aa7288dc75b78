"""Commands in processes of their own."""

import time


def wait_until(condition, process):
    """Waits, as long as the process runs."""
    while not condition():
        assert process.poll() is None
        time.sleep(0.01)
