"""``mpwds proc``: each shard through the user's stages to one shard."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpwds.storage.caches.locks import lock, release

PIPELINE = """
import random
import mpwds

def augmented(sample):
    return {**sample, "txt": f"{sample['__key__']} {random.random()}"}

def fails_on_sevens(sample):
    if sample["__key__"].endswith("7"):
        raise ValueError("it is a seven")
    return sample

def doubled(source):
    for sample in source:
        yield sample
        yield {**sample, "__key__": sample["__key__"] + "-again"}

def stages(dataset):
    return dataset.decode().map(augmented)

def failing(dataset):
    return dataset.map(fails_on_sevens)

stages_in_list = [mpwds.decode(), mpwds.map(augmented)]
class Holder:
    stages = stages_in_list
composed = mpwds.DataPipeline(mpwds.decode(), mpwds.map(augmented))
shuffled = [mpwds.shuffle(100)]
unnamed = [mpwds.to_tuple("cls")]
too_dotted = [mpwds.map(lambda sample: {**sample, "__key__": "a.b"})]
number = 7
numbers = [7]
no_dataset = lambda dataset: [dataset]
mistaken = [mpwds.map(lambda sample: sample["no such field"])]
untouched = []
own_handler = [mpwds.map(fails_on_sevens, handler=mpwds.ignore_and_continue)]
"""


@pytest.fixture(autouse=True)
def _pipeline(two_shards, monkeypatch):
    Path("pipeline.py").write_text(PIPELINE)
    monkeypatch.syspath_prepend(os.getcwd())
    monkeypatch.delitem(sys.modules, "pipeline", raising=False)


@pytest.fixture
def proc(run):
    """Runs ``proc`` on both shards."""

    def proc(name, output="out-%d.tar", *options):
        return run("proc", f"pipeline.py:{name}", "in-{0..1}.tar", output, "-j", 2, *options)

    return proc


def test_input_k_becomes_output_k(proc, keys, members):
    done = proc("stages")
    assert done.stdout.startswith("20 samples")
    assert keys("out-0.tar") == keys("in-0.tar")
    assert keys("out-1.tar") == keys("in-1.tar")
    assert {name.partition(".")[2] for name, *_ in members("out-0.tar")} == {"jpg", "cls", "txt"}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("name", ["stages_in_list", "composed", "Holder.stages"])
def test_stages_may_be_given_as_a_list_or_a_composition(proc, name):
    proc("stages", "expected-%d.tar")
    proc(name)
    assert Path("out-1.tar").read_bytes() == Path("expected-1.tar").read_bytes()


@pytest.mark.parametrize("name", ["stages", "shuffled"])
def test_the_number_of_workers_changes_nothing(run, proc, name):
    proc(name)
    run("proc", f"pipeline.py:{name}", "in-{0..1}.tar", "one-%d.tar", "-j", 1)
    for shard in "01":
        assert Path(f"out-{shard}.tar").read_bytes() == Path(f"one-{shard}.tar").read_bytes()


@pytest.mark.usefixtures("in_process")
def test_the_seed_changes_random_numbers(proc):
    proc("stages")
    proc("stages", "other-%d.tar", "--seed", 1)
    assert Path("out-0.tar").read_bytes() != Path("other-0.tar").read_bytes()


@pytest.mark.usefixtures("in_process")
def test_repeat_makes_further_rounds_with_other_random_numbers(proc, keys, members):
    proc("stages", "out-%d.tar", "--repeat", 2)
    assert keys("out-3.tar") == [f"{key}-1" for key in keys("out-1.tar")]

    def texts(shard):
        return [data.split()[1] for name, *_, data in members(shard) if name.endswith(".txt")]

    assert set(texts("out-0.tar")).isdisjoint(texts("out-2.tar"))


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("name", ["untouched", "stages"])
def test_compressed_fields_are_not_compressed_twice(run, make_shard, members, name):
    fields = {"a.txt.gz": gzip.compress(b"text"), "b.bin.gz": gzip.compress(b"bytes")}
    make_shard("in.tar", {"x": fields})
    run("proc", f"pipeline.py:{name}", "in.tar", "out.tar")
    contents = [gzip.decompress(data) for name, *_, data in members("out.tar") if name.endswith(".gz")]
    assert contents == [b"text", b"bytes"]


@pytest.mark.usefixtures("in_process")
def test_what_no_stage_touches_is_written_also_if_its_name_begins_with_underscores(run, make_shard, members):
    make_shard("in.tar", {"x": {"__note": b"of mine", "txt": b"text"}})
    run("proc", "pipeline.py:untouched", "in.tar", "out.tar")
    assert [name for name, *_ in members("out.tar")] == ["x.__note", "x.txt"]


class TestOnError:
    def test_stop_is_the_default(self, proc):
        done = proc("failing")
        assert done.returncode == 1
        assert "it is a seven" in done.stderr
        assert "in map(fails_on_sevens), on sample" in done.stderr
        assert "flatmap" not in done.stderr  # which is no stage of the user's
        assert 'on sample "0007" of in-0.tar' in done.stderr or '"1007" of in-1.tar' in done.stderr

    def test_skip(self, proc, keys):
        done = proc("failing", "out-%d.tar", "--on-error", "skip")
        assert done.stdout.endswith("2 samples skipped\n")
        assert "0007" not in keys("out-0.tar")
        assert len(keys("out-0.tar")) == 9

    def test_a_damaged_shard_is_no_sample_to_skip(self, proc):
        Path("in-1.tar").write_bytes(Path("in-1.tar").read_bytes()[:6000])
        told = proc("untouched", "out-%d.tar", "--on-error", "skip")
        assert told.returncode == 1
        assert "in-1.tar is truncated" in told.stderr
        assert not Path("out-1.tar").exists()

    def test_skip_and_list(self, proc):
        proc("failing", "out-%d.tar", "--on-error", "bad.jsonl")
        bad = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
        assert sorted(record["key"] for record in bad) == ["0007", "1007"]
        assert {record["stage"] for record in bad} == {"map(fails_on_sevens, handler=skip)"}

    def test_a_run_with_a_list_of_them_continues(self, proc):
        options = "out-%d.tar", "--on-error", "bad.jsonl"
        proc("failing", *options)
        Path("out-1.tar").unlink()
        told = proc("failing", *options)
        assert "1 shard written; 1 was complete before; 1 sample skipped" in told.stdout, told.stderr
        assert len(Path("bad.jsonl").read_text().splitlines()) == 2

    def test_the_handler_that_a_user_gave_a_stage_stays(self, proc, keys):
        done = proc("own_handler", "out-%d.tar", "--on-error", "bad.jsonl")
        assert done.stdout.endswith("; 0 samples skipped\n")
        assert len(keys("out-0.tar")) == 9

    def test_what_is_skipped_is_a_line_each(self, command):
        words = ["proc", "pipeline.py:failing", "in-{0..1}.tar", "out-%d.tar", "--on-error", "skip"]
        told = subprocess.run([*command, *words], capture_output=True, text=True, check=True).stderr
        first, second = sorted(told.splitlines())
        assert first.startswith("skipped: ValueError('it is a seven'), in map(fails_on_sevens, handler=skip)")
        assert "0007" in first
        assert "1007" in second

    def test_a_sample_that_cannot_be_written_is_one_too(self, proc):
        errors = proc("too_dotted").stderr
        assert "'a.b' would be read back as 'a'" in errors
        assert re.search(r"; in writing out-(\d).tar from in-\1.tar", errors)
        assert "20 samples skipped" in proc("too_dotted", "out-%d.tar", "--on-error", "bad.jsonl").stdout

    def test_elements_must_be_samples(self, proc):
        assert "stages must yield samples" in proc("unnamed").stderr


@pytest.mark.parametrize(("source", "output"), [("-", "-"), ("/dev/fd/0", "/dev/stdout")])
def test_pipes_on_both_ends(command, source, output):
    words = [*command, "proc", "pipeline.py:doubled", source, output]
    done = subprocess.run(words, input=Path("in-0.tar").read_bytes(), capture_output=True, check=True)
    assert done.stderr.startswith(b"20 samples")
    listed = subprocess.run(["tar", "-tf", "-"], input=done.stdout, capture_output=True, check=True)
    assert len(listed.stdout.split()) == 40


@pytest.mark.parametrize("name", ["-", "/dev/fd/0"])
def test_what_the_command_alone_has_open_is_not_taken_for_what_it_was_in_an_earlier_run(command, name):
    words = [*command, "proc", "pipeline.py:doubled", name, "out-%d.tar"]
    subprocess.run(words, input=Path("in-0.tar").read_bytes(), capture_output=True, check=True)
    again = subprocess.run(words, input=Path("in-1.tar").read_bytes(), capture_output=True)
    assert again.returncode != 0
    assert f"inputs: {name} has changed".encode() in again.stderr
    forced = subprocess.run([*words, "--force"], input=Path("in-1.tar").read_bytes(), capture_output=True)
    assert b"1 shard written" in forced.stdout


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("journal", [True, False])
def test_outputs_that_are_not_local_are_continued_too(run, web, keys, journal):
    web.files.update({f"/in-{n}.tar": Path(f"in-{n}.tar").read_bytes() for n in range(2)})
    words = ["proc", "pipeline.py:doubled", web.url("/in-{0..1}.tar"), web.url("/out-%d.tar"), "-j", 2]
    words += ["--journal", "journal"] if journal else []
    assert run(*words).returncode == 0
    assert ("/.out-.tar.journal" in web.files) != journal
    del web.files["/out-1.tar"]
    assert "1 was complete before" in run(*words).stdout
    Path("out-1.tar").write_bytes(web.files["/out-1.tar"])
    assert keys("out-1.tar")[1] == "1000-again"
    assert "with different seed" in run(*words, "--seed", 1).stderr
    assert "--force cannot remove it" in run(*words, "--force").stderr
    for shard in "01":
        del web.files[f"/out-{shard}.tar"]
    assert run(*words, "--seed", 1, "--force").returncode == 0


@pytest.mark.usefixtures("in_process")
def test_json(proc, members):
    nbytes = json.loads(proc("stages", "out-%d.tar", "--json").stdout)["bytes"]
    read = [value for url in ("out-0.tar", "out-1.tar") for *_, value in members(url)]
    assert nbytes == sum(map(len, read))
    found = {"samples": 0, "bytes": 0, "skipped": 0, "shards": 0, "complete_before": 2}
    assert json.loads(proc("stages", "out-%d.tar", "--json").stdout) == found


@pytest.mark.usefixtures("in_process")
class TestNothingIsMixed:
    def test_with_shards_of_others(self, proc):
        Path("out-1.tar").touch()
        assert "out-1.tar exists already" in proc("stages").stderr
        assert not Path("out-0.tar").exists()

    @pytest.mark.parametrize(
        ("name", "options", "changed"),
        [("doubled", [], "stages"), ("stages", ["--seed", 1], "seed"), ("stages", ["--repeat", 2], "rounds")],
    )
    def test_with_those_of_another_run(self, proc, name, options, changed):
        proc("stages")
        assert f"with different {changed}:" in proc(name, "out-%d.tar", *options).stderr

    def test_unless_forced(self, proc, keys):
        proc("stages", "out-%d.tar", "--seed", 10**9)
        assert proc("doubled", "out-%d.tar", "--force").returncode == 0
        assert len(keys("out-0.tar")) == 20
        assert "2 were complete before" in proc("doubled").stdout

    def test_with_those_of_a_run_that_is_under_way(self, proc):
        running = lock(".out-.tar.journal", create=True)
        assert (
            "error: .out-.tar.journal is locked: another process is writing out-%d.tar\n"
            in proc("stages").stderr
        )
        release(running)
        assert proc("stages").returncode == 0

    def test_after_a_run_that_wrote_nothing_there_is_nothing_to_mix(self, proc):
        proc("failing")
        for leftover in Path().glob("out-*.tar"):
            leftover.unlink()
        Path(".out-.tar.journal").write_text('{\n "version"')  # as a machine that fails may leave it
        assert proc("stages").returncode == 0

    @pytest.mark.parametrize("content", ["my notes", '{"version": 1}', "[1]"])
    def test_a_file_that_is_no_journal_stays_as_it_is(self, proc, content):
        Path("notes").write_text(content)
        for more in ([], ["--force"], ["--part", "0/1"]):
            told = proc("stages", "out-%d.tar", "--journal", "notes", *more)
            assert told.returncode == 1
            assert "notes exists, and is no journal of a run" in told.stderr
        assert Path("notes").read_text() == content


MISTAKES = {
    "pipeline.py:number in-0.tar out-%d.tar": "stages must be",
    "pipeline.py:augmented in-0.tar out-%d.tar": "write stages = [mpwds.map(f)]",
    "pipeline.py:stages in-{0..1}.tar out.tar": "2 are to be written",
    "pipeline.py:stages in-0.tar out-%d.tar --on-error x": "expected stop, skip",
    "pipeline.py:stages in-0.tar out-%d.tar --journal /proc/x": "error: /proc/x: No such file",
    "pipeline.py:missing in-0.tar out-%d.tar": "has no 'missing'",
    "pipeline.py:stages missing.tar out-%d.tar": "missing.tar",
    "unknown_name.py:stages in-0.tar out-%d.tar": "AttributeError: module 'mpwds' has no",
    "unfinished.py:stages in-0.tar out-%d.tar": "(unfinished.py, line 1); in importing",
    "pipeline.py:numbers in-0.tar out-%d.tar": "TypeError: a stage is an object",
    "pipeline.py:no_dataset in-0.tar out-%d.tar": "stages(dataset) returned list, expected",
    "pipeline.py:mistaken in-0.tar out-%d.tar": "KeyError: 'no such field'; in map(<lambda>), on",
}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("words", "message"), MISTAKES.items(), ids=MISTAKES)
def test_mistakes_are_explained(run, words, message):
    Path("unknown_name.py").write_text("import mpwds\nstages = [mpwds.mapp(len)]\n")
    Path("unfinished.py").write_text("stages = [\n")
    done = run("proc", *words.split())
    assert done.stderr.count("\n") == 1
    assert done.returncode != 0
    assert message in done.stderr
    assert not [name for name in os.listdir() if "out" in name]  # nor a journal


def forget(monkeypatch):
    """Has the modules of ``TestChanges`` imported again."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("shout", "helper", "parts")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("in_process")
class TestChanges:
    """What the same command does again after something that it reads has changed."""

    HELPER = "def suffix():\n    return {text!r}\n"

    @pytest.fixture
    def shouted(self, monkeypatch):
        """Runs stages that import a module and a package of their own folder, in a new process."""

        forget(monkeypatch)

        def write(text):
            Path("helper.py").write_text(self.HELPER.format(text=text))

        Path("parts").mkdir()
        Path("parts/__init__.py").write_text("from .more import more\n")
        Path("parts/more.py").write_text("from parts import inner\nmore = '!'\n")
        Path("parts/inner.py").write_text("import json\nfrom parts import deep\n")
        Path("parts/deep").mkdir()
        Path("parts/deep/__init__.py").write_text("from ..lower import low\n")
        Path("parts/lower.py").write_text("low = ''\n")
        Path("shout.py").write_text(
            "import mpwds\n"
            "from parts import more\n"
            "def shout(sample):\n"
            "    import helper\n"
            "    return {**sample, 'txt': helper.suffix() + more}\n"
            "stages = [mpwds.map(shout)]\n"
        )
        write("a")
        return write

    @pytest.fixture
    def again(self, run, monkeypatch):
        def again(*options):
            forget(monkeypatch)
            return run("proc", "shout.py:stages", "in-{0..1}.tar", "out-%d.tar", "-j", 1, *options)

        return again

    def test_nothing(self, shouted, again):
        assert again().returncode == 0
        shouted("a")
        Path("shout.py").write_text("# a comment\n" + Path("shout.py").read_text())
        assert "2 were complete before" in again().stdout

    @pytest.mark.parametrize(
        "name", ["helper.py", "parts/inner.py", "parts/lower.py", "parts/more.py", "shout.py"]
    )
    def test_of_code_that_the_stages_import_are_noticed(self, shouted, again, name):
        assert again().returncode == 0
        Path(name).write_text(Path(name).read_text().replace("'a'", "'b'") + "changed = 1\n")
        changed = again()
        assert changed.returncode == 1
        assert "with different code: repeat it as it was, choose another name" in changed.stderr

    def test_of_the_inputs_are_noticed(self, shouted, again, make_shard):
        assert again().returncode == 0
        make_shard("in-1.tar", {"new": {"cls": b"1"}})
        assert "with different inputs:" in again().stderr
        assert "2 shards written" in again("--force").stdout
