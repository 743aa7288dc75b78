"""Version 2 of MDS, mosaicml-streaming's: interrupted writers, damage, and data that lies."""

import json
import os
import pickle
import signal
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from mpwds import DecodeError, MDSWriter, ShardError, StreamingDatasetWriter
from mpwds.storage.mds.shards_v2 import MDSShards, parse_index
from tests.forks import raised_in_fork
from tests.open_files import open_files
from tests.storage.mds.datasets import COLUMNS, SAMPLES, files, read, write


def change_index(folder, change):
    index = json.loads((folder / "index.json").read_text())
    change(index["shards"][0])
    (folder / "index.json").write_text(json.dumps(index))


def change_shard(folder, offset, data):
    with open(folder / "shard.00000.mds", "r+b") as file:
        file.seek(offset)
        file.write(data)


def test_samples_are_read_as_they_were_written(tmp_path):
    shards = MDSShards(write(tmp_path, size_limit=500))
    assert len(shards.lengths) > 1
    assert read(shards) == SAMPLES
    copy = pickle.dumps(shards)
    shards.close()  # the copy opens files of its own
    assert read(pickle.loads(copy)) == SAMPLES
    assert shards.columns == COLUMNS


def test_closing_closes_files_until_the_next_read(tmp_path, nothing_left):
    shards = MDSShards(write(tmp_path, size_limit=500))
    read(shards)
    shards.close()
    assert shards.read(0, 1) == SAMPLES[1]
    shards.close()
    for number in (-1, shards.lengths[0]):
        with pytest.raises(IndexError, match=f"has {shards.lengths[0]} samples, there is no sample {number}"):
            shards.read(0, number)


def test_few_files_are_open_however_many_shards_there_are(tmp_path, monkeypatch):
    write(tmp_path, SAMPLES * 10, size_limit=300)
    for limit in (None, 20):
        if limit is not None:
            monkeypatch.setattr("mpwds.storage.mds.fetched_shards.most_open_files", lambda: 20)
        shards = MDSShards(tmp_path, datasets=2)
        assert len(shards.lengths) > 50
        read(shards)
        assert len(open_files(tmp_path)) == (10 if limit else len(shards.lengths))
        shards.close()


def test_a_sample_that_cannot_be_written_leaves_the_dataset_as_it_was(tmp_path):
    with MDSWriter(columns=COLUMNS, out=tmp_path) as sink:
        sink.write(SAMPLES[1])
        with pytest.raises(KeyError, match="no field 'number'"):
            sink.write({"text": ""})
        with pytest.raises(TypeError, match="'number' cannot be encoded: int takes int"):
            sink.write({"text": "", "number": 1.5})
        with pytest.raises(ValueError, match="'number' cannot be encoded: it has 3 bytes, and int has 8"):
            sink.write({"text": "", "number": b"abc"})
    assert read(MDSShards(tmp_path)) == SAMPLES[1:2]


def test_an_image_that_the_format_cannot_hold_is_an_error_that_names_the_field(tmp_path):
    with MDSWriter(columns={"image": "jpeg"}, out=tmp_path) as sink:
        with pytest.raises(ValueError, match="'image' cannot be encoded: cannot write mode RGBA as JPEG"):
            sink.write({"image": Image.new("RGBA", (3, 3))})


def test_an_exception_while_writing_leaves_no_index(tmp_path):
    with pytest.raises(ZeroDivisionError), MDSWriter(columns=COLUMNS, out=tmp_path, size_limit=300) as sink:
        for sample in SAMPLES:
            sink.write(sample)
        raise ZeroDivisionError
    assert "index.json" not in files(tmp_path)
    with pytest.raises(FileNotFoundError, match="did not finish"):
        MDSShards(tmp_path)


def start_writer(folder):
    """A process that writes samples until it is killed; some shards are complete."""
    program = """if True:
        import sys
        from mpwds import MDSWriter
        sink = MDSWriter(columns={"x": "bytes"}, out=sys.argv[1], size_limit=100_000)
        for number in range(10**9):
            sink.write({"x": bytes(1000)})
            if number == 1000:
                print("writing", flush=True)
    """
    writer = subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"writing\n"
    return writer


def kill(writer):
    writer.send_signal(signal.SIGKILL)
    writer.communicate()


def test_the_complete_shards_of_a_killed_writer_do_not_become_part_of_another_dataset(tmp_path):
    kill(start_writer(tmp_path))
    sizes = {len(data) for name, data in files(tmp_path).items() if name.startswith("shard.")}
    assert len(sizes) == 1  # none is half written
    assert "index.json" not in files(tmp_path)
    with pytest.raises(FileExistsError, match=r"holds files already .*, and nothing there is overwritten"):
        MDSWriter(columns=COLUMNS, out=tmp_path)
    assert read(MDSShards(write(tmp_path, exist_ok=True))) == SAMPLES
    assert sorted(files(tmp_path)) == ["index.json", "shard.00000.mds"]


def test_a_folder_has_one_writer_at_a_time(tmp_path):
    folder = tmp_path / "dataset"
    with start_writer(tmp_path / "other") as other:
        for exist_ok in (False, True):
            with pytest.raises(FileExistsError, match="another writer writes to"):
                MDSWriter(columns=COLUMNS, out=tmp_path / "other", exist_ok=exist_ok)
        kill(other)
    assert read(MDSShards(write(tmp_path / "other", exist_ok=True))) == SAMPLES
    for begin in (
        lambda: MDSWriter(columns=COLUMNS, out=folder),
        lambda: StreamingDatasetWriter(folder, "x"),
    ):
        writer = begin()
        for out in (folder, (str(tmp_path / "staging"), str(folder))):  # which is empty so far
            for exist_ok in (False, True):
                message = rf"another writer writes to {folder}: .* merge the"
                with pytest.raises(FileExistsError, match=message):
                    MDSWriter(columns=COLUMNS, out=out, exist_ok=exist_ok)
        writer.discard()
    assert read(MDSShards(write(folder))) == SAMPLES


def test_a_writer_in_a_fork_does_not_end_its_parents_claim(tmp_path):
    sink = MDSWriter(columns=COLUMNS, out=tmp_path)
    assert raised_in_fork(sink.discard) == ""
    with pytest.raises(FileExistsError, match="another writer writes to"):
        MDSWriter(columns=COLUMNS, out=tmp_path)
    sink.discard()


def test_a_writer_that_is_dropped_warns_that_there_is_no_index(tmp_path):
    sink = MDSWriter(columns=COLUMNS, out=tmp_path)
    sink.write(SAMPLES[0])
    with pytest.warns(RuntimeWarning, match="has no index"):
        del sink


def test_existing_data_is_not_overwritten(tmp_path):
    before = files(write(tmp_path))
    with pytest.raises(FileExistsError, match="nothing there is overwritten"):
        MDSWriter(columns=COLUMNS, out=tmp_path)
    with pytest.raises(FileExistsError, match="nothing there is overwritten"):
        MDSWriter(columns=COLUMNS, out=(str(tmp_path / "staging"), str(tmp_path)))
    assert files(tmp_path) == before


@pytest.mark.parametrize("out", ["data", ("staging", "data")])
def test_a_file_that_appears_while_a_dataset_is_written_is_not_overwritten(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    sink = MDSWriter(columns=COLUMNS, out=out, retry=0)
    sink.write(SAMPLES[0])
    (tmp_path / "data" / "shard.00000.mds").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        sink.finish()
    assert files(tmp_path / "data") == {"shard.00000.mds": b"mine"}


def test_exist_ok_replaces_the_dataset_and_nothing_else(tmp_path):
    write(tmp_path, size_limit=300)
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path, SAMPLES[:2], exist_ok=True)
    assert sorted(files(tmp_path)) == ["index.json", "notes.txt", "shard.00000.mds"]
    assert read(MDSShards(tmp_path)) == SAMPLES[:2]


def test_finishing_twice_does_nothing_and_then_writing_is_an_error(tmp_path):
    with MDSWriter(columns=COLUMNS, out=tmp_path, size_limit=300) as sink:
        sink.write(SAMPLES[0])
        sink.finish()
    with pytest.raises(ValueError, match="is finished"):
        sink.write(SAMPLES[0])


def test_a_full_disk_is_an_error_and_leaves_no_index(tmp_path, monkeypatch):
    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match=r"No space left.*shard\.0000\d\.mds"):
        write(tmp_path, size_limit=300)
    assert files(tmp_path) == {}


@pytest.mark.parametrize(
    ("writer", "write", "name"),
    [
        ("MDSWriter(columns={'x': 'bytes'}, out=sys.argv[1])", "write", "shard.00000.mds"),
        ("StreamingDatasetWriter(sys.argv[1], ['x'])", "write_sample", "000000.mds"),
    ],
)
def test_a_file_that_a_full_disk_cuts_off_is_named_once(tmp_path, limited, writer, write, name):
    program = f"import sys, mpwds\nwith mpwds.{writer} as sink:\n    sink.{write}({{'x': bytes(9000)}})"
    done = limited(5000, program, tmp_path)
    assert done.stderr.endswith(f"File too large: '{tmp_path}/{name}'\n")
    assert "Warning" not in done.stderr
    assert files(tmp_path) == {}


def test_more_than_an_offset_can_say_is_refused(tmp_path, monkeypatch):
    """The last offset in a shard is its size."""
    size = os.path.getsize(write(tmp_path / "whole", size_limit=None) / "shard.00000.mds")
    monkeypatch.setattr("mpwds.storage.mds.writers.OFFSET_LIMIT", size + 1)
    assert read(MDSShards(write(tmp_path / "fits", size_limit=None))) == SAMPLES
    monkeypatch.setattr("mpwds.storage.mds.writers.OFFSET_LIMIT", size)
    with pytest.raises(ValueError, match=f"cannot have {size} bytes, 4 GiB or more: set size_limit"):
        write(tmp_path / "does not", size_limit=None)


def test_pickles_are_not_read_unless_that_is_allowed(tmp_path):
    write(tmp_path, [{"x": {1: 2}}], {"x": "pkl"}, allow_pickle=True)
    with pytest.raises(ValueError, match="index.json: .* pass allow_pickle=True if you trust"):
        MDSShards(tmp_path)
    assert MDSShards(tmp_path, allow_pickle=True).read(0, 0) == {"x": {1: 2}}
    assert MDSShards(tmp_path, decode=False).read(0, 0) == {"x": pickle.dumps({1: 2})}


START = 367  # of sample 5, which has 27 bytes, in a shard of SIZE bytes
SIZE = 1087


@pytest.mark.parametrize(
    ("sample", "offset", "data", "message"),
    [
        (0, SIZE - 1, None, f": it has {SIZE - 1} bytes, .* {SIZE}"),  # cut off there
        (0, 0, b"\x15", " at offset 0: it says it has 21 samples, and the index 20"),
        (3, 16, b"\xff" * 4, " at offset 16: sample 3 cannot lie at 4294967295 "),  # after the end
        (0, 4, b"\x08\0\0\0", " at offset 4: sample 0 cannot lie at 8 "),  # in the table
        (5, START, b"\xff", f" at offset {START}: the fields of sample 5 need 267"),
        (5, START, b"\x0e", f" at offset {START}: the fields of sample 5 need 26"),
    ],
)
def test_damage_is_an_error_with_file_and_offset(tmp_path, sample, offset, data, message):
    write(tmp_path)
    if data is None:
        os.truncate(tmp_path / "shard.00000.mds", offset)
    else:
        change_shard(tmp_path, offset, data)
    with pytest.raises(ShardError, match=f"shard.00000.mds is damaged{message}"):
        MDSShards(tmp_path).read(0, sample)


def test_a_missing_shard_is_an_error_that_names_it(tmp_path):
    os.unlink(write(tmp_path) / "shard.00000.mds")
    with pytest.raises(ShardError, match="shard.00000.mds, and there is no such file"):
        MDSShards(tmp_path).read(0, 0)


def test_a_field_that_cannot_be_decoded_is_an_error_with_its_place(tmp_path):
    change_shard(write(tmp_path), START + 12, b"\xff")
    message = f"'text' of sample 5 of .*.mds, at offset {START + 12}.*utf-8"
    with pytest.raises(DecodeError, match=message) as caught:
        MDSShards(tmp_path).read(0, 5)
    assert (caught.value.field, caught.value.url) == ("text", str(tmp_path / "shard.00000.mds"))


def test_a_package_that_is_missing_does_not_pass_for_damage(tmp_path, monkeypatch):
    write(tmp_path, [{"x": b"a file"}], {"x": "png"})
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="PIL"):
        MDSShards(tmp_path).read(0, 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_an_error_or_other_data_but_no_crash(tmp_path, data):
    if not files(tmp_path):
        write(tmp_path)
    size = os.path.getsize(tmp_path / "shard.00000.mds")
    before = (tmp_path / "shard.00000.mds").read_bytes()
    for _ in range(data.draw(st.integers(1, 3))):
        change_shard(
            tmp_path, data.draw(st.integers(0, size - 1)), data.draw(st.binary(min_size=1, max_size=1))
        )
    shards = MDSShards(tmp_path)
    for number in range(20):
        try:
            shards.read(0, number)
            message = ""
        except (ShardError, DecodeError) as error:
            message = str(error)
        assert not message or "shard.00000.mds" in message
    (tmp_path / "shard.00000.mds").write_bytes(before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda shard: shard.update(version=3), r"\$.shards\[0\]: version 3"),
        (lambda shard: shard.update(format="csv"), "the format 'csv'"),
        (lambda shard: shard.pop("samples"), "no 'samples'"),
        (lambda shard: shard.update(samples="9"), "'samples' is '9', expected int"),
        (lambda shard: shard.update(samples=-1), "-1 samples"),
        (lambda shard: shard["raw_data"].update(basename="../x"), "'../x'"),
        (lambda shard: shard["raw_data"].update(basename="a/../../x"), "'a/../../x'"),
        (lambda shard: shard["raw_data"].update(basename="/etc/passwd"), "'/etc/passwd'"),
        (lambda shard: shard["raw_data"].update(bytes=87), "20 samples and 87 bytes"),
        (lambda shard: shard["raw_data"].update(bytes=2**32), "20 samples and 4294967296 bytes"),
        (lambda shard: shard["raw_data"].update(basename=""), "the file ''"),
        (lambda shard: shard["raw_data"].update(basename="x\0"), r"the file 'x.x00'"),
        (lambda shard: shard["raw_data"].update(hashes=[]), r"'hashes' is \[\], expected dict"),
        (lambda shard: shard.update(raw_data=True), "'raw_data' is True, expected dict"),
        (lambda shard: shard.update(samples=True), "'samples' is True, expected int"),
        (lambda shard: shard.update(zip_data={**shard["raw_data"], "bytes": -1}), "zip_data has -1 bytes"),
        (lambda shard: shard.update(zip_data=shard["raw_data"]), "compression and zip_data do not belong"),
        (lambda shard: shard.update(zip_data=shard["raw_data"], compression="lz"), "no compression 'lz'"),
        (lambda shard: shard.update(compression="gz"), "compression and zip_data do not belong"),
        (lambda shard: shard.update(column_names=["a", 7]), "7 has the encoding .*, expected two strings"),
        (lambda shard: shard.update(column_encodings=["int", 7]), "has the encoding 7, expected two strings"),
        (lambda shard: shard.update(column_names=["a"]), "do not belong together"),
        (lambda shard: shard.update(column_names=["a", "a"]), "do not belong together"),
        (lambda shard: shard.update(column_sizes=[None, 4]), "'text' .str. have|'number' .int. have 8 bytes"),
        (lambda shard: shard.update(column_encodings=["int", "zip"]), "no encoding 'zip'"),
    ],
)
def test_a_wrong_index_is_an_error_with_file_and_place(tmp_path, change, message):
    change_index(write(tmp_path), change)
    with pytest.raises(ShardError, match=message) as caught:
        MDSShards(tmp_path)
    assert str(tmp_path / "index.json") in str(caught.value)


def test_a_shard_may_have_no_samples(tmp_path):
    write(tmp_path)

    def empty(shard):
        shard.update(samples=0, raw_data={**shard["raw_data"], "bytes": 8})  # its number, and an offset

    change_index(tmp_path, empty)
    (shard,) = parse_index((tmp_path / "index.json").read_bytes(), tmp_path)
    assert shard.samples == 0


KEYS = st.sampled_from(["version", "shards", "format", "samples", "raw_data", "column_names"]) | st.text()


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(KEYS, x), max_leaves=8
    )
)
def test_any_json_is_an_index_or_an_error(value):
    try:
        parse_index(json.dumps(value).encode(), "index.json")
        message = ""
    except ShardError as error:
        message = str(error)
    assert not message or "index.json" in message


def test_an_index_that_is_not_json_is_an_error_with_its_place(tmp_path):
    (tmp_path / "index.json").write_text('{"version": 2, "shar')
    with pytest.raises(ShardError, match="index.json is damaged, it is not JSON: .*column"):
        MDSShards(tmp_path)


def test_large_samples_are_read_field_by_field_and_checked_as_well(tmp_path):
    columns = {"a": "bytes", "b": "uint8", "c": "ndarray:float32", "d": "str"}
    sample = {"a": bytes(50_000), "b": 7, "c": b"", "d": "ü" * 30_000}
    write(tmp_path, [sample], columns)
    with pytest.raises(DecodeError, match="'c' of sample 0 of"):
        MDSShards(tmp_path).read(0, 0)
    found = MDSShards(tmp_path, decode=False).read(0, 0)
    assert found == {**sample, "b": b"\x07", "d": sample["d"].encode()}
    start = int.from_bytes((tmp_path / "shard.00000.mds").read_bytes()[4:8], "little")
    change_shard(tmp_path, start, b"\xff")
    with pytest.raises(ShardError, match=f"damaged at offset {start}"):
        MDSShards(tmp_path).read(0, 0)


@pytest.mark.parametrize("compression", [None, "zstd:1"])
def test_a_writer_holds_few_shards_in_memory(tmp_path, compression):
    program = f"""
import re
from mpwds import MDSWriter

def kilobytes(what):
    return int(re.search(what + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1])

sample = {{"x": bytes(1 << 20)}}
options = dict(size_limit="24mb", compression={compression!r}, max_workers={1 if compression else None})
with MDSWriter(columns={{"x": "bytes"}}, out="first", **options) as sink:  # imports what it needs
    sink.write(sample)
open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
before = kilobytes("VmRSS")
with MDSWriter(columns={{"x": "bytes"}}, out="second", **options) as sink:
    for _ in range(200):
        sink.write(sample)
print(len(sink.shards), (kilobytes("VmHWM") - before) / 1024 / 24)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    shards, held = map(float, done.stdout.split())
    assert shards >= 8
    assert held < (3.5 if compression else 3), done.stderr
