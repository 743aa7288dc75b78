"""``mpwds split`` and ``mpwds merge``: the same members, byte for byte, in other shards."""

import gzip
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from mpwds import ShardError
from mpwds.cli.options import Resharding
from mpwds.cli.reshard.commands import reshard
from tests.cli.running import wait_until


def shards(pattern="out-*.tar"):
    return sorted(map(str, Path().glob(pattern)))


@pytest.fixture
def refused(run):
    """Runs a command that must fail, without a new file; returns what it says."""

    def refused(*arguments):
        before = sorted(os.listdir())
        done = run(*arguments)
        assert done.returncode != 0
        assert sorted(os.listdir()) == before
        return done.stderr

    return refused


def test_split_by_number_keeps_members_and_order(run, two_shards, keys, members):
    assert run("split", "in-{0..1}.tar", "out-%02d.tar", "--maxcount", 6).returncode == 0
    assert [len(keys(shard)) for shard in shards()] == [6, 6, 6, 2]
    assert members(*shards()) == two_shards
    for shard in shards():
        listed = subprocess.run(["tar", "-tf", shard], capture_output=True, text=True, check=True)
        assert listed.stdout.split() == [member[0] for member in members(shard)]
        assert listed.stderr == ""


def test_split_by_size_keeps_to_it_but_for_samples_above_it(run, two_shards, keys, members):
    run("split", "in-{0..1}.tar", "out-%02d.tar", "--maxsize", "20kB")
    assert members(*shards()) == two_shards
    assert all(os.path.getsize(shard) <= 20_000 for shard in shards())
    assert len(shards()) > 3
    run("split", "in-{0..1}.tar", "one-%02d.tar", "--maxsize", "1kB")
    assert members(*shards("one-*.tar")) == two_shards
    assert {len(keys(shard)) for shard in shards("one-*.tar")} == {1}


def test_merge_undoes_split(run, two_shards):
    run("split", "in-0.tar", "out-%02d.tar", "--maxcount", 3)
    run("merge", "out-{00..03}.tar", "all.tar")
    assert Path("all.tar").read_bytes() == Path("in-0.tar").read_bytes()


@pytest.mark.parametrize("named", ["in-*.tar", "in-{0,1}*.tar", "in-[01].tar", ".", "file:in-?.tar"])
def test_shards_are_named_by_globs_and_folders(run, two_shards, members, named):
    assert run("split", named, "out-%d.tar", "--maxcount", 30).returncode == 0
    assert members("out-0.tar") == two_shards


def test_a_file_whose_name_looks_like_a_glob_is_that_file(run, two_shards, members):
    os.rename("in-0.tar", "in-?.tar")
    run("merge", "in-?.tar", "out.tar")
    assert len(members("out.tar")) == len(two_shards) // 2


def test_says_how_many_samples_there_are(run, two_shards):
    done = run("split", "in-{0..1}.tar", "out-%02d.tar", "--maxcount", 6)
    assert done.stdout == "20 samples, 103 kB, from 2 shards to 4: out-00.tar ... out-03.tar\n"
    figures = json.loads(run("merge", "in-0.tar", "all.tar", "--json").stdout)
    assert figures["samples"] == 10
    assert figures["shards"] == ["all.tar"]


@pytest.mark.parametrize("compress", ["gz", "bz2", "xz"])
def test_compressed_shards_are_read_and_written(run, two_shards, compress, members):
    run("merge", "in-{0..1}.tar", f"all.tar.{compress}")
    run("split", f"all.tar.{compress}", "out-%02d.tar", "--maxcount", 7)
    assert members(*shards()) == two_shards
    assert os.path.getsize(f"all.tar.{compress}") < 5_000


@pytest.mark.parametrize("output", ["-", "file:///dev/fd/1"])
def test_pipes_on_both_ends(command, two_shards, output):
    source = Path("in-0.tar").read_bytes()
    done = subprocess.run([*command, "merge", "-", output], input=source, capture_output=True, check=True)
    assert done.stdout == source
    assert done.stderr.startswith(b"10 samples")


def test_urls_are_read_and_written(run, two_shards, members):
    run("merge", "pipe:cat in-0.tar", f"file:{Path('in-1.tar').resolve()}", "pipe:cat > all.tar")
    assert members("all.tar") == two_shards


def test_descriptions_name_shards(run, two_shards, members):
    shardlist = [{"url": f"in-{shard}.tar", "nsamples": 10} for shard in range(2)]
    Path("all.json").write_text(json.dumps({"wids_version": 1, "shardlist": shardlist}))
    run("merge", "all.json", "all.tar")
    assert members("all.tar") == two_shards


def test_what_belongs_to_no_sample_goes_along(run, members):
    with tarfile.open("in.tar", "w") as archive:
        for name in ("data", "data/a.txt", "data/a.cls", "README", "data/b.txt", "__meta__/x.json", "last"):
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if name in ("data", "last") else tarfile.REGTYPE
            archive.addfile(info)
    run("split", "in.tar", "out-%d.tar", "--maxcount", 1)
    assert [[member[0] for member in members(shard)] for shard in shards()] == [
        ["data", "data/a.txt", "data/a.cls"],
        ["README", "data/b.txt", "__meta__/x.json", "last"],
    ]


def test_zero_blocks_between_archives_do_not_end_the_shard(run, make_shard, members):
    make_shard("a.tar", {"a": {"txt": b"x"}})
    make_shard("b.tar", {"b": {"txt": b"y"}})
    Path("in.tar").write_bytes(Path("a.tar").read_bytes() + Path("b.tar").read_bytes())
    run("merge", "in.tar", "all.tar")
    assert members("all.tar") == members("a.tar", "b.tar")


def test_an_empty_shard_is_merged_as_such(run, make_shard, members):
    make_shard("empty.tar", {})
    assert run("merge", "empty.tar", "all.tar").stdout.startswith("0 samples")
    assert members("all.tar") == []


class TestKeysThatOccurTwice:
    @pytest.fixture(autouse=True)
    def _twins(self, make_shard):
        make_shard("x.tar", {"a": {"txt": b"1"}, "b": {"txt": b"2"}})
        make_shard("y.tar", {"b": {"txt": b"3"}, "a": {"txt": b"4"}})

    def test_are_an_error(self, refused):
        message = refused("merge", "x.tar", "y.tar", "all.tar")
        assert "sample 'b' at offset 0 of y.tar: all.tar has a sample of this key already" in message

    def test_get_other_keys(self, run, keys, members):
        run("merge", "x.tar", "y.tar", "x.tar", "all.tar", "--duplicates", "rename")
        assert keys("all.tar") == ["a", "b", "b-1", "a-1", "a-2", "b-2"]
        assert [member[1:] for member in members("all.tar")] == [
            member[1:] for member in members("x.tar", "y.tar", "x.tar")
        ]

    def test_are_kept(self, run, members):
        run("merge", "x.tar", "x.tar", "all.tar", "--duplicates", "keep")
        assert members("all.tar") == members("x.tar", "x.tar")

    def test_count_as_samples(self, run, keys):
        run("split", "x.tar", "x.tar", "out-%d.tar", "--duplicates", "keep", "--maxcount", 3)
        assert [keys(f"out-{shard}.tar") for shard in range(2)] == [["a", "b", "a"], ["b"]]

    def test_are_not_kept_side_by_side(self, refused):
        assert "read as one" in refused("merge", "x.tar", "y.tar", "all.tar", "--duplicates", "keep")

    def test_may_be_in_different_shards(self, run, members):
        run("split", "x.tar", "y.tar", "out-%d.tar", "--maxcount", 2)
        assert members(*shards()) == members("x.tar", "y.tar")


def test_long_names_survive_renaming(run, make_shard, members):
    name = "directory/" * 25 + "é"
    make_shard("x.tar", {name: {"txt": b"1"}})
    run("merge", "x.tar", "x.tar", "all.tar", "--duplicates", "rename")
    assert [member[0] for member in members("all.tar")] == [f"{name}.txt", f"{name}-1.txt"]


def test_what_is_read_is_not_overwritten_as_a_shard_of_the_series(refused, two_shards):
    assert "cannot be written" in refused("merge", "in-1.tar", "in-%d.tar", "--force")


def test_a_damaged_shard_is_an_error_that_names_the_place(refused, two_shards):
    data = bytearray(Path("in-1.tar").read_bytes())
    data[1024 * 5 + 512 : 1024 * 5 + 612] = bytes(100)
    Path("in-1.tar").write_bytes(data)
    assert "of in-1.tar" in refused("merge", "in-0.tar", "in-1.tar", "all.tar")


def test_a_truncated_gzip_is_an_error(refused, two_shards):
    Path("x.tar.gz").write_bytes(gzip.compress(Path("in-0.tar").read_bytes())[:-50])
    assert "x.tar.gz cannot be decompressed" in refused("merge", "x.tar.gz", "all.tar")


def partial(target="all.tar"):
    return set(Path(target).parent.glob(".*.partial"))


def started(command, target="all.tar"):
    """A ``merge`` of what comes from a pipe, when it has begun to write."""
    before = partial(target)
    words = [*command, "merge", "-", target, "--duplicates", "keep"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE)
    process.stdin.write(Path("in-0.tar").read_bytes() * 30)
    process.stdin.flush()
    wait_until(lambda: any(path.stat().st_size for path in partial(target) - before), process)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_partial_shard(command, two_shards, number):
    process = started(command)
    process.send_signal(number)
    process.stdin.close()
    assert process.wait(600) == 130
    assert sorted(os.listdir()) == ["in-0.tar", "in-1.tar"]


@pytest.mark.parametrize("target", ["all.tar", "x/" + "y" * 60 + "-%03d-of-many.tar"])
def test_what_a_killed_run_left_is_removed_by_the_next_but_nothing_of_a_running_one(
    run, command, two_shards, target
):
    with started(command, target) as killed:
        killed.kill()
    (left,) = partial(target)
    with started(command, target) as running:
        assert left not in partial(target)
        (of_running,) = partial(target)
        assert run("merge", "in-1.tar", target).returncode == 0
        assert partial(target) == {of_running}
        running.kill()


def test_a_dataset_of_many_shards_needs_few_descriptors(command, make_shard, keys):
    for number in range(100):
        make_shard(f"s-{number:03}.tar", {f"{number}": {"txt": b"x"}})
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (90, 90)); "
    code = limited + "from mpwds.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "shuffle", "s-{000..099}.tar", "all.tar"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert sorted(keys("all.tar")) == sorted(map(str, range(100)))


@pytest.fixture
def pipe():
    """The reading end of a named pipe ``all.tar``, which does not wait for its writer."""
    os.mkfifo("all.tar")
    with open(os.open("all.tar", os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as pipe:
        yield pipe


def test_a_named_pipe_is_written_to(run, two_shards, pipe):
    assert run("merge", "in-0.tar", "all.tar", "--force").returncode == 0  # the pipe has room for all of it
    assert pipe.read() == Path("in-0.tar").read_bytes()


def test_ctrl_c_ends_a_command_whose_pipe_nobody_reads(command, make_shard, pipe):
    make_shard("in.tar", {"a": {"bin": bytes(4_000_000)}})
    process = subprocess.Popen([*command, "merge", "in.tar", "all.tar", "--force"])
    try:
        while not select.select([pipe], [], [], 0.1)[0]:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == 130
    finally:
        process.kill()


def test_samples_that_get_lost_are_an_error(two_shards):
    with pytest.raises(ShardError, match="20 samples were read, but 19 written"):
        reshard(Resharding(["in-{0..1}.tar"], "all.tar"), lambda samples: itertools.islice(samples, 1, None))
    assert not os.path.exists("all.tar")


@pytest.mark.parametrize("limit", [1_000_000, 7_900_000])
def test_a_disk_that_is_full_is_an_error_and_leaves_nothing(run_limited, make_shard, limit):
    make_shard("in.tar", {f"{n}": {"bin": bytes(1_000_000)} for n in range(8)})
    done = run_limited(limit, "merge", "in.tar", "all.tar")
    assert done.returncode == 1
    assert done.stderr == "mpwds merge: error: all.tar: File too large\n"
    assert os.listdir() == ["in.tar"]


def test_a_member_larger_than_the_buffer(run, make_shard, members):
    big = bytes(range(256)) * 20_000
    make_shard("in.tar", {"a": {"bin": big}, "b": {"bin": big[1:]}})
    run("shuffle", "in.tar", "all.tar", "--memory", "1MB")
    assert sorted(members("all.tar")) == sorted(members("in.tar"))


def test_short_and_long_members_of_several_shards_stay_in_order(run, make_shard, members):
    names = ["a.tar", "b.tar", "c.tar", "d.tar"]
    sizes = [100, 300_000, 200, 70_000]  # long ones are copied by the system, short ones through a buffer
    parts = [
        make_shard(name, {name[0]: {"bin": bytes(size)}}) for name, size in zip(names, sizes, strict=True)
    ]
    assert run("merge", *names, "all.tar").returncode == 0
    assert members("all.tar") == [member for part in parts for member in part]
