import errno
import gzip
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpwds.cli.inspect.checking import Copy, Repair
from mpwds.cli.inspect.shards import shards_of
from mpwds.cli.main import main
from mpwds.pipeline.sources.samples import read_samples


def keys(path):
    return [sample["__key__"] for _, _, sample in read_samples(str(path))]


@pytest.fixture
def damaged(shard, flipped, rewritten, entries):
    """A shard with a second sample of a key, one without its text, and a damaged header."""
    rewritten(shard, lambda entries: entries[:7] + entries[8:] + entries[12:16])
    flipped(shard, entries(shard)[16].offset)
    return shard


def test_a_copy_has_all_that_is_sound_bit_by_bit(run, shards, damaged, entries):
    before = damaged.read_bytes()
    result = run("repair", shards, "-o", "fixed")
    assert result.returncode == 0
    assert keys("fixed/train-0.tar") == [f"n{n % 3}/000{n}" for n in (0, 2, 3, 5, 6, 7)]
    assert "wrote 3 shards, 1 of them repaired; left out 3 samples" in result.stdout
    assert run("verify", "fixed/train-0.tar").returncode == 0
    assert {entry.blocks for entry in entries("fixed/train-0.tar")} <= {e.blocks for e in entries(damaged)}
    assert Path("fixed/train-1.tar").read_bytes() == Path("train-1.tar").read_bytes()
    assert damaged.read_bytes() == before


def test_of_two_samples_of_a_key_the_first_that_is_sound_stays(run, shard, rewritten, flipped, entries):
    rewritten(shard, lambda entries: entries + entries[4:8])
    image = entries(shard)[5]
    flipped(shard, image.offset + len(image.header) + 3)
    run("repair", shard, "-o", "x.tar", "--decode")
    assert keys("x.tar") == [f"n{n % 3}/000{n}" for n in (0, 2, 3, 4, 5, 6, 7, 1)]


def test_fields_of_two_samples_of_a_key_side_by_side_are_not_mixed(run, tar, entries):
    files = ["a.jpg", "a.cls", "b.jpg", "b.cls"]
    shard = tar("x.tar", dict.fromkeys(files, b"1"))
    again = tar("y.tar", dict.fromkeys(["b.jpg", "b.cls", "b.txt"], b"2"))
    shard.write_bytes(b"".join(each.blocks for each in [*entries(shard), *entries(again)]) + bytes(1024))
    run("repair", shard, "-o", "z.tar")
    assert [(each.name, each.data) for each in entries(Path("z.tar"))] == [(name, b"1") for name in files]


def test_json_tells_what_was_left_out(run, shards, damaged, objects):
    copy, *_ = objects(run("repair", shards, "-o", "fixed", "--json").stdout)
    assert copy == {
        "shard": str(damaged),
        "copy": "fixed/train-0.tar",
        "samples": 6,
        "left_out": 3,
        "left_out_keys": ["n1/0001", "n1/0004", "n0/0003"],
    }


def test_incomplete_samples_stay_if_asked(run, shards, shard, rewritten):
    rewritten(shard, lambda entries: entries[:7] + entries[8:])
    run("repair", shards, "-o", "fixed", "--keep-incomplete")
    assert len(keys("fixed/train-0.tar")) == 8


def test_samples_that_cannot_be_decoded_are_left_out_if_asked(run, tar):
    shard = tar("x.tar", {"a.json": b"{}", "b.json": b"{", "c.json": b"{}"})
    run("repair", shard, "-o", "a.tar")
    run("repair", shard, "-o", "b.tar", "--decode")
    assert keys("a.tar") == ["a", "b", "c"]
    assert keys("b.tar") == ["a", "c"]


def test_in_place_keeps_the_damaged_shard_under_another_name(run, shards, damaged):
    before = damaged.read_bytes()
    sound = Path("train-1.tar").stat()
    assert run("repair", shards, "--in-place").returncode == 0
    assert Path("train-0.tar.damaged").read_bytes() == before
    assert run("verify", shards).returncode == 0
    assert Path("train-1.tar").stat().st_mtime_ns == sound.st_mtime_ns
    assert not Path("train-1.tar.damaged").exists()


def test_in_place_goes_on_where_it_was_killed_before_it_replaced_anything(run, damaged):
    os.link(damaged, f"{damaged}.damaged")
    left = damaged.with_name(f".{damaged.name}.0123abcd.partial")
    left.touch()
    before = damaged.read_bytes()
    assert run("repair", damaged, "--in-place").returncode == 0
    assert Path(f"{damaged}.damaged").read_bytes() == before != damaged.read_bytes()
    assert not left.exists()


def test_in_place_keeps_the_damaged_shard_if_an_error_comes_after_it_was_replaced(
    refused, damaged, monkeypatch
):
    before = damaged.read_bytes()

    def fail(folder):
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr("mpwds.storage.writing.destinations._sync_directory", fail)
    assert "the disk fails" in refused("repair", damaged, "--in-place")
    assert Path(f"{damaged}.damaged").read_bytes() == before


def test_in_place_keeps_the_file_behind_a_symbolic_link(run, damaged):
    before = damaged.read_bytes()
    Path("stored").mkdir()
    stored = damaged.rename(Path("stored/x.tar"))
    damaged.symlink_to(stored)
    assert run("repair", damaged, "--in-place").returncode == 0
    assert Path("stored/x.tar.damaged").read_bytes() == before
    assert damaged.readlink() == stored
    assert run("verify", damaged).returncode == 0
    assert not Path("train-0.tar.damaged").is_symlink()


def test_nothing_is_overwritten(run, damaged):
    Path("x.tar").write_text("mine")
    Path("train-0.tar.damaged").write_text("mine")
    before = damaged.read_bytes()
    errors = run("repair", damaged, "-o", "x.tar").stderr
    assert errors == (
        "mpwds repair: error: x.tar exists already: choose another name, or --force to replace\n"
    )
    assert f"{damaged}.damaged: it exists already" in run("repair", damaged, "--in-place").stderr
    assert Path("x.tar").read_text() == Path("train-0.tar.damaged").read_text() == "mine"
    assert damaged.read_bytes() == before


def test_a_copy_replaces_a_file_if_forced(run, damaged):
    Path("x.tar").write_text("old")
    assert run("repair", damaged, "-o", "x.tar", "--force").returncode == 0
    assert len(keys("x.tar")) == 7


def test_a_file_that_appears_meanwhile_is_replaced_only_if_forced(damaged):
    Path("x.tar").write_text("mine")
    (shard,) = shards_of([str(damaged)])
    copy = Copy(shard, "x.tar", damaged=True)
    with pytest.raises(FileExistsError):
        list(Repair(decode=False, required=frozenset(), force=False)(copy))
    assert Path("x.tar").read_text() == "mine"


def test_in_place_leaves_all_as_it_was_if_the_copy_cannot_be_written(refused, damaged, monkeypatch):
    def fail(*arguments, **options):
        raise OSError("no space")

    before = {path: path.read_bytes() for path in Path().iterdir()}
    monkeypatch.setattr("os.replace", fail)
    assert "no space" in refused("repair", damaged, "--in-place")
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_interrupted_samples_are_left_out_even_if_incomplete_ones_stay(run, shard, flipped, entries):
    flipped(shard, entries(shard)[9].offset)
    run("repair", shard, "-o", "x.tar", "--keep-incomplete")
    assert keys("x.tar") == [f"n{n % 3}/000{n}" for n in (0, 1, 3, 4, 5, 6, 7)]


def test_a_shard_without_samples_is_copied(run, tar, entries):
    shard = tar("x.tar", {"README": b""})
    assert run("repair", shard, "-o", "y.tar").returncode == 0
    assert [entry.name for entry in entries(Path("y.tar"))] == ["README"]


def test_what_belongs_to_no_sample_stays_in_its_place(run, tar, entries):
    shard = tar("x.tar", dict.fromkeys(["a.jpg", "README", "a.cls", "LICENSE", "b.jpg", "END"], b"1"))
    run("repair", shard, "-o", "y.tar")
    assert Path("y.tar").read_bytes() == shard.read_bytes()


def test_the_table_has_the_repaired_shards_and_the_first_keys(run, shards, damaged, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr("mpwds.cli.inspect.commands._MOST_KEYS", 2)
    output = run("repair", shards, "-o", "fixed").stdout
    problems, _, repaired = output.partition("repaired shard")
    assert "it lacks txt" in problems
    assert [line.split() for line in repaired.splitlines() if ".tar" in line] == [
        ["fixed/train-0.tar", "6", "3", "n1/0001", "n1/0004"]
    ]


def test_members_outside_of_samples_are_kept(run, tar, entries):
    shard = tar("x.tar", {"__meta__/info.json": b"{}", "a.txt": b"a", "README": b"read me", "b.txt": b"b"})
    run("repair", shard, "-o", "y.tar")
    assert sorted(entry.name for entry in entries(Path("y.tar"))) == sorted(
        ["__meta__/info.json", "a.txt", "README", "b.txt"]
    )


def test_bytes_behind_the_end_cost_no_sample(run, shard):
    before = keys(shard)
    shard.write_bytes(shard.read_bytes() + b"garbage" * 500)
    assert run("verify", shard).returncode == 1
    run("repair", shard, "-o", "y.tar")
    assert keys("y.tar") == before
    assert run("verify", "y.tar").returncode == 0


def test_a_truncated_compressed_shard_keeps_its_beginning(run, shard):
    Path("x.tar.gz").write_bytes(gzip.compress(shard.read_bytes())[:-2000])
    assert run("repair", "x.tar.gz", "-o", "y.tar.gz").returncode == 0
    whole = keys(shard)
    found = keys("y.tar.gz")
    assert found == whole[: len(found)]
    assert Path("y.tar.gz").read_bytes()[:2] == b"\x1f\x8b"


def test_of_a_compressed_shard_with_a_wrong_checksum_the_copy_is_not_said_to_be_sound(run, shard):
    data = bytearray(gzip.compress(shard.read_bytes()))
    data[-5] ^= 1  # of the checksum
    Path("x.tar.gz").write_bytes(data)
    assert "what was read before may be wrong, too" in " ".join(
        run("repair", "x.tar.gz", "-o", "y.tar").stdout.split()
    )


@pytest.mark.parametrize("name", ["-", "/dev/fd/0"])
def test_reads_and_writes_pipes(command, damaged, name):
    result = subprocess.run(
        [*command, "repair", name, "-o", "-"], input=damaged.read_bytes(), capture_output=True, check=True
    )
    verified = subprocess.run([*command, "verify", "-"], input=result.stdout, capture_output=True, check=True)
    assert b"no problems" in verified.stdout


@pytest.mark.parametrize("url", ["{}", "file:{}"])
def test_a_named_pipe_is_read_once(run, shard, tmp_path, url):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cp", shard, tmp_path / "pipe"]):
        assert run("repair", url.format(tmp_path / "pipe"), "-o", "y.tar").returncode == 0
    assert Path("y.tar").read_bytes() == shard.read_bytes()


def test_a_command_may_be_longer_than_a_name(run, shard):
    assert run("repair", f"pipe:cat {shard} # {'long ' * 60}", "-o", "y.tar").returncode == 0
    assert Path("y.tar").read_bytes() == shard.read_bytes()


def test_a_copy_of_a_shard_at_a_url_is_named_without_its_query(run, web, shard):
    web.files["/x.tar"] = shard.read_bytes()
    assert run("repair", web.url("/x.tar?signature=a/b"), "-o", "fixed").returncode == 0
    assert [path.name for path in Path("fixed").iterdir()] == ["x.tar"]


def test_a_shard_that_cannot_be_read_is_a_status(run, shards):
    Path("train-1.tar").write_bytes(b"")
    assert run("repair", shards, "-o", "fixed").returncode == 1
    assert sorted(path.name for path in Path("fixed").iterdir()) == ["train-0.tar", "train-2.tar"]


@pytest.mark.parametrize("folder", ["fixed", "fixed/", "my.v2"])
def test_a_single_shard_goes_to_a_folder_as_several_do(run, damaged, folder):
    assert run("repair", damaged, "-o", f"{folder}").returncode == 0
    assert [path.name for path in Path(folder).iterdir()] == [damaged.name]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(1, 255)), min_size=1, max_size=4))
def test_whatever_is_damaged_the_copy_is_sound(shards, flips):
    source, target = Path("y.tar"), Path("z.tar")
    target.unlink(missing_ok=True)
    data = bytearray(Path("train-0.tar").read_bytes())
    for place, bits in flips:
        data[int(place * len(data))] ^= bits
    source.write_bytes(data)
    assert main(["repair", str(source), "-o", str(target)]) == 0
    assert main(["verify", str(target)]) == 0
