"""Writing shards: in agreement with webdataset in both directions, and whole or not there at all."""

import gc
import io
import os
import re
import subprocess
import sys
import tarfile
from functools import partial

import numpy as np
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.tariterators import group_by_keys, tar_file_iterator

from mpwds.storage.streams.gopen import gopen_schemes
from mpwds.storage.writing.tar_writer import ShardWriter, TarWriter
from tests.storage.members import contents_of, write_all

SAMPLES = [
    {"__key__": f"train/{index:06d}", "cls": index, "json": {"n": index}, "txt": "été", "png": np.eye(4)}
    for index in range(5)
]

keys = st.lists(
    st.from_regex(r"([a-zé]{1,60}/){0,4}[a-zé0-9_-]{1,120}", fullmatch=True),
    min_size=1,
    max_size=5,
    unique=True,
)
fields = st.dictionaries(
    st.from_regex(r"[a-z0-9]{1,8}(\.[a-z]{1,4})?", fullmatch=True).filter(
        lambda name: not name.endswith(".gz")  # compressed when written, here and there
    ),
    st.binary(max_size=700),
    min_size=1,
)


def webdataset_samples(path):
    with open(path, "rb") as stream:
        files = [{**file, "__url__": str(path)} for file in tar_file_iterator(stream)]
    return [{name: sample[name] for name in sample if name != "__url__"} for sample in group_by_keys(files)]


class Opened(list):
    """An opener, and the streams that it has opened."""

    def __init__(self, make):
        self._make = make

    def __call__(self, name):
        self.append(self._make(name))
        return self[-1]


# ------------------------------------------------------------------------- agreement with webdataset


@pytest.mark.parametrize("value", [None, {"a": 1}, [np.float32(1.5)]])
def test_the_bytes_are_those_of_webdataset(tmp_path, value):
    pickles = [{"__key__": "a", "pyd": value, "x.pickle": value, "pth": value}]
    for name, writer in (("ours", TarWriter), ("theirs", webdataset.TarWriter)):
        write_all(writer(str(tmp_path / name), mtime=1), SAMPLES if value is None else pickles)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@settings(max_examples=30, deadline=None)
@given(keys=keys, fields=fields)
def test_webdataset_reads_every_sample_as_it_was_written(tmp_path_factory, keys, fields):
    path = tmp_path_factory.getbasetemp() / "round-trip.tar"
    samples = [{"__key__": key, **fields} for key in keys]
    write_all(TarWriter(path), samples)
    assert webdataset_samples(path) == samples


# ------------------------------------------------------------------------------------------ archives


def test_metadata_is_written_only_on_request(tmp_path):
    sample = {"__key__": "a", "__url__": "x.tar", "_note": "n", "txt": "1"}
    write_all(TarWriter(tmp_path / "without.tar"), [sample])
    write_all(TarWriter(tmp_path / "with.tar", keep_meta=True), [sample])
    assert contents_of(tmp_path / "without.tar") == [("a.txt", b"1")]
    assert contents_of(tmp_path / "with.tar") == [("a.__url__", b"x.tar"), ("a._note", b"n"), ("a.txt", b"1")]


@pytest.mark.parametrize(
    "name", ["n" * 120, "d" * 200 + "/n", "/" + "n" * 96, "/" + "n" * 99, "été", "d" * 120 + "/" + "n" * 90]
)
def test_names_that_ustar_cannot_hold_are_written_as_pax(tmp_path, name):
    write_all(TarWriter(tmp_path / "x.tar"), [{"__key__": name, "txt": "1"}])
    assert contents_of(tmp_path / "x.tar") == [(name + ".txt", b"1")]


def test_other_names_need_no_extension_header(tmp_path):
    write_all(TarWriter(tmp_path / "x.tar"), [{"__key__": "d" * 90 + "/" + "n" * 90, "txt": "1"}])
    with tarfile.open(tmp_path / "x.tar") as archive:
        assert [(info.offset_data, info.pax_headers) for info in archive] == [(512, {})]


def test_owner_mode_and_time_are_in_the_archive(tmp_path):
    write_all(TarWriter(tmp_path / "x.tar", user="u", group="g", mode=0o600, mtime=5.7), SAMPLES[:1])
    with tarfile.open(tmp_path / "x.tar") as archive:
        info = archive.next()
    assert (info.uname, info.gname, info.mode, info.mtime) == ("u", "g", 0o600, 5)


@pytest.mark.parametrize(
    "archive_format", ["USTAR_FORMAT", tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
)
def test_a_format_may_be_asked_for(tmp_path, archive_format):
    write_all(TarWriter(tmp_path / "x.tar", format=archive_format), SAMPLES)
    assert len(contents_of(tmp_path / "x.tar")) == 20


def test_without_encoder_bytes_are_expected(tmp_path):
    with TarWriter(tmp_path / "x.tar", encoder=False) as sink:
        sink.write({"__key__": "a", "foo": b"1"})
        with pytest.raises(ValueError, match="field 'cls' of sample 'b' is int"):
            sink.write({"__key__": "b", "cls": 7})


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"txt": "1"}, "sample with fields txt has no __key__"),
        ({}, "sample without fields has no __key__"),
        ({"__key__": 7, "txt": "1"}, "expected a str"),
        ({"__key__": "a.b", "txt": "1"}, "read back as 'a'"),
        ({"__key__": "last", "txt": "1"}, "equals the previous sample's"),
        ({"__key__": "b"}, "no fields to write"),
        ({"__key__": "b", "__url__": "x"}, "no fields to write"),
        ({"__key__": "b", "a/b": b"1"}, "field name 'a/b'"),
        ({"__key__": "b", 7: b"1"}, "field name 7"),
        ({"__key__": "b", "png": b"1", "PNG": b"2"}, "differ in case"),
        ({"__key__": "b", "a": b"good", "cls": "good", "foo": 7}, "sample 'b': field 'foo'"),
    ],
)
def test_a_bad_sample_is_an_error_and_leaves_the_archive_valid(tmp_path, sample, message):
    with TarWriter(tmp_path / "x.tar") as sink:
        sink.write({"__key__": "last", "txt": "1"})
        with pytest.raises(ValueError, match=message):
            sink.write(sample)
        sink.write({"__key__": "next", "txt": "2"})
    assert contents_of(tmp_path / "x.tar") == [("last.txt", b"1"), ("next.txt", b"2")]


def test_a_name_that_the_asked_format_cannot_hold_leaves_the_archive_valid(tmp_path):
    with TarWriter(tmp_path / "x.tar", format="USTAR_FORMAT") as sink:
        with pytest.raises(ValueError, match="sample 'a': no tar header for 'a.yyy.*too long"):
            sink.write({"__key__": "a", "x": b"1", "y" * 200: b"2"})
        sink.write({"__key__": "b", "x": b"1"})
    assert contents_of(tmp_path / "x.tar") == [("b.x", b"1")]


def test_fields_may_be_given_by_name_with_underscores_for_dots(tmp_path):
    with TarWriter(tmp_path / "x.tar", keep_meta=True) as sink:
        sink.dwrite("a", cls=7, mask_txt="m", __url__="u")
    assert contents_of(tmp_path / "x.tar") == [("a.__url__", b"u"), ("a.cls", b"7"), ("a.mask.txt", b"m")]


# ----------------------------------------------------------------------------------- whole or absent


def test_the_file_appears_at_close(tmp_path):
    sink = TarWriter(tmp_path / "x.tar")
    sink.write(SAMPLES[0])
    assert not (tmp_path / "x.tar").exists()
    sink.close()
    sink.close()
    assert os.listdir(tmp_path) == ["x.tar"]
    with pytest.raises(ValueError, match="closed"):
        sink.write(SAMPLES[1])


def interrupted():
    yield from SAMPLES[:3]
    raise KeyboardInterrupt


def test_a_writer_that_is_killed_leaves_no_file_that_looks_whole(tmp_path):
    program = (
        "import sys; from mpwds.storage.writing.tar_writer import ShardWriter\n"
        "sink = ShardWriter(sys.argv[1] + '/x-%d.tar', maxcount=2, verbose=0)\n"
        "for index in range(3): sink.write({'__key__': str(index), 'bin': bytes(100_000)})\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"ready\n"
        writer.kill()
    complete, torn = sorted(os.listdir(tmp_path), reverse=True)
    assert (complete, len(contents_of(tmp_path / complete))) == ("x-0.tar", 2)
    assert re.fullmatch(r"\.x-1\.tar\.[0-9a-f]{8}\.partial", torn)


def test_a_full_disk_leaves_no_torn_archive(tmp_path, monkeypatch):
    sink = TarWriter(tmp_path / "x.tar")
    sink.write(SAMPLES[0])

    class Full(io.RawIOBase):
        def write(self, data):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sink, "_stream", Full())
    with pytest.raises(OSError, match="No space left"):
        sink.write(SAMPLES[1])
    sink.close()
    assert list(tmp_path.iterdir()) == []


def test_a_raw_stream_may_take_less_than_it_is_given():
    class Reluctant(io.RawIOBase):
        taken = b""

        def write(self, data):
            self.taken += bytes(data[:300])
            return min(len(data), 300)

    reluctant, willing = Reluctant(), io.BytesIO()
    write_all(TarWriter(reluctant, mtime=0), SAMPLES)
    write_all(TarWriter(willing, mtime=0), SAMPLES)  # which stays open
    assert reluctant.taken == willing.getvalue()


# --------------------------------------------------------------------------------------------- shards


def test_shards_hold_at_most_maxcount_samples_and_post_is_called_when_they_are_there(tmp_path):
    complete = []

    def post(path):
        assert os.path.exists(path)
        complete.append(path)

    pattern = str(tmp_path / "x-%03d.tar")
    write_all(ShardWriter(pattern, maxcount=2, verbose=0, post=post, start_shard=7), SAMPLES)
    assert complete == [pattern % 7, pattern % 8, pattern % 9]
    names = [[name for name, _ in contents_of(path)][::4] for path in complete]
    assert names == [[f"train/{n:06d}.cls" for n in shard] for shard in ((0, 1), (2, 3), (4,))]


def test_a_shard_ends_with_the_sample_that_reaches_maxsize(tmp_path):
    samples = [{"__key__": f"{index}", "bin": bytes(40)} for index in range(5)]
    write_all(ShardWriter(tmp_path / "x-%d.tar", maxsize=80, verbose=0), samples)
    assert [len(contents_of(tmp_path / f"x-{shard}.tar")) for shard in range(3)] == [2, 2, 1]


def test_shards_and_figures_are_those_of_webdataset(tmp_path):
    figures = []
    for name, writer in (("ours", ShardWriter), ("theirs", webdataset.ShardWriter)):
        with writer(str(tmp_path / f"{name}-%d.tar"), maxcount=2, verbose=0, mtime=1) as sink:
            for sample in SAMPLES:
                sink.write(sample)
                figures.append((sink.shard, sink.count, sink.size, sink.total, sink.fname[-5:]))
    assert figures[:5] == figures[5:]
    for shard in range(3):
        ours, theirs = ((tmp_path / f"{name}-{shard}.tar").read_bytes() for name in ("ours", "theirs"))
        assert ours == theirs


@pytest.mark.parametrize("samples", [0, 2, 4])
def test_no_empty_shard_is_left(tmp_path, samples):
    write_all(ShardWriter(tmp_path / "x-%d.tar", maxcount=2, verbose=0), SAMPLES[:samples])
    assert sorted(os.listdir(tmp_path)) == [f"x-{shard}.tar" for shard in range(samples // 2)]


def test_an_exception_inside_with_leaves_the_complete_shards(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_all(ShardWriter(tmp_path / "x-%d.tar", maxcount=2, verbose=0), interrupted())
    assert os.listdir(tmp_path) == ["x-0.tar"]


def test_a_shard_that_could_not_be_written_is_not_reported_as_complete(tmp_path, monkeypatch):
    complete = []
    sink = ShardWriter(tmp_path / "x-%d.tar", verbose=0, post=complete.append)
    sink.write(SAMPLES[0])
    sink._writer.discard()
    sink.close()
    assert (complete, os.listdir(tmp_path)) == ([], [])


def test_an_opener_gives_the_streams_and_they_are_closed(tmp_path):
    opened = Opened(partial(open, mode="wb"))
    write_all(ShardWriter(tmp_path / "x-%d.tar", maxcount=2, verbose=0, opener=opened), SAMPLES)
    assert [stream.closed for stream in opened] == [True, True, True]
    assert [len(contents_of(stream.name)) // 4 for stream in opened] == [2, 2, 1]


class Upload(io.RawIOBase):
    """A stream whose ``close`` completes an upload, with room for some bytes."""

    def __init__(self, room=1e9):
        self.room = room
        self.ends = []

    def writable(self):
        return True

    def write(self, data):
        if len(data) > self.room:
            raise OSError(28, "No space left on device")
        self.room -= len(data)
        return len(data)

    def close(self):
        if not self.closed:
            self.ends.append("close")
            super().close()


class Discardable(Upload):
    def discard(self):
        self.ends.append("discard")


class Abortable(Upload):
    def __exit__(self, kind, error, traceback):
        self.ends.append("close" if kind is None else "abort")


class FailingDiscard(Abortable):
    def discard(self):
        raise RuntimeError("cannot discard")


@pytest.mark.parametrize(
    ("make", "end"), [(Discardable, "discard"), (Abortable, "abort"), (FailingDiscard, "abort")]
)
def test_an_exception_inside_with_does_not_complete_an_openers_stream(make, end):
    opened = Opened(lambda name: make())
    with pytest.raises(KeyboardInterrupt):
        write_all(ShardWriter("x-%d.tar", maxcount=2, verbose=0, opener=opened), interrupted())
    assert [stream.ends for stream in opened] == [["close"], [end]]


@pytest.mark.parametrize("by_opener", [False, True])
def test_a_stream_that_cannot_be_taken_back_is_left_alone_with_a_warning(monkeypatch, by_opener):
    stream = Upload()
    monkeypatch.setitem(gopen_schemes, "mine", lambda url, mode, bufsize: stream)
    opener = (lambda name: stream) if by_opener else None
    with (
        pytest.warns(
            RuntimeWarning, match=r"^mine://\*\*\*@host/x-0\.tar is not complete.*Upload.*no method `discard`"
        ),
        pytest.raises(KeyboardInterrupt),  # inside: `warns` does not look when one passes through it
    ):
        write_all(ShardWriter("mine://me:secret@host/x-%d.tar", verbose=0, opener=opener), interrupted())
    assert stream.ends == []


def test_an_error_in_writing_names_the_url_without_credentials(monkeypatch):
    monkeypatch.setitem(gopen_schemes, "mine", lambda url, mode, bufsize: Discardable(room=0))
    with pytest.raises(OSError, match="No space left") as raised:
        TarWriter("mine://me:secret@host/x.tar").write(SAMPLES[0])
    assert raised.value.filename == "mine://***@host/x.tar"


@pytest.mark.parametrize("wrap", [lambda raw: raw, io.BufferedWriter], ids=["raw", "buffered"])
def test_garbage_collection_does_not_complete_a_stream_that_was_given_up(wrap):
    upload = Upload()
    ends, streams = upload.ends, [wrap(upload)]
    del upload
    with pytest.warns(RuntimeWarning, match="is not complete"):
        sink = ShardWriter("x-%d.tar", verbose=0, opener=lambda name: streams.pop())
        sink.write({"__key__": "a", "txt": "text"})
        sink.discard()
        del sink
        gc.collect()
    assert ends == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_plain_file_of_an_opener_is_removed_when_its_shard_is_given_up(tmp_path, error):
    opened = Opened(partial(open, mode="wb"))
    with pytest.raises(error), ShardWriter(tmp_path / "x-%d.tar", verbose=0, opener=opened) as sink:
        sink.write(SAMPLES[0])
        raise error
    assert opened[0].closed
    assert os.listdir(tmp_path) == []


def test_a_file_that_another_one_has_replaced_meanwhile_stays(tmp_path):
    def opener(name):
        opened = open(tmp_path / name, "wb")  # noqa: SIM115 - the writer closes it
        os.rename(tmp_path / name, tmp_path / "moved.tar")
        (tmp_path / name).write_bytes(b"another")
        return opened

    with pytest.raises(ValueError, match="stop"), ShardWriter("y-%d.tar", verbose=0, opener=opener) as sink:
        sink.write(SAMPLES[0])
        raise ValueError("stop")
    assert (tmp_path / "y-0.tar").read_bytes() == b"another"


def test_a_shard_whose_end_cannot_be_written_is_not_completed():
    stream = Discardable(room=2000)
    sink = ShardWriter("x-%d.tar", verbose=0, opener=lambda name: stream)
    sink.write({"__key__": "a", "txt": "text"})
    with pytest.raises(OSError, match="No space left"):
        sink.close()
    assert stream.ends == ["discard"]


def test_an_openers_stream_is_given_up_when_the_writers_options_are_refused():
    stream = Discardable()
    with pytest.raises(ValueError, match="compress"):
        ShardWriter("x-%d.tar", opener=lambda name: stream, compress="lz4")
    assert stream.ends == ["discard"]


def test_one_line_is_printed_for_each_shard(tmp_path, capsys):
    write_all(ShardWriter(tmp_path / "x-%d.tar", maxcount=3), SAMPLES)
    output = capsys.readouterr()
    assert output.out == ""
    assert [line.split(": ")[1] for line in output.err.splitlines()] == [
        "3 samples, 264 bytes; 3 samples in all",
        "2 samples, 176 bytes; 5 samples in all",
    ]


@pytest.mark.parametrize(
    ("size", "shown"), [(999, "999 bytes"), (1000, "1 kB"), (1_234_000, "1.23 MB"), (2_999_999_999, "3 GB")]
)
def test_the_size_of_a_shard_is_shown_in_units_that_suit_it(tmp_path, capsys, size, shown):
    sink = ShardWriter(tmp_path / "x-%d.tar")
    sink.write(SAMPLES[0])
    sink.size = size
    sink.close()
    assert f"1 samples, {shown}; 1 samples in all" in capsys.readouterr().err


def test_a_shard_may_be_ended_before_it_is_full(tmp_path):
    finished = []
    with ShardWriter(f"{tmp_path}/%d.tar", verbose=0, post=finished.append) as sink:
        sink.next_stream()  # there is nothing to end
        sink.write({"__key__": "a", "cls": 1})
        sink.next_stream()
        assert finished == [f"{tmp_path}/0.tar"]
        sink.write({"__key__": "b", "cls": 2})
        sink.finish()
        assert finished == [f"{tmp_path}/0.tar", f"{tmp_path}/1.tar"]
        sink.write({"__key__": "c", "cls": 3})
    assert sorted(os.listdir(tmp_path)) == ["0.tar", "1.tar", "2.tar"]
    sink.close()
    for use in (sink.next_stream, lambda: sink.write(SAMPLES[0])):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_a_stream_that_does_not_block_is_refused_before_anything_is_lost():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with open(reading, "rb"), open(writing, "wb", buffering=0) as stream:
        sink = TarWriter(stream)
        with pytest.raises(BlockingIOError, match="blocking"):
            sink.write({"__key__": "a", "bin": bytes(1_000_000)})
        assert sink.discarded


@pytest.mark.parametrize("sync", [False, True])
def test_an_archive_is_made_durable_unless_that_is_not_wanted(tmp_path, monkeypatch, sync):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with TarWriter(tmp_path / "x.tar", sync=sync) as sink:
        sink.write(SAMPLES[0])
    assert len(synced) == (2 if sync else 0)  # the file and its folder


def test_a_writer_that_was_given_up_or_closed_stays_so(tmp_path):
    given_up, closed = TarWriter(tmp_path / "a.tar"), TarWriter(tmp_path / "b.tar")
    for end in (given_up.discard, given_up.discard, given_up.close, closed.close, closed.discard):
        end()
    assert (given_up.discarded, closed.discarded) == (True, False)
    for sink in (given_up, closed):
        with pytest.raises(ValueError, match="the archive is closed"):
            sink.write(SAMPLES[0])
    assert os.listdir(tmp_path) == ["b.tar"]
