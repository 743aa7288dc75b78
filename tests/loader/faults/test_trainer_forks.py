"""The trainer forks while its loader runs: the child has no part in the loader, which goes on unharmed."""

import pytest

from tests.loader.faults.misfortunes import LENGTH
from tests.loader.faults.programs import with_loader

PROGRAM = """
    import gc

    def fork():
        loading = loader()
        iterator = iter(loading)
        held = next(iterator)
        child = os.fork()
        if child == 0:
{child}
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        received = [int(held[-1]), *(int(array[0]) for array in iterator)]
        assert int(held[0]) == 0
        loading.close()
        return status, received

    with nothing_left():
        print(*fork())
"""

CHILDREN = {
    "exits": ("sys.exit(5)", 5, ""),
    "exits at once": ("os._exit(5)", 5, ""),
    "fails": ("raise SystemError('a child')", 1, "SystemError: a child"),
    "drops everything": ("del held, iterator, loading; gc.collect(); os._exit(5)", 5, ""),
    "closes the loader": ("loading.close(); iterator.close(); os._exit(5)", 5, ""),
    "forks again": ("os._exit(5 if os.fork() else 0)", 5, ""),
    "runs another program": ("os.execv('/bin/sh', ['sh', '-c', 'exit 5'])", 5, ""),
    "iterates": ("next(iterator)", 1, "this iteration belongs to process"),
    "begins an epoch": ("iter(loading); os._exit(5)", None, "make a loader of its own here"),
    "has a loader of its own": ("os._exit(sum(1 for batch in loader()))", LENGTH, ""),
}


QUICK = ("iterates", "drops everything", "has a loader of its own")


@pytest.mark.parametrize(
    ("start_method", "child"),
    [
        *(
            pytest.param("fork", child, marks=() if child in QUICK else pytest.mark.slow)
            for child in CHILDREN
        ),
        pytest.param("spawn", "exits", marks=pytest.mark.slow),
        pytest.param("spawn", "has a loader of its own", marks=pytest.mark.slow),
        pytest.param("DataLoader", "fails", marks=pytest.mark.slow),
        pytest.param("DataLoader", "has a loader of its own", marks=pytest.mark.slow),
    ],
)
def test_whatever_a_fork_of_the_trainer_does_its_loader_is_unharmed(program, start_method, child):
    does, expected, complaint = CHILDREN[child]
    text = with_loader(PROGRAM.format(child=f"            {does}"))
    status, output, errors = program(text, start_method).finish()
    assert complaint in errors
    assert bool(errors) is bool(complaint)
    assert (status, output) == (0, f"{1 if expected is None else expected} {list(range(LENGTH))}\n")
