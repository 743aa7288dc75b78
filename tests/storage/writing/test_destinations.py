"""Where archives go: commands, standard output, openers of one's own; complete there, or given up."""

import io
import os
import stat
import subprocess
import sys
import tarfile

import pytest

from mpwds.errors import SecurityError, StreamError
from mpwds.storage.streams.gopen import gopen, gopen_schemes
from mpwds.storage.writing.tar_writer import ShardWriter, TarWriter
from tests.storage.members import write_all

SMALL, LARGE = {"__key__": "a", "txt": "hello"}, {"__key__": "b", "bin": bytes(1_000_000)}
SAMPLES = [SMALL, LARGE]

pytestmark = pytest.mark.usefixtures("nothing_left")


def names_in(path):
    with tarfile.open(path) as archive:
        return archive.getnames()


def test_a_commands_failure_is_the_writers():
    with pytest.raises(StreamError, match="no room"):
        write_all(TarWriter("pipe:cat > /dev/null; echo no room >&2; exit 3"), SAMPLES)


def give_up(sink):
    with pytest.raises(KeyboardInterrupt), sink:
        sink.write(LARGE)
        raise KeyboardInterrupt


@pytest.mark.parametrize("by_opener", [False, True])
def test_a_command_is_ended_when_its_archive_is_given_up(tmp_path, caplog, by_opener):
    command = f"pipe:cat > {tmp_path}/torn && mv {tmp_path}/torn {tmp_path}/x.tar"
    if by_opener:
        give_up(ShardWriter("x-%d.tar", verbose=0, opener=lambda name: gopen(command, "wb")))
        assert "what it has written elsewhere stays there" in caplog.text
    else:
        give_up(TarWriter(command))
    assert not (tmp_path / "x.tar").exists()


def test_an_upload_is_not_sent_when_its_shard_is_given_up(web):
    give_up(ShardWriter(web.url("/x-%d.tar"), verbose=0, opener=lambda name: gopen(name, "wb")))
    give_up(ShardWriter(web.url("/x-%d.tar"), verbose=0))
    give_up(TarWriter(web.url("/x.tar")))
    assert web.requests == []


def test_a_stream_of_an_opener_in_gopen_schemes_is_not_completed_when_its_shard_is_given_up(monkeypatch):
    class Uploading(io.BytesIO):
        ends = ()

        def close(self):
            self.ends = (*self.ends, "close")

        def __exit__(self, kind, error, traceback):
            self.ends = (*self.ends, "close" if kind is None else "abort")

    stream = Uploading()
    monkeypatch.setitem(gopen_schemes, "mine", lambda url, mode, bufsize: stream)
    give_up(TarWriter("mine://x.tar"))
    assert stream.ends == ("abort",)


def test_shards_may_go_to_commands(tmp_path):
    pattern = f"pipe:gzip > {tmp_path}/x-%d.tar.gz"
    write_all(ShardWriter(pattern, maxcount=1, verbose=0, compress=False), SAMPLES)
    assert [names_in(tmp_path / f"x-{shard}.tar.gz") for shard in range(2)] == [["a.txt"], ["b.bin"]]


def test_standard_output_stays_open(tmp_path):
    program = (
        "from mpwds.storage.writing.tar_writer import TarWriter\n"
        "with TarWriter('-', mtime=0) as sink: sink.write({'__key__': 'a', 'txt': 'hello'})\n"
        "print('more')"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    archive, more = output[:10240], output[10240:]
    assert more == b"more\n"
    (tmp_path / "x.tar").write_bytes(archive)
    assert names_in(tmp_path / "x.tar") == ["a.txt"]


def test_openers_of_ones_own_are_used(monkeypatch):
    class Kept(io.BytesIO):
        def close(self):
            archives.append(self.getvalue())
            super().close()

    archives = []
    monkeypatch.setitem(gopen_schemes, "mine", lambda url, mode, bufsize, retries=1: retries and Kept())
    write_all(TarWriter("mine://x.tar"), SAMPLES)
    with tarfile.open(fileobj=io.BytesIO(archives[0])) as archive:
        assert archive.getnames() == ["a.txt", "b.bin"]


def test_a_url_may_be_rewritten_to_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("WDS_REWRITE", f"gs://bucket={tmp_path}")
    sink = TarWriter("gs://bucket/x.tar")
    sink.write(SMALL)
    assert not (tmp_path / "x.tar").exists()
    sink.close()
    assert os.listdir(tmp_path) == ["x.tar"]


@pytest.mark.parametrize("url", ["x.tar", "pipe:cat > x.tar"])
def test_the_secure_mode_writes_neither_files_nor_to_commands(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WDS_SECURE", "1")
    with pytest.raises(SecurityError):
        TarWriter(url)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_is_written_to_as_it_is(tmp_path):
    write_all(TarWriter("/dev/null"), [SMALL])
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    os.mkfifo(tmp_path / "fifo")
    with subprocess.Popen(["cat", tmp_path / "fifo"], stdout=subprocess.PIPE) as reader:
        write_all(TarWriter(tmp_path / "fifo"), [SMALL])
        assert len(reader.stdout.read()) == 10_240
