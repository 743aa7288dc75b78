"""``mpwds shuffle`` and ``mpwds sort``: all samples in another order, in bounded memory."""

import os
import random
import signal
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpwds.cli.reshard.ordering import bucket_shuffle, external_sort, temporary_directory
from mpwds.cli.reshard.raw_samples import OBJECT_BYTES, HeldBlocks, RawSample
from tests.cli.running import wait_until
from tests.open_files import open_files

MEMORIES = ["1kB", "30kB", "1GB"]


def samples_of(count, size=100):
    """Samples without members; their keys count them."""
    return [RawSample(str(n), HeldBlocks("x.tar", 0, bytes(size)), [(0, size)], size) for n in range(count)]


class TestShuffle:
    def test_keeps_every_member(self, run, two_shards, members):
        assert run("shuffle", "in-{0..1}.tar", "out-%d.tar", "--maxcount", 7).returncode == 0
        assert sorted(members("out-0.tar", "out-1.tar", "out-2.tar")) == sorted(two_shards)

    def test_the_seed_alone_determines_the_order(self, run, two_shards):
        def shuffled(seed, memory):
            run("shuffle", "in-{0..1}.tar", "all.tar", "--seed", seed, "--memory", memory, "--force")
            return Path("all.tar").read_bytes()

        assert len({shuffled(3, memory) for memory in MEMORIES}) == 1
        assert shuffled(3, "1GB") != shuffled(4, "1GB")
        run("merge", "in-1.tar", "in-1.tar.gz")
        run("shuffle", "pipe:cat in-0.tar", "in-1.tar.gz", "same.tar", "--seed", 4, "--memory", "10kB")
        assert Path("same.tar").read_bytes() == Path("all.tar").read_bytes()

    def test_temporary_files_may_take_less_than_they_are_given(self, monkeypatch):
        monkeypatch.setattr(os, "writev", lambda descriptor, parts: os.write(descriptor, b"".join(parts)[:7]))
        ranked = ((float(number) / 10, sample) for number, sample in enumerate(samples_of(10)))
        found = [(sample.key, sample.read()) for _, sample in bucket_shuffle(ranked, 1, ".")]
        assert found == [(str(number), bytes(100)) for number in range(10)]

    def test_every_order_is_as_likely(self):
        counts = Counter()
        for seed in range(2400):
            draw = random.Random(seed).random
            ranked = [(draw(), sample) for sample in samples_of(4)]
            counts["".join(sample.key for _, sample in bucket_shuffle(ranked, 10**6, "/tmp"))] += 1
        assert len(counts) == 24
        assert all(60 < count < 140 for count in counts.values())

    @given(count=st.integers(0, 60), memory=st.sampled_from([1, 5_000, 10**9]), seed=st.integers(0, 9))
    def test_memory_does_not_change_the_order(self, tmp_path_factory, count, memory, seed):
        directory = str(tmp_path_factory.mktemp("buckets"))
        draw = random.Random(seed).random
        ranked = [(draw(), sample) for sample in samples_of(count)]
        in_order = [sample.key for _, sample in sorted(ranked, key=lambda each: each[0])]
        assert [sample.key for _, sample in bucket_shuffle(iter(ranked), memory, directory)] == in_order


class TestSort:
    def test_by_key_is_the_default(self, run, two_shards, members, keys):
        run("shuffle", "in-{0..1}.tar", "mixed.tar")
        assert members("mixed.tar") != two_shards
        for memory in MEMORIES:
            run("sort", "mixed.tar", "all.tar", "--memory", memory, "--force")
            assert members("all.tar") == two_shards

    @pytest.mark.parametrize("memory", MEMORIES)
    def test_numbers_are_sorted_as_numbers_and_equal_ones_stay_in_order(self, run, make_shard, keys, memory):
        values = [b"10", b"9", b"x", b"-1.5", b"9", b" 1e1\n"]
        make_shard("in.tar", {f"{n}": {"cls": value} for n, value in enumerate(values)})
        run("sort", "in.tar", "up.tar", "--by", "cls", "--memory", memory)
        assert keys("up.tar") == ["3", "1", "4", "0", "5", "2"]
        run("sort", "in.tar", "down.tar", "--by", "cls", "--reverse", "--memory", memory)
        assert keys("down.tar") == ["2", "0", "5", "1", "4", "3"]
        run("sort", "in.tar", "text.tar", "--by", "cls", "--text", "--memory", memory)
        assert keys("text.tar") == ["3", "0", "5", "1", "4", "2"]

    def test_values_inside_json_and_large_numbers_are_compared_exactly(self, run, make_shard, keys):
        scores = [b'{"a": {"score": 2}}', b'{"a": {"score": 10.5}}', b'{"a": {"score": -1}}']
        make_shard("in.tar", {f"{n}": {"json": score} for n, score in enumerate(scores)})
        run("sort", "in.tar", "scores.tar", "--by", "json.a.score")
        assert keys("scores.tar") == ["2", "0", "1"]
        run("sort", "in.tar", "texts.tar", "--by", "json.a.score", "--text")
        assert keys("texts.tar") == ["2", "1", "0"]
        make_shard("in.tar", {"a": {"cls": b"%d" % (2**64 + 1)}, "b": {"cls": b"%d" % 2**64}})
        run("sort", "in.tar", "all.tar", "--by", "cls", "--memory", "1kB")
        assert keys("all.tar") == ["b", "a"]

    @pytest.mark.parametrize(
        ("by", "message"),
        [
            ("cls", "has no field 'cls'"),
            ("json.b", "cannot be sorted by json.b"),
            ("json.a", "neither a number nor a text"),
            ("json.nan", "json.nan is NaN, neither a number nor a text"),
            ("bin", "cannot be sorted by bin"),
            ("txt", "cannot be sorted by txt: ValueError('Exceeds the limit"),
        ],
    )
    def test_a_sample_without_such_a_value_is_an_error(self, refused, make_shard, by, message):
        fields = {"json": b'{"a": [1], "nan": NaN}', "bin": b"\xff", "txt": b"9" * 5000}
        make_shard("in.tar", {"x": fields})
        errors = refused("sort", "in.tar", "all.tar", "--by", by)
        assert "sample 'x' at offset 0 of in.tar" in errors
        assert message in errors

    @given(
        values=st.lists(st.one_of(st.integers(-5, 5), st.text(max_size=3))),
        memory=st.sampled_from([1, 4_000, 10**9]),
        reverse=st.booleans(),
    )
    def test_memory_does_not_change_the_order(self, tmp_path_factory, values, memory, reverse):
        directory = str(tmp_path_factory.mktemp("runs"))
        ranks = [[int(isinstance(value, str)), value] for value in values]
        ranked = list(zip(ranks, samples_of(len(values)), strict=True))
        in_order = [sample.key for _, sample in sorted(ranked, key=lambda each: each[0], reverse=reverse)]
        assert [sample.key for sample in external_sort(iter(ranked), memory, directory, reverse)] == in_order

    def test_more_runs_than_files_may_be_open_are_merged_in_steps(self, tmp_path):
        ranked = (([0, -n], sample) for n, sample in enumerate(samples_of(600)))
        in_order = external_sort(ranked, 1, str(tmp_path))
        first = next(in_order)
        assert 2 <= len(open_files(tmp_path)) <= 257
        assert [sample.key for sample in (first, *in_order)] == [str(n) for n in reversed(range(600))]


@pytest.mark.parametrize("arrange", [bucket_shuffle, external_sort])
@pytest.mark.parametrize("memory", [4 * (100 + OBJECT_BYTES), 4 * (100 + OBJECT_BYTES) - 1])
def test_samples_are_held_up_to_the_memory_given(tmp_path, arrange, memory):
    ranks = [n / 4 if arrange is bucket_shuffle else [0, n] for n in range(4)]
    in_order = arrange(zip(ranks, samples_of(4), strict=True), memory, str(tmp_path))
    if arrange is bucket_shuffle:
        in_order = (sample for _, sample in in_order)
    first = next(in_order)
    assert bool(open_files(tmp_path)) == (memory < 4 * (100 + OBJECT_BYTES))
    assert [sample.key for sample in (first, *in_order)] == ["0", "1", "2", "3"]


class TestTemporaryFiles:
    @pytest.mark.parametrize(
        ("output", "folder"),
        [("out.tar", "."), ("a/b/x-%d.tar", "a/b"), ("-", None), ("s3://bucket/x.tar", None)],
    )
    def test_are_beside_a_local_output(self, output, folder):
        found = temporary_directory(output)
        assert found == (tempfile.gettempdir() if folder is None else os.path.abspath(folder))

    @pytest.fixture
    def running(self, command, two_shards):
        """A shuffle that has dealt 20 samples to temporary files, and waits for more."""
        words = [*command, "shuffle", "-", "all.tar", "--memory", "1kB", "--tmp", "tmp"]
        os.mkdir("tmp")
        process = subprocess.Popen(words, stdin=subprocess.PIPE)
        process.stdin.write(Path("in-0.tar").read_bytes() * 5)
        process.stdin.flush()
        wait_until(lambda: _has_files_in("tmp", process.pid), process)
        yield process
        process.stdin.close()
        process.wait()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_vanish_however_the_command_ends(self, running, number):
        assert os.listdir("tmp") == []
        running.send_signal(number)
        assert running.wait(600) != 0
        assert os.listdir("tmp") == []
        assert not Path("all.tar").exists()

    def test_nothing_is_left_open(self, run, two_shards, nothing_left):
        run("shuffle", "in-{0..1}.tar", "all.tar", "--memory", "1kB")
        run("sort", "in-{0..1}.tar", "sorted.tar", "--memory", "1kB")
        run("sort", "in-{0..1}.tar", "failed.tar", "--by", "missing", "--memory", "1kB")


def _has_files_in(directory, pid):
    links = (f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd"))
    return any(os.path.abspath(directory) in os.readlink(link) for link in links if os.path.islink(link))


@pytest.mark.slow
def test_memory_is_bounded(command, make_shard, keys):
    """200 MB of samples through a pipe, of which 10 MB may be held."""
    block = os.urandom(1000) * 100
    make_shard("in.tar", {f"{n:05}": {"bin": block} for n in range(2000)})
    for words in (["shuffle"], ["sort", "--reverse"]):
        code = (
            "import sys; from mpwds.cli.main import main; status = main(sys.argv[1:]); "
            "print(*(line for line in open('/proc/self/status') if 'VmHWM' in line)); sys.exit(status)"
        )
        arguments = [words[0], "pipe:cat in.tar", f"{words[0]}.tar", *words[1:], "--memory", "10MB"]
        done = subprocess.run(
            [command[0], "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        assert int(done.stdout.split()[-2]) * 1024 < 120e6
        assert sorted(keys(f"{words[0]}.tar")) == keys("in.tar")
