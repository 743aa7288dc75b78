"""``--part I/N``: processes that know nothing of each other write the shards of one job."""

import itertools
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mpwds
from mpwds.cli.journal import resume_or_start
from mpwds.cli.options import Part
from mpwds.storage.caches.locks import lock, release
from tests.cli.running import signalled, wait_until

PIPELINE = """
import os, random, time
import mpwds

def augmented(sample):
    while sample["__key__"].startswith(os.environ.get("HOLD", "none")) and not os.path.exists("go"):
        time.sleep(0.01)
    return {**sample, "txt": str(random.random())}

stages = [mpwds.map(augmented)]
others = [mpwds.shuffle(2), mpwds.map(augmented)]
"""
SHARDS = 5


@pytest.fixture
def job(monkeypatch, write_shard, in_process):
    """The words of a job with five shards, which take --part and the name of the output."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "pipeline", raising=False)
    Path("pipeline.py").write_text(PIPELINE)
    for shard in range(SHARDS):
        write_shard(f"in-{shard}.tar", *({"__key__": f"{shard}{n}", "cls": n} for n in range(3)))

    def job(output="out-%d.tar", name="stages"):
        return "proc", f"pipeline.py:{name}", "in-{0..4}.tar", output, "-j", 1

    return job


def read(pattern="out-*.tar"):
    return {path.name.partition("-")[2]: path.read_bytes() for path in Path().glob(pattern)}


def test_the_parts_together_write_what_one_run_writes(run, job):
    assert run(*job("whole-%d.tar")).returncode == 0
    told = [run(*job(), "--part", f"{part}/2").stdout for part in (1, 0)]
    assert ["2 shards written" in told[0], "3 shards written" in told[1]] == [True, True]
    assert read() == read("whole-*.tar")


def test_a_part_takes_every_nth_shard_of_all_rounds(run, job):
    run(*job(), "--part", "1/4", "--repeat", 2)
    assert sorted(read()) == ["1.tar", "5.tar", "9.tar"]


def test_there_may_be_more_parts_than_shards(run, job):
    done = run(*job(), "--part", "7/9")
    assert (done.returncode, done.stdout) == (0, "0 samples, 0 B: 0 shards written\n")


def test_a_part_that_was_killed_goes_on_and_leaves_what_others_do_alone(run, command, job):
    run(*job("whole-%d.tar"))
    other = lock(".out-1.tar.0123abcd.partial", create=True)  # of part 1, which is at work
    words = [*command, *map(str, job()), "--part", "0/2"]
    killed = subprocess.Popen(words, env={**os.environ, "HOLD": "2"}, start_new_session=True)
    wait_until(lambda: "0.tar" in read(), killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    before = os.stat("out-0.tar").st_mtime_ns
    assert "2 shards written; 1 was complete before" in run(*job(), "--part", "0/2").stdout
    assert os.stat("out-0.tar").st_mtime_ns == before
    assert [path.name for path in Path().glob(".*.partial")] == [".out-1.tar.0123abcd.partial"]
    release(other)
    assert run(*job(), "--part", "1/2").returncode == 0
    assert read() == read("whole-*.tar")


def test_two_processes_may_do_one_part(run, job, command):
    words = [*command, *map(str, job()), "--part", "0/1"]
    twins = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    assert [twin.communicate()[1] for twin in twins] == [b"", b""]
    run(*job("whole-%d.tar"))
    assert read() == read("whole-*.tar")


@pytest.mark.parametrize("kept", ["journal", "shard"])
def test_parts_of_different_jobs_are_not_mixed(run, job, kept):
    run(*job(), "--part", "0/2")
    if kept == "shard":
        os.unlink(".out-.tar.journal")
        message = "out-0.tar and 2 more of its series exist already"
    else:
        message = ".out-.tar.journal says that a run was begun with different stages"
    done = run(*job(name="others"), "--part", "1/2")
    assert done.returncode == 1
    assert message in done.stderr
    assert sorted(read()) == ["0.tar", "2.tar", "4.tar"]


def test_a_job_that_wrote_nothing_may_be_changed(run, job, command):
    signalled(lambda: list(Path().glob(".*.partial")), [*command, *job()], env={**os.environ, "HOLD": ""})
    assert run(*job(name="others")).returncode == 0


@pytest.mark.parametrize("part", [["--part", "0/2"], []], ids=["a part", "the whole"])
def test_a_job_whose_parts_have_begun_may_not_before_its_journal_is_removed(run, refused, job, part):
    run(*job(), "--part", "7/9")  # which writes nothing
    said = refused(*job(name="others"), *part)
    assert "a run was begun with different stages" in said
    assert "when nothing writes there any more, remove .out-.tar.journal* and the shards" in said
    for path in Path().glob(".out-.tar.journal*"):
        path.unlink()
    assert run(*job(name="others"), *part).returncode == 0


def test_of_parts_that_begin_at_one_moment_those_of_one_job_write(job, command):
    parts = [
        subprocess.Popen(
            [*command, *map(str, job()), "--part", f"{n}/2", "--seed", str(n)], stderr=subprocess.PIPE
        )
        for n in range(2)
    ]
    said = [part.communicate()[1] for part in parts]
    assert sorted(part.returncode for part in parts) == [0, 1]
    winner = said.index(b"")
    assert b"a run was begun with different seed" in said[1 - winner]
    assert sorted(read()) == [f"{shard}.tar" for shard in range(winner, SHARDS, 2)]


def test_a_part_whose_journal_on_a_server_was_replaced_says_so(job, web, command):
    name = "/.out-.tar.journal"
    words = [*command, *map(str, job(web.url("/out-%d.tar"))), "--part", "0/2"]
    part = subprocess.Popen(words, env={**os.environ, "HOLD": "2"}, stderr=subprocess.PIPE)
    wait_until(lambda: "/out-0.tar" in web.files, part)
    web.files[name] = web.files[name].replace(b'"seed": 0', b'"seed": 1')
    Path("go").touch()
    assert b"a run was begun with different seed" in part.communicate()[1]
    assert part.returncode == 1


@pytest.mark.parametrize(
    "words", [("convert", "out-%d.tar"), ("convert", "out-%d.cbor"), ("shuffle", "out-%d.tar")]
)
def test_a_shard_is_on_the_disk_before_it_has_its_name(run, job, monkeypatch, words):
    on_disk, fsync = set(), os.fsync

    def synced(descriptor):
        on_disk.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    command, output = words
    assert run(command, "in-{0..4}.tar", output, "--part", "0/1").returncode == 0
    written = [
        path.stat().st_ino for path in (*Path().glob("out-*"), Path(f".{output.replace('%d', '')}.journal"))
    ]
    assert len(written) == SHARDS + 1
    assert on_disk >= set(written)


class TestInputs:
    """Each part asks for the versions of its own inputs, and finds those that have changed."""

    @pytest.fixture
    def words(self, job, web):
        """A job whose inputs and outputs are on a server."""
        for shard in range(SHARDS):
            web.files[f"/in-{shard}.tar"] = Path(f"in-{shard}.tar").read_bytes()
        words = list(job(web.url("/out-%d.tar")))
        words[2] = web.url("/in-{0..4}.tar")
        return words

    @pytest.fixture
    def change(self, web):
        def change(shard):
            web.files[f"/in-{shard}.tar"] = web.files["/in-0.tar"] + bytes(1024)

        return change

    def asked(self, web, kind):
        return {path for _, path, _ in web.requests if path.startswith(f"/{kind}-")}

    def test_a_part_asks_for_nothing_of_others(self, run, words, web):
        for _ in range(2):
            assert run(*words, "--part", "1/4").returncode == 0
            assert self.asked(web, "in") == {"/in-1.tar"}
            assert self.asked(web, "out") == {"/out-1.tar"}

    @pytest.mark.parametrize(
        ("began", "goes_on"),
        [([], "4/5"), ([], None), (["1/3"], "1/3"), (["0/2", "1/2"], "4/5"), (["0/2", "1/2"], None)],
    )
    def test_one_that_changed_is_found_by_who_reads_it(
        self, run, refused, words, change, web, began, goes_on
    ):
        for part in began:
            run(*words, "--part", part)
        if not began:
            run(*words)
        del web.files["/out-4.tar"]
        part = ["--part", goes_on] if goes_on else []
        change(4)
        assert "different inputs: http" in (said := refused(*words, *part))
        assert "/in-4.tar has changed" in said
        before = dict(web.files)
        if began != ["1/3"]:
            assert "1 was complete before" in run(*words, "--part", "1/5").stdout
        assert {name: data for name, data in web.files.items() if name in before} == before
        web.files["/in-4.tar"] = Path("in-4.tar").read_bytes()
        assert run(*words, *part).returncode == 0
        assert web.files["/out-4.tar"]

    @pytest.mark.parametrize("changes", [0, 0.2])
    @pytest.mark.parametrize("seed", range(4))
    def test_shards_are_of_the_inputs_that_are_there_or_a_run_fails(self, seed, changes):
        draw = random.Random(seed)
        inputs, shards = [Path(str(n)) for n in range(6)], [Path(f"out-{n}.tar") for n in range(6)]
        for path in inputs:
            path.write_text(path.name)
        for _ in range(30):
            if draw.random() < changes:
                path = draw.choice(inputs)
                path.write_text(path.read_text() + "!")
            part = draw.choice([None, *(Part(n, count) for count in (1, 2, 3, 4, 7) for n in range(count))])
            numbers = range(6) if part is None else part.of(range(6))
            names = list(map(str, shards)), list(map(str, inputs))
            try:
                with resume_or_start("out-%d.tar", names[0], {}, False, part=part, inputs=names[1]) as done:
                    for number in numbers:
                        if names[0][number] not in done:
                            if draw.random() < 0.3:
                                raise KeyboardInterrupt
                            shards[number].write_bytes(inputs[number].read_bytes())
            except KeyboardInterrupt:
                continue
            except ValueError:
                if not changes:
                    raise
                continue
            assert all(shards[number].read_bytes() == inputs[number].read_bytes() for number in numbers)

    def test_a_job_that_begins_again_by_force_takes_them_as_they_are(self, run, refused, job, write_shard):
        run(*job())
        write_shard("in-1.tar", {"__key__": "other", "cls": 1})
        assert "different inputs: in-1.tar has changed" in refused(*job())
        assert "5 shards written" in run(*job(), "--force").stdout
        assert "5 were complete before" in run(*job(), "--part", "0/1").stdout

    def test_shards_of_a_job_whose_journal_alone_was_removed_are_not_taken(self, run, refused, words, web):
        run(*words, "--part", "0/2")
        del web.files["/.out-.tar.journal"]
        run(*words, "--part", "1/2", "--seed", 1)
        assert "/out-0.tar and 2 more of its series exist already" in refused(
            *words, "--part", "0/2", "--seed", 1
        )

    def test_shards_of_a_part_that_never_began_are_of_another_run(self, run, refused, words, web):
        run(*words, "--part", "0/2")
        web.files["/out-1.tar"] = b"mine"
        for part in (["--part", "1/2"], ["--part", "1/3"], []):
            assert "/out-1.tar exists already" in refused(*words, *part)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--part", "1/1"], "'1/1' is no part: they count from 0, the first of 64 is 0/64, the last 63/64"),
        (["--part", "1"], "'1' is no part:"),
        (["--part", "0/0"], "'0/0' is no part:"),
        (["--part", "0/2", "--force"], "--force would remove what other parts wrote"),
    ],
)
def test_mistakes_are_explained(refused, job, words, message):
    assert message in refused(*job(), *words, status=2)


def test_one_stream_has_no_parts(refused, job):
    words = ["proc", "pipeline.py:stages", "in-0.tar", "-", "--part", "0/2"]
    assert "--part: - is one stream" in refused(*words, status=2)


class TestCreate:
    @pytest.fixture
    def source(self, write_files):
        return write_files({f"{name}/{n}.txt": b"%d" % n for name in ("cat", "dog") for n in range(5)})

    def words(self, source, output):
        return "create", source, output, "--maxcount", 2, "--train", 0.5, "--shuffle", "-j", 1

    def test_the_parts_together_write_what_one_run_writes(self, run, source):
        assert run(*self.words(source, "whole/%s-%d.tar")).returncode == 0
        for part in "201":
            assert run(*self.words(source, "out/%s-%d.tar"), "--part", f"{part}/3").returncode == 0
        whole, parts = (
            {path.name: path.read_bytes() for path in Path(name).glob("*.*")} for name in ("whole", "out")
        )
        for names in (whole, parts):
            del names[".train-.tar.journal"]
        assert parts == whole

    def test_a_run_without_parts_adds_the_index(self, run, refused, source):
        words = self.words(source, "out/%s-%d.tar")
        assert "--index describes all shards" in refused(*words, "--part", "0/2", "--index", status=2)
        for part in "01":
            run(*words, "--part", f"{part}/2")
        done = run(*words, "--index")
        assert (done.returncode, "no shard to write" in done.stdout) == (0, True), done.stderr
        assert {path.name for path in Path("out").iterdir()} >= {"train.json", "val.json"}


class TestShuffle:
    @pytest.fixture
    def source(self, write_shard):
        keys = map("{:03d}".format, itertools.count())
        for shard in range(SHARDS):
            write_shard(f"in-{shard}.tar", *({"__key__": next(keys), "cls": shard} for _ in range(20)))
        return "in-{0..4}.tar"

    def words(self, source, output="out-%d.tar", part="0/1", **options):
        more = [word for name, value in options.items() for word in (f"--{name}", value)]
        return "shuffle", source, output, "--part", part, *more

    def keys(self, pattern="out-{0..4}.tar"):
        return [sample["__key__"] for sample in mpwds.WebDataset(pattern)]

    def test_the_parts_together_write_what_one_run_writes(self, run, source):
        whole = run(*self.words(source, "whole-%d.tar"))
        assert (whole.returncode, "5 shards written" in whole.stdout) == (0, True), whole.stderr
        told = [run(*self.words(source, part=f"{part}/2")) for part in (1, 0, 1)]
        assert [each.returncode for each in told] == [1, 0, 0]
        assert "the first round is not complete" in told[0].stderr
        assert "Repeat this command when all other parts have ended" in told[0].stderr
        assert read() == read("whole-*.tar")

    def test_each_sample_is_in_one_shard_and_nothing_else_is_left(self, run, source):
        run(*self.words(source))
        found = self.keys()
        assert sorted(found) == sorted(self.keys("in-{0..4}.tar")) != found
        assert {path.name for path in Path().glob(".*")} == {".out-.tar.journal"}

    def test_the_seed_alone_determines_the_order(self, run, source):
        for name, seed, memory in (("a", 1, "1kB"), ("b", 1, "1GB"), ("c", 2, "1GB")):
            run(*self.words(source, f"{name}-%d.tar", seed=seed, memory=memory))
        assert read("a-*.tar") == read("b-*.tar") != read("c-*.tar")

    def test_samples_of_a_shard_go_to_all_shards(self, run, source):
        run(*self.words(source))
        for shard in range(SHARDS):
            assert len({key[0] + key[1] for key in self.keys(f"out-{shard}.tar")}) > SHARDS

    def test_the_temporary_shards_are_beside_shards_on_a_server(self, run, source, web):
        run(*self.words(source))
        done = run(*self.words(source, web.url("/out-%d.tar")))
        assert done.returncode == 0, done.stderr
        assert {name: web.files[f"/out-{name}"] for name in read()} == read()
        assert "000002.tar are not needed any more: remove them" in done.stderr

    def test_a_shard_that_is_missing_is_written_again(self, run, source):
        run(*self.words(source))
        before = read()
        os.unlink("out-3.tar")
        assert "2 shards written; 3 were complete before" in run(*self.words(source)).stdout
        assert read() == before
        assert "0 shards written; 5 were complete before" in run(*self.words(source)).stdout

    def test_another_seed_is_another_job(self, run, refused, source):
        run(*self.words(source, part="0/2"))  # which has written no shard yet
        assert "was begun with different seed" in refused(*self.words(source, part="1/2", seed=1))
        run(*self.words(source))
        assert "was begun with different seed" in refused(*self.words(source, seed=1))

    def test_limits_and_streams_have_no_parts(self, refused, source):
        assert "as many shards as they read" in refused(*self.words(source, maxcount=3), status=2)
        assert "a stream has none" in refused(*self.words("-"), status=2)

    def test_few_samples_leave_some_shards_empty(self, run, write_shard):
        for shard in range(4):
            write_shard(f"in-{shard}.tar", *([{"__key__": "x", "cls": 1}] if shard == 2 else []))
        assert run(*self.words("in-{0..3}.tar")).returncode == 0
        assert len(read()) == 4
        assert self.keys("out-{0..3}.tar") == ["x"]


class TestConvert:
    @pytest.fixture
    def source(self, write_shard):
        """Five shards, with a field that the first has not."""
        for shard in range(SHARDS):
            more = {"txt": "more"} if shard else {}
            write_shard(f"in-{shard}.tar", *({"__key__": f"{shard}{n}", "cls": n, **more} for n in range(3)))
        return "in-{0..4}.tar"

    @pytest.mark.parametrize("to", ["msgpack", "cbor", "tar"])
    def test_each_file_becomes_one_shard(self, run, source, to):
        for part in "10":
            assert run("convert", source, f"out-%d.{to}", "--part", f"{part}/2").returncode == 0
        for shard in range(SHARDS):
            run("convert", f"in-{shard}.tar", f"alone-{shard}.{to}")
            alone = Path(f"alone-{shard}.{to}").read_bytes()
            assert Path(f"out-{shard}.{to}").read_bytes() == alone

    def test_an_empty_file_becomes_an_empty_shard(self, run, source, write_shard):
        write_shard("in-2.tar")
        for part in "01":
            assert run("convert", source, "out-%d.msgpack", "--part", f"{part}/2").returncode == 0
        assert run("convert", "out-{0..4}.msgpack", "whole.tar").returncode == 0
        assert len(list(mpwds.WebDataset("whole.tar"))) == 3 * (SHARDS - 1)

    def test_each_shard_of_mds_becomes_one(self, run, source):
        run("convert", source, "mds", "--columns", "cls:int", "--maxsize", 100)
        run("convert", "mds", "whole-%d.tar", "--part", "0/1")
        for part in "201":
            run("convert", "mds", "out-%d.tar", "--part", f"{part}/3")
        assert len(read()) == len(list(Path("mds").glob("*.mds"))) > 3
        assert read() == read("whole-*.tar")
        samples = [sample["__key__"] for sample in mpwds.WebDataset(f"out-{{0..{len(read()) - 1}}}.tar")]
        assert samples == [f"{shard}{n}" for shard in range(SHARDS) for n in range(3)]

    def test_samples_of_mds_without_keys_get_different_ones(self, run, source):
        run("convert", source, "mds", "--columns", "cls:int", "--no-keys", "--maxsize", 100)
        run("convert", "mds", "out-%d.tar", "--part", "0/1")
        samples = mpwds.WebDataset(f"out-{{0..{len(read()) - 1}}}.tar")
        assert [int(sample["__key__"]) for sample in samples] == list(range(3 * SHARDS))

    def test_a_run_goes_on_and_inputs_must_be_the_same(self, run, refused, source, write_shard):
        words = "convert", source, "out-%d.msgpack", "--part"
        run(*words, "0/2")
        assert "to 2 shards; 3 were complete before" in run(*words, "0/1").stdout
        write_shard("in-1.tar", {"__key__": "other", "cls": 1})
        assert "was begun with different inputs" in refused(*words, "1/2")

    def test_folders_of_mds_that_machines_made_become_one_dataset(self, run, refused, source):
        said = refused("convert", source, "mds", "--part", "0/2", status=2)
        assert "to folders of their own below OUTPUT" in said
        for part, files in enumerate(("in-{0..1}.tar", "in-{2..4}.tar")):
            assert run("convert", files, f"mds/{part}", "--columns", "cls:int").returncode == 0
        mpwds.streaming.base.util.merge_index("mds")
        run("convert", "mds", "whole.tar")
        samples = [sample["__key__"] for sample in mpwds.WebDataset("whole.tar")]
        assert samples == [f"{shard}{n}" for shard in range(SHARDS) for n in range(3)]

    def test_parts_that_have_begun_have_the_same_options(self, run, refused, source):
        words = "convert", source, "out-%d.msgpack", "--part"
        run(*words, "7/9")  # which writes nothing
        assert "was begun with different options" in refused(*words, "0/9", "--columns", "cls:cls")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (
                ["in-{0..4}.tar", "mds"],
                "one index names all shards of mds, and parts cannot write it together",
            ),
            (["-", "out-%d.tar", "--from", "tar"], "each file is read by itself, and a stream has none"),
            (["in-{0..4}.tar", "x.msgpack"], "x.msgpack is one shard, but 5 are to be written"),
            (["in-{0..4}.tar", "x-%d.msgpack", "--maxcount", 2], "each file becomes one shard"),
        ],
        ids=["an index", "a stream", "one output", "limits"],
    )
    def test_mistakes_are_explained(self, refused, source, words, message):
        assert message in refused("convert", *words, "--part", "0/2", status=2)
