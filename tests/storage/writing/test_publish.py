"""Pending files: complete under their name, or not there at all."""

import errno
import fcntl
import gc
import io
import os
import signal
import stat
import subprocess
import sys

import pytest

from mpwds.storage.streams.gopen import gopen_schemes
from mpwds.storage.streams.resuming import Retries
from mpwds.storage.writing import destinations
from mpwds.storage.writing.destinations import (
    OwnedStream,
    PendingFile,
    open_destination,
    remove_partial,
    rename_to_free,
    write_all,
    write_whole,
)
from tests.forks import raised_in_fork
from tests.open_files import open_files


def test_the_file_appears_when_it_is_published_in_place_of_one_of_its_name(tmp_path):
    for before, data in ((None, b"old"), (b"old", b"new")):
        pending = PendingFile(str(tmp_path / "x"))
        pending.stream.write(data)
        assert (tmp_path / "x").exists() == (before is not None)
        assert before is None or (tmp_path / "x").read_bytes() == before
        pending.publish()
        assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x", data)]


def test_a_file_system_without_locks_is_written_to(tmp_path, monkeypatch):
    def unsupported(descriptor, operation):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))  # as Lustre does by default

    monkeypatch.setattr(fcntl, "flock", unsupported)
    pending = PendingFile(str(tmp_path / "x"))
    pending.stream.write(b"data")
    pending.publish()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x", b"data")]


def test_a_relative_name_counts_from_where_the_file_was_begun(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    kept, dropped = PendingFile("x"), PendingFile("y")
    monkeypatch.chdir("elsewhere")
    kept.publish()
    dropped.discard()
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "x"]


def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "link").symlink_to("x")
    pending = PendingFile(str(tmp_path / "link"))
    pending.stream.write(b"data")
    pending.publish()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "x").read_bytes() == b"data"


@pytest.mark.parametrize("name", ["pipe", "directory", "new/", ""])
def test_what_is_no_file_is_refused_and_left_alone(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.mkdir("directory")
    with pytest.raises(FileExistsError, match="a directory, a pipe or a device"):
        PendingFile(name)
    assert sorted(os.listdir()) == ["directory", "pipe"]


def test_the_published_file_has_the_permissions_that_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        PendingFile(str(tmp_path / "x")).publish()
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_a_file_that_is_discarded_is_removed(tmp_path):
    pending = PendingFile(str(tmp_path / "x"))
    pending.stream.write(b"data")
    pending.discard()
    pending.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_forgotten_is_removed_with_a_warning(tmp_path):
    pending = PendingFile(str(tmp_path / "x"))
    pending.stream.write(b"data")
    with pytest.warns(RuntimeWarning, match="x was not written: its writer was dropped before it was closed"):
        del pending
        gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_published_is_removed_at_exit(tmp_path):
    program = (
        "import sys; from mpwds.storage.writing.destinations import PendingFile; "
        "pending = PendingFile(sys.argv[1] + '/x'); pending.stream.write(b'data')"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program, str(tmp_path)], check=True)
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_file_that_is_removed_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    removed = []

    def flock(descriptor, operation):  # another process cleans up at this moment
        if not removed:
            removed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            os.unlink(removed[0])

    monkeypatch.setattr(fcntl, "flock", flock)
    pending = PendingFile(str(tmp_path / "x"))
    pending.stream.write(b"data")
    pending.publish()
    assert (tmp_path / "x").read_bytes() == b"data"


def test_a_fork_removes_nothing(tmp_path):
    pending = PendingFile(str(tmp_path / "x"))
    assert raised_in_fork(pending.discard) == ""
    pending.stream.write(b"data")
    pending.publish()
    assert (tmp_path / "x").read_bytes() == b"data"


def test_a_fork_that_exits_writes_nothing(tmp_path):
    program = (
        "import os, sys; from mpwds.storage.writing.destinations import PendingFile; "
        "pending = PendingFile(sys.argv[1] + '/x'); pending.stream.write(b'data'); "
        "os.fork() or sys.exit(); os.wait(); pending.publish()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program, str(tmp_path)], check=True)
    assert (tmp_path / "x").read_bytes() == b"data"


@pytest.mark.parametrize("name", ["x" * 237, "x" * 255, "é" * 127, "é" * 118 + "x"])
def test_a_name_may_be_as_long_as_the_file_system_takes(tmp_path, name):
    pending = PendingFile(str(tmp_path / name))
    (temporary,) = os.listdir(tmp_path)
    assert temporary.startswith(f".{name[:50]}.")
    assert temporary.endswith(".partial")
    pending.publish()
    assert os.listdir(tmp_path) == [name]


def test_a_name_that_is_too_long_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(OSError, match="File name too long"):
        PendingFile(str(tmp_path / ("x" * 256)))
    assert os.listdir(tmp_path) == []


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"directory does not exist.*nowhere'"):
        PendingFile(str(tmp_path / "nowhere" / "x"))


@pytest.mark.parametrize(
    ("number", "fails"), [(errno.EINVAL, False), (errno.EACCES, False), (errno.EIO, True)]
)
def test_a_file_system_that_cannot_sync_directories_is_no_failure(tmp_path, monkeypatch, number, fails):
    synced = []

    def fsync(descriptor):
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        if synced[-1]:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    pending = PendingFile(str(tmp_path / "x"))
    if fails:
        with pytest.raises(OSError, match="Input/output"):
            pending.publish()
    else:
        pending.publish()
    assert synced == [False, True]
    assert os.listdir(tmp_path) == ["x"]


def test_a_file_that_does_not_get_to_the_disk_is_discarded_and_named(tmp_path, monkeypatch):
    def fsync(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/x'"):
        PendingFile(str(tmp_path / "x")).publish()
    assert os.listdir(tmp_path) == []


def test_what_a_full_disk_cuts_off_is_discarded_and_named(tmp_path, limited):
    (tmp_path / "x").write_bytes(b"old")
    done = limited(
        1000,
        "import sys; from mpwds.storage.writing.destinations import open_destination, write_whole; "
        "write_whole(open_destination(sys.argv[1]), bytes(600), bytes(600))",
        tmp_path / "x",
    )
    assert done.stderr.endswith(f"OSError: [Errno 27] File too large: '{tmp_path}/x'\n")
    assert "RuntimeWarning" not in done.stderr
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x", b"old")]


def test_pieces_are_written_whole_and_published_in_place_of_a_file(tmp_path):
    (tmp_path / "x").write_bytes(b"old")
    write_whole(open_destination(tmp_path / "x"), b"one, ", b"", b"two")
    assert (tmp_path / "x").read_bytes() == b"one, two"


def test_an_opener_gets_the_policy_of_retries_if_it_has_such_a_parameter(monkeypatch):
    got = []
    monkeypatch.setitem(
        gopen_schemes, "mine", lambda url, mode, bufsize, retries: got.append(retries) or io.BytesIO()
    )
    monkeypatch.setitem(gopen_schemes, "other", lambda url, mode, bufsize: got.append(url) or io.BytesIO())
    for url in ("mine://x", "other://x"):
        write_whole(open_destination(url, retries=Retries(tries=3)), b"data")
    assert got == [Retries(tries=3), "other://x"]


def test_an_interrupt_while_the_file_is_made_leaves_none(tmp_path, monkeypatch):
    made = destinations._create_locked

    def interrupted(prefix):
        descriptor = made(prefix)
        os.kill(os.getpid(), signal.SIGINT)
        return descriptor

    monkeypatch.setattr(destinations, "_create_locked", interrupted)
    with pytest.raises(KeyboardInterrupt):
        PendingFile(str(tmp_path / "x"))
    gc.collect()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_an_error_or_an_interrupt_cuts_off_is_discarded(error):
    class Upload:
        became = "open"

        def write(self, data):
            raise error

        def close(self):
            self.became = "complete"

        def discard(self):
            self.became = "discarded"

    upload = Upload()
    with pytest.raises(error):
        write_whole(open_destination(OwnedStream(upload, "s3://b/x")), b"data")
    assert upload.became == "discarded"


def test_a_stream_that_does_not_say_what_it_took_has_taken_it():
    class Silent:
        taken = b""

        def write(self, data):
            self.taken += data

    stream = Silent()
    write_all(stream, b"data")
    assert stream.taken == b"data"


@pytest.fixture(params=["links", "no links"])
def _file_system(request, monkeypatch):
    """A file system with hard links, and one without."""
    if request.param == "no links":

        def link(*args, **kwargs):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", link)


@pytest.mark.usefixtures("_file_system")
def test_a_file_that_appeared_meanwhile_is_kept_if_asked(tmp_path):
    first, second = (PendingFile(str(tmp_path / "x"), replace=False) for _ in range(2))
    first.stream.write(b"one")
    second.stream.write(b"two")
    first.publish()
    with pytest.raises(FileExistsError, match="written meanwhile by another program") as raised:
        second.publish()
    assert raised.value.filename == str(tmp_path / "x")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x", b"one")]


@pytest.mark.usefixtures("_file_system")
def test_a_file_of_the_same_content_that_appeared_meanwhile_is_no_failure(tmp_path):
    for _ in range(2):
        pending = PendingFile(str(tmp_path / "x"), replace=False)
        pending.stream.write(b"same")
        pending.publish()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x", b"same")]


@pytest.mark.usefixtures("_file_system")
def test_a_file_that_cannot_get_its_name_leaves_none(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if os.link.__module__ == "posix":
        monkeypatch.setattr(os, "link", fail)
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="Input/output error"):
        PendingFile(str(tmp_path / "x"), replace=False).publish()
    assert os.listdir(tmp_path) == []


def test_a_link_that_the_server_made_twice_is_made(tmp_path, monkeypatch):
    real = os.link

    def repeated(*args, **kwargs):  # as NFS does when an answer is lost
        real(*args, **kwargs)
        real(*args, **kwargs)

    monkeypatch.setattr(os, "link", repeated)
    PendingFile(str(tmp_path / "x"), replace=False).publish()
    assert os.listdir(tmp_path) == ["x"]


def test_a_file_stays_in_the_directory_that_it_was_begun_in(tmp_path):
    (tmp_path / "d").mkdir()
    inside = os.open(tmp_path / "d", os.O_RDONLY)
    pendings = [PendingFile(f"d/{name}", directory=inside, replace=name == "x") for name in "xyz"]
    (tmp_path / "d").rename(tmp_path / "moved")
    (tmp_path / "d").symlink_to("elsewhere")
    for pending in pendings[:2]:
        pending.publish()
    pendings[2].discard()
    os.close(inside)
    assert sorted(os.listdir(tmp_path / "moved")) == ["x", "y"]


@pytest.mark.parametrize("front", ["x-", "n" * 30, "n" * 47, "n" * 60])
@pytest.mark.parametrize("number", ["%06d", "%d"])
@pytest.mark.parametrize("back", [".tar", "0.tar", "-" + "t" * 40 + ".tar", ""])
def test_what_killed_writers_left_of_a_series_is_removed_and_nothing_else(tmp_path, front, number, back):
    pattern = str(tmp_path / f"{front}{number}{back}")
    for shard in (0, 7, 12345):
        file = PendingFile(pattern % shard)
        file.stream.close()  # as a kill does: the lock ends, and the file stays
        file._remove.detach()
    others = [".other-000000.tar.0123abcd.partial", ".x-y.tar.0123abcd.partial", ".x-000000.tar.partial"]
    for name in others:
        (tmp_path / name).touch()
    written = PendingFile(pattern % 8)
    assert len(os.listdir(tmp_path)) == 7
    remove_partial([pattern])
    assert sorted(os.listdir(tmp_path)) == sorted([*others, os.path.basename(written._temporary)])
    assert open_files(tmp_path) == [written._temporary]
    written.discard()


def test_a_renaming_that_was_cut_off_is_ended_by_the_next(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"a")
    os.link(old, new)  # killed before the old name was removed
    rename_to_free(str(old), str(new))
    assert (old.exists(), new.read_bytes()) == (False, b"a")
