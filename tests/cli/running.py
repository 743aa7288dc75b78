"""Commands in processes of their own."""

import signal
import subprocess
import time


def wait_until(condition, process):
    """Waits, as long as the process runs."""
    while not condition():
        assert process.poll() is None
        time.sleep(0.01)


def signalled(condition, words, number=signal.SIGKILL, **options):
    """Runs a command, and sends it a signal when the condition holds; returns its exit status."""
    process = subprocess.Popen(list(map(str, words)), **options)
    wait_until(condition, process)
    process.send_signal(number)
    return process.wait(600)
