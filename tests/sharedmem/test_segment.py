"""Segments: nameless, committed before they are written, refused with a clear error."""

import errno
import os

import pytest

from mpwds.errors import SharedMemoryError
from mpwds.sharedmem import segment
from tests.open_files import none_left


def test_takes_no_memory_until_committed():
    descriptor = segment.create(1 << 20)
    assert os.fstat(descriptor).st_blocks == 0
    segment.commit(descriptor, 0, 1 << 20)
    assert os.fstat(descriptor).st_blocks * 512 == 1 << 20
    os.close(descriptor)


def test_has_no_name_with_posix_shared_memory_either(monkeypatch):
    def missing(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", missing)
    descriptor = segment.create(1 << 16)
    segment.commit(descriptor, 0, 1 << 16)
    assert os.readlink(f"/proc/self/fd/{descriptor}").startswith("/dev/shm/")
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"mpwds-{os.getpid()}-")]
    os.close(descriptor)


def test_more_memory_than_the_machine_has_is_refused_before_it_is_taken():
    descriptor = segment.create(1 << 50)
    with pytest.raises(SharedMemoryError, match=r"no memory for 1,125,899,906\.8 MB .*are left: use smaller"):
        segment.commit(descriptor, 0, 1 << 50)
    os.close(descriptor)


@pytest.mark.parametrize("call", ["create(1 << 21)", "commit(segment.create(0), 0, 1 << 21)"])
def test_a_limit_of_the_system_is_a_clear_error(limited, call):
    run = limited(1 << 20, f"from mpwds.sharedmem import segment\nsegment.{call}")
    assert "SharedMemoryError: the system refused 2.1 MB of shared memory (File too large)" in run.stderr


def test_no_descriptor_left_is_a_clear_error():
    with none_left(), pytest.raises(SharedMemoryError, match="Too many open files"):
        segment.create(4096)
