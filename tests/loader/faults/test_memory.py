"""No memory: in a worker, in its control group, in ``/dev/shm``, or no memfd. An error that says so."""

import os
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.loader.faults.processes import wait_until

pytestmark = pytest.mark.slow

LOADER = """
    import sys
    import numpy as np
    import mpwds
    from inside import nothing_left

    {before}

    def generate():
        for number in range(6):
            yield np.broadcast_to(np.int64(number), {size})

    def run():
        with mpwds.MultiLoader(generate, workers=2, start_method=sys.argv[1], output="numpy") as loader:
            return [int(array[-1]) for array in loader]

    try:
        with nothing_left():
            {outcome}
    except (MemoryError, mpwds.MpwdsError) as error:
        print(type(error).__name__, error)
"""


def text(before="", size=100_000, outcome="print(run())"):
    return LOADER.format(before=before, size=size, outcome=outcome)


class ControlGroup:
    """A control group whose processes may have this much memory together."""

    def __init__(self, limit_nbytes):
        old = Path("/sys/fs/cgroup/memory")
        parent, name = (old, "memory.limit_in_bytes") if old.exists() else (old.parent, "memory.max")
        self.folder = parent / f"mpwds-test-{uuid.uuid4().hex}"
        try:
            self.folder.mkdir()
            (self.folder / name).write_text(str(limit_nbytes))
        except OSError as error:
            self.close()
            pytest.skip(f"no control group can be made here: {error}")

    def close(self):
        if self.folder.exists():
            wait_until(lambda: not (self.folder / "cgroup.procs").read_text(), "the group to be empty")
            self.folder.rmdir()


@pytest.fixture
def small_group():
    group = ControlGroup(400 << 20)
    yield f"echo $$ > {group.folder}/cgroup.procs"
    group.close()


def test_a_worker_that_the_out_of_memory_killer_takes_is_told_as_that(program, small_group):
    greedy = """
    class Greedy:
        def __iter__(self):
            yield np.zeros(100_000)
            hoard = []
            while True:
                hoard.append(b"x" * (10 << 20))
    """
    outcome = 'list(mpwds.MultiLoader(Greedy(), workers=1, output="numpy"))'
    running = program(text(greedy, outcome=outcome), "spawn", within=small_group)
    status, output, errors = running.finish()
    assert (status, errors) == (0, "")
    assert "WorkerDied worker 0" in output
    assert "was killed by SIGKILL" in output
    assert "by somebody, or for want of memory" in output


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_batches_that_their_control_group_cannot_hold_are_an_error_and_no_death(
    program, small_group, start_method
):
    status, output, errors = program(text(size=50_000_000), start_method, within=small_group).finish()
    assert (status, errors) == (0, "")
    assert output.startswith("SharedMemoryError no memory for 400.0 MB of shared memory")


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_an_address_space_without_room_is_a_clear_error(program, start_method):
    limited = """
    import resource

    class Limited:
        def __iter__(self):
            yield np.zeros(100_000)
            soft, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (800 << 20, hard))
            yield np.zeros(150_000_000)
    """
    outcome = 'list(mpwds.MultiLoader(Limited(), workers=1, output="numpy", start_method=sys.argv[1]))'
    status, output, errors = program(text(limited, outcome=outcome), start_method).finish()
    assert (status, errors) == (0, "")
    assert "MemoryError Unable to allocate 1.12 GiB" in output


@pytest.fixture
def with_shm():
    """Makes the words that run a command with a ``/dev/shm`` of its own."""

    def with_shm(mount):
        command = ["unshare", "--mount", "--map-root-user"]
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
            pytest.skip("no mount namespace can be made here")
        return {"wrapped": command, "within": f"{mount} || exit 99"}

    return with_shm


TINY = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
NONE = "mount -t tmpfs -o ro tmpfs /dev/shm"


@pytest.fixture
def without_memfd(tmp_path):
    """The environment of programs, and their workers, on a system that has no memfd."""
    folder = tmp_path / "customised"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import os\ndel os.memfd_create\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(Path.cwd()), str(Path(__file__).parent)])}


@pytest.mark.parametrize(
    ("mount", "start_method"), [(TINY, "spawn"), (TINY, "fork"), (TINY, "forkserver"), (NONE, "spawn")]
)
def test_the_size_of_dev_shm_does_not_matter(program, with_shm, mount, start_method):
    running = program(text(size=1_000_000), start_method, **with_shm(mount))
    assert running.finish() == (0, f"{sorted([*range(6)] * 2)}\n", "")


@pytest.mark.parametrize("start_method", ["spawn", "fork", "forkserver"])
def test_without_memfd_batches_go_through_dev_shm(program, without_memfd, start_method):
    running = program(text(size=1_000_000), start_method, environment=without_memfd)
    assert running.finish() == (0, f"{sorted([*range(6)] * 2)}\n", "")


@pytest.mark.parametrize(
    ("mount", "start_method"), [(TINY, "spawn"), (TINY, "fork"), (TINY, "forkserver"), (NONE, "spawn")]
)
def test_without_memfd_and_dev_shm_there_is_a_clear_error(
    program, with_shm, without_memfd, mount, start_method
):
    running = program(text(size=1_000_000), start_method, environment=without_memfd, **with_shm(mount))
    status, output, errors = running.finish()
    assert (status, errors) == (0, "")
    assert output.startswith("SharedMemoryError the system refused")
