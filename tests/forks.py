"""A fork of the test's process."""

import os


def raised_in_fork(function):
    """The text of the exception that a function raises in a fork of this process; empty if it raises none."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException as error:
            os.write(writes, str(error).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text
