"""``mpwds create`` from folders of files."""

import gzip
import io
import json
import os
import re
import resource
import signal
import subprocess
import tarfile
import threading
from pathlib import Path

import pytest

import mpwds
from mpwds.cli.main import main
from tests.cli.running import signalled

ANIMALS = {f"{kind}/{n}.jpg": f"{kind} {n}".encode() for kind in ("dog", "cat") for n in range(3)}


def keys(*paths):
    return [sample["__key__"] for path in paths for sample in mpwds.WebDataset(str(path), empty_check=False)]


def test_folders_of_single_files_are_classes_numbered_by_name(run, write_files, members):
    result = run("create", write_files(ANIMALS), "out")
    assert result.returncode == 0
    found = members("out/shard-000000.tar")
    assert found["dog/2.jpg"] == b"dog 2"
    assert (found["cat/0.cls"], found["dog/0.cls"]) == (b"0", b"1")
    assert json.loads(Path("out/shard.classes.json").read_text()) == ["cat", "dog"]
    assert "2 classes" in result.stdout
    assert 0 <= float(re.search(r"wrote 6 samples \(36 B, (.*) s\) to 1 shard", result.stdout)[1]) < 1000


def test_folders_of_samples_of_several_files_are_classes_if_the_user_says_so(run, write_files, members):
    folder = write_files({**ANIMALS, "cat/0.json": b"{}"})
    assert "--from classes" in run("create", folder, "x.tar").stdout
    assert "dog/0.cls" not in members("x.tar")
    assert "--from" not in run("create", folder, "y.tar", "--from", "classes").stdout
    assert members("y.tar")["dog/0.cls"] == b"1"


def test_files_that_agree_up_to_the_first_dot_are_a_sample(run, write_files, members):
    files = {"a/1.png": b"1", "a/1.seg.PNG": b"2", "a/1.json": b"{}", "v1.0/2.png": b"3"}
    run("create", write_files(files), "x.tar")
    assert members("x.tar") == {
        "a/1.json": b"{}",
        "a/1.png": b"1",
        "a/1.seg.png": b"2",
        "v1.0/2.png": b"3",
    }


def test_compressed_files_keep_their_bytes(run, write_files, members):
    files = {"1.txt.gz": gzip.compress(b"text"), "2.txt.gz": b"", "2.TXT.v2.gz": b"not compressed"}
    run("create", write_files(files), "x.tar")
    assert members("x.tar") == {name.lower(): data for name, data in files.items()}


NO_FIELDS = dict.fromkeys(["1.txt", "README", ".DS_Store", ".hidden.txt", ".git/x.txt"], b"")
META = dict.fromkeys(["a/1.txt", "b/1.txt", "__c__/1.txt", "__c__/2.txt"], b"x")
EMPTY = {"train/a/1.jpg": b"", "train/b/1.jpg": b"1", "val/a/1.jpg": b"2", "val/b/1.jpg": b""}
KINDS = dict.fromkeys(["a/1.jpg", "a/2.jpg", "a/x.v1.jpg", "b/3.jpg", "b/notes.txt"], b"x")
BESIDE = {"train/1.txt": b"", "val/1.txt": b"", "labels.csv": b""}


@pytest.mark.parametrize(
    ("files", "names", "told"),
    [
        (NO_FIELDS, ["1"], "left out 1 file without an extension, such as README"),
        (META, ["a/1", "b/1"], "left out 2 files under a name like __x__, which readers skip, such as __c__"),
        (EMPTY, ["a/1", "b/1"] * 2, "took 2 empty files, such as train/a/1.jpg: mpwds verify --decode"),
        (KINDS, ["a/1", "a/2", "a/x", "b/3", "b/notes"], "fields: jpg (3), v1.jpg (1), txt (1)"),
        (BESIDE, ["1"] * 2, "left out 1 file beside the splits, such as labels.csv"),
    ],
    ids=["no fields", "meta", "empty", "kinds", "beside splits"],
)
def test_files_that_are_left_out_or_empty_are_named(run, write_files, files, names, told):
    result = run("create", write_files(files), "out", "-j", 1)
    assert told in result.stdout
    assert keys(*sorted(Path().glob("out/*.tar"))) == names


def test_names_without_an_extension_in_a_list_are_counted(run, write_files, monkeypatch):
    monkeypatch.chdir(write_files({"1.txt": b"", "README": b"", "list": b"1.txt\n\nREADME\n"}))
    result = run("create", "list", "x.tar", "--from", "files")
    assert "left out 1 file without an extension" in result.stdout


@pytest.mark.parametrize(
    ("files", "options", "told"),
    [
        (["a/1.txt", "a/1.cls", "b/2.txt"], (), ": --from classes"),
        (["a/1.txt", "a/1.cls", "b/2.txt"], ("--from", "groups"), None),
        (["a/1.txt", "b/2.txt"], (), None),
        (["a/1.txt", "a/1.cls"], (), None),
        (["a/1.txt", "b/2.txt", "3.txt"], (), ", because 3.* lies beside them: move it away"),
        (["a/1.txt", "b/2.txt", "3.txt"], ("--from", "groups"), None),
    ],
)
def test_folders_that_might_be_classes_are_told(run, write_files, files, options, told):
    result = run("create", write_files(dict.fromkeys(files, b"")), "x.tar", *options)
    _, found, how = result.stdout.partition("folders are not taken for classes")
    assert bool(found) == (told is not None)
    assert how.startswith(told or "")


@pytest.mark.parametrize(
    ("strays", "named"),
    [(["readme.txt"], "readme.txt"), (["a/0.b.jpg", "a/0.c.jpg"], "a/0.b.jpg and a/0.c.jpg")],
)
def test_a_stray_file_does_not_cost_the_labels_of_a_thousand_pictures(run, write_files, strays, named):
    files = [f"{folder}/x{number}.jpg" for folder in "ab" for number in range(6)]
    source = write_files(dict.fromkeys([*files, *strays], b""))
    result = run("create", source, "x.tar")
    assert result.returncode == 1
    assert f"but for 1 sample of 13: {named}. Move these away" in result.stderr
    assert not Path("x.tar").exists()
    assert run("create", source, "x.tar", "--from", "groups").returncode == 0


def test_a_single_folder_is_no_class(run, write_files, members):
    run("create", write_files({"a/1.txt": b"", "a/2.txt": b""}), "x.tar")
    assert keys("x.tar") == ["a/1", "a/2"]
    assert not list(Path().glob("*classes.json"))


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_lines_of_a_list_of_files_end_at_newlines_alone(run, write_files, members, end):
    names = ["a\u2028b.txt", "c\x85d.txt", "e\x0bf.txt"]
    folder = write_files(dict.fromkeys(names, b"text"))
    Path("list").write_bytes(b"".join(name.encode() + end for name in names))
    result = run("create", "list", "x.tar", "--from", "files", "--root", folder)
    assert result.returncode == 0, result.stderr
    assert list(members("x.tar")) == names


def test_a_list_of_absolute_names_makes_keys_that_stay_below_a_folder(run, write_files):
    folder = write_files({"1.txt": b""})
    Path("list").write_text(f"{folder}/1.txt\n")
    run("create", "list", "x.tar", "--from", "files")
    assert keys("x.tar") == [f"{folder}/1"[1:]]


def test_folders_named_after_splits_become_splits_with_the_same_classes(run, write_files):
    files = {f"{split}/{name}": data for split in ("train", "val") for name, data in ANIMALS.items()}
    assert run("create", write_files(files), "out", "-j", 1).returncode == 0
    names = [f"{split}{end}" for split in ("train", "val") for end in ("-000000.tar", ".classes.json")]
    assert sorted(path.name for path in Path("out").glob("[!.]*")) == names


def test_a_list_of_names_on_standard_input_becomes_an_archive_on_standard_output(command, write_files):
    folder = write_files({"1.txt": b"one", "1.cls": b"1", "2.txt": b"two"})
    made = subprocess.run(
        [*command, "create", "-", "-", "--from", "files", "--root", folder],
        input=b"./1.txt\n./1.cls\n2.txt\n",
        capture_output=True,
        check=True,
    )
    listed = subprocess.run(["tar", "tf", "-"], input=made.stdout, capture_output=True, check=True)
    assert listed.stdout.split() == [b"1.cls", b"1.txt", b"2.txt"]
    assert b"wrote 2 samples" in made.stderr


def test_a_name_outside_of_the_folder_is_refused(refused, write_files):
    Path("names").write_text("../a/1.txt\n")
    options = ["--from", "files", "--root", write_files({"a/1.txt": b""}) / "a"]
    assert "outside of the folder" in refused("create", "names", "-", *options)


def test_any_number_of_processes_writes_the_same_shards_of_all_samples_shuffled(run, write_files, tmp_path):
    names = [f"{animal}/{number:03d}" for animal in ("cat", "dog") for number in range(25)]
    folder = write_files({f"{name}.txt": b"" for name in names})
    for jobs in (1, 2):
        run("create", folder, tmp_path / str(jobs), "-j", jobs, "--maxcount", 25, "--shuffle", "--seed", 5)
    files = sorted(path.name for path in Path("1").glob("*.tar"))
    assert files == sorted(path.name for path in Path("2").glob("*.tar"))
    for file in files:
        assert (Path("1") / file).read_bytes() == (Path("2") / file).read_bytes()
    first, second = (keys(Path("1") / file) for file in files)
    assert sorted(first + second) == names
    assert {*first} != {*names[:25]}


def test_train_takes_a_share_at_random_and_val_the_rest(run, write_files):
    folder = write_files({f"{number:03d}.txt": b"" for number in range(100)})
    for seed in (0, 0, 1):
        options = ["--train", 0.9, "--seed", seed, "--force", "-j", 1, "--maxcount", 99]
        run("create", folder, "x-%02d.tar", *options)
        train, val = keys("train-x-00.tar"), keys("val-x-00.tar")
        assert sorted(train + val) == [f"{number:03d}" for number in range(100)]
        assert (len(train), train == sorted(train)) == (90, True)
        Path(f"val-{seed}").write_text(" ".join(val)) if not seed else None
    assert val != Path("val-0").read_text().split()


def test_the_last_line_names_the_shards_of_both_splits(run, write_files):
    folder = write_files({f"{number:03d}.txt": b"" for number in range(30)})
    done = run("create", folder, "x-%d.tar", "--train", 0.9, "--maxcount", 9, "-j", 1)
    series = "train-x-0.tar to train-x-2.tar, val-x-0.tar"
    assert done.stdout.splitlines()[-1].endswith(f"to 4 shards: {series}")


def test_no_file_is_larger_than_asked_for(run, write_files):
    folder = write_files({f"{animal}/{n}.bin": bytes(n) for animal in ("cat", "löwe") for n in range(100)})
    run("create", folder, "x-%d.tar", "--maxsize", "30kB", "-j", 1)
    sizes = [path.stat().st_size for path in Path().glob("x-*.tar")]
    assert len(sizes) > 1
    assert max(sizes) <= 30_000


def test_a_description_beside_the_shards_lists_them(run, write_files):
    run("create", write_files(ANIMALS), "out", "--maxcount", 4, "--index", "--train", 0.5, "-j", 1)
    description = json.loads(Path("out/train.json").read_text())
    size = Path("out/train-000000.tar").stat().st_size
    assert description["name"] == "train"
    assert description["shardlist"] == [{"url": "train-000000.tar", "nsamples": 3, "filesize": size}]
    assert run("index", "info", "out/val.json").returncode == 0


def test_json_tells_what_was_written(run, write_files):
    result = run("create", write_files({"1.txt": b"one"}), "x.tar", "--json")
    size = Path("x.tar").stat().st_size
    shard = {"url": "x.tar", "samples": 1, "nbytes": 3, "filesize": size}
    assert json.loads(result.stdout) == {"shards": [shard], "files": []}
    assert "wrote 1 sample (3 B," in result.stderr


def test_json_of_a_shard_on_standard_output_is_on_standard_error(write_files, capfdbinary):
    assert main(["create", str(write_files({"1.txt": b"one"})), "-", "--json"]) == 0
    written, told = capfdbinary.readouterr()
    with tarfile.open(fileobj=io.BytesIO(written)) as archive:
        assert archive.getnames() == ["1.txt"]
    assert json.loads(told.splitlines()[-2])["shards"][0]["url"] == "-"


TWICE = {"1.jpg": b"", "list": b"1.jpg\n./1.jpg\n"}


@pytest.mark.parametrize(
    ("files", "arguments", "message"),
    [
        ({"README": b""}, (), "no file that can be a field"),
        (dict.fromkeys(["train/a/1.b", "val/a/1.b", "val/c/1.b"], b""), (), "different class folders"),
        ({"1.jpg": b"", "1.JPG": b""}, (), "differ in case alone"),
        (TWICE, ("--from", "files", "--root", "source"), "the list names source/./1.jpg twice: remove one"),
        ({"a/1.jpg": b"", "2.jpg": b""}, ("--from", "classes"), "has no class"),
        ({"a/1.jpg": b"", "a/1.cls": b""}, ("--from", "classes"), "a label already"),
        ({"1.jpg": b""}, ("--from", "zip"), "--from zip: expected one of classes, groups, files, csv"),
        (
            {"train/1.b": b"", "val/1.b": b""},
            ("--train", "0.9"),
            "--train: there are splits already, train, val",
        ),
        ({"train/1.b": b"", "val/1.b": b""}, ("--split", "test"), "--split test: there are train, val"),
        ({"1.jpg": b""}, ("--columns", "a:b"), "--columns and --key are for lists"),
        ({"1.jpg": b""}, ("--key", "id"), "--key are for lists"),
        ({"1.jpg": b""}, ("--train", "0.9"), "1 samples cannot be split"),
        ({"1.jpg": b""}, ("--split", "train"), "no splits"),
        ({"1.jpg": b""}, ("--maxsize", "large"), "is no size"),
    ],
)
def test_what_cannot_be_done_is_an_error_and_writes_nothing(run, write_files, files, arguments, message):
    folder = write_files(files)
    result = run("create", folder / "list" if "list" in files else folder, "out", *arguments)
    assert result.returncode in (1, 2)
    assert message in result.stderr
    assert not Path("out").exists()


def test_a_source_that_is_not_there_is_an_error(refused):
    assert "there is no nothing" in refused("create", "nothing", "-")


def test_a_pipe_in_a_list_of_files_is_read_to_its_end(run, write_files, members):
    folder = write_files({"names": b"1.txt\n"})
    os.mkfifo(folder / "1.txt")
    writer = threading.Thread(target=(folder / "1.txt").write_bytes, args=(b"text" * 50_000,))
    writer.start()
    run("create", folder / "names", "x.tar", "--from", "files", "--root", folder, "-j", 1)
    writer.join()
    assert members("x.tar") == {"1.txt": b"text" * 50_000}


@pytest.mark.parametrize(
    ("jobs", "number"),
    [
        (1, signal.SIGINT),
        (2, signal.SIGKILL),
        pytest.param(2, signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(2, signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_run_leaves_whole_shards_and_continues(command, run, write_files, jobs, number):
    folder = write_files({f"{number}.txt": b"text" for number in range(4)})
    os.mkfifo(folder / "3.bin")  # reading it waits for ever
    os.utime(folder / "3.bin", (0, 0))
    Path("names").write_text("0.txt\n1.txt\n2.txt\n3.txt\n3.bin\n")
    options = ["--from", "files", "--root", folder, "--maxcount", 1, "-j", jobs]
    words = ["create", "names", "out/x-%d.tar", *options]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    status = signalled(lambda: len(list(Path().glob("out/*.tar"))) == 3, [*command, *words], number, **quiet)
    assert status in (130, 143, -signal.SIGKILL)
    whole = sorted(Path().glob("out/*.tar"))
    assert keys(*whole) == ["0", "1", "2"]
    if number != signal.SIGKILL:
        assert not list(Path().glob("out/.*partial"))
    (folder / "3.bin").unlink()
    (folder / "3.bin").touch()
    os.utime(folder / "3.bin", (0, 0))
    assert "with different options: repeat it" in run(*words, "--seed", 1).stderr
    assert "with different options: repeat it" in run(*words, "--maxcount", 2).stderr
    assert "wrote 1 sample (4 B" in (result := run(*words)).stdout
    assert "3 were complete before" in result.stdout
    assert not list(Path().glob("out/.*partial"))
    assert keys(*whole, "out/x-3.tar") == ["0", "1", "2", "3"]


@pytest.mark.parametrize(("options", "last"), [((), "shard.json"), (("--train", 0.5), "val.json")])
def test_a_run_that_is_killed_near_its_end_continues(command, run, write_files, options, last):
    words = ["create", write_files(ANIMALS), "out", "--index", "-j", 1, *options]
    Path("out").mkdir()
    os.mkfifo(Path("out") / last)  # opening it waits for ever
    signalled((Path("out") / last.replace(".json", ".classes.json")).exists, [*command, *words])
    (Path("out") / last).unlink()
    Path(f"out/.{last}.01234567.partial").touch()  # had it been killed while writing that
    assert len(list(Path().glob("out/.*.journal"))) == 1
    assert "complete before" in run(*words).stdout
    assert (Path("out") / last).exists()
    assert not list(Path().glob("out/.*partial"))


def test_a_run_whose_journal_does_not_fit_on_the_disk_writes_no_shard(command, write_files):
    write_files({f"{number}.txt": b"" for number in range(60)}, "files")
    folder = "long" * 60

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))  # more than a shard has

    words = [*command, "create", "files", f"{folder}/x-%d.tar", "--maxcount", "1", "-j", "1"]
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 1
    assert f"{folder}/.x-.tar.journal: File too large" in done.stderr
    assert os.listdir(folder) == []


def test_a_complete_run_is_repeated_without_an_error_and_writes_nothing(run, write_files):
    words = ["create", write_files(ANIMALS), Path("out/x-%d.tar"), "--maxcount", 2, "--index", "-j", 1]
    run(*words)
    written = {path: path.stat().st_mtime_ns for path in Path().glob("out/*.tar")}
    done = run(*words)
    assert (done.returncode, "no shard to write: 3 shards complete before" in done.stdout) == (0, True)
    assert {path: path.stat().st_mtime_ns for path in Path().glob("out/*.tar")} == written
    Path("out/x-1.tar").unlink()
    assert "wrote 2 samples (12 B" in run(*words).stdout
    assert "with different options: repeat it" in run(*words, "--shuffle").stderr


@pytest.fixture
def killed(command):
    """Runs ``create`` into shards of one sample; kills it at the one that is a pipe nobody writes to."""

    def killed(*words):
        words = ["create", *words, "out/x-%d.tar", "--maxcount", 1, "-j", 1]
        signalled(Path("out/x-1.tar").exists, [*command, *words])
        return words

    return killed


@pytest.mark.parametrize("change", ["content", "replaced", "other list"])
def test_a_run_whose_source_has_changed_does_not_continue(killed, refused, write_files, change):
    folder = write_files({f"{number}.txt": b"old" for number in range(4)})
    names = Path("names.csv") if change == "other list" else Path("names")
    if change == "other list":
        names.write_text("key,image\n" + "".join(f"k{n},{n}.txt\n" for n in range(4)) + "k4,4.txt\n")
        options = ["--columns", "image:txt", "--root", folder]
    else:
        names.write_text("0.txt\n1.txt\n2.txt\n3.txt\n4.txt\n")
        options = ["--from", "files", "--root", folder]
    os.mkfifo(folder / "4.txt")
    words = killed(names, *options)
    if change == "content":
        (folder / "0.txt").write_bytes(b"new")
        os.utime(folder / "0.txt", ns=(0, 1))
    elif change == "replaced":
        (folder / "0.txt").rename(folder / "9.txt")
        names.write_text("9.txt\n1.txt\n2.txt\n3.txt\n4.txt\n")
    else:
        names.write_text(names.read_text().replace("k3", "k9"))
    assert "with different inputs: repeat it" in refused(*words)


@pytest.mark.parametrize("name", ["x.classes.json", "x.json"])
def test_files_beside_the_shards_are_replaced_only_by_force(run, refused, write_files, name):
    Path("new").mkdir()
    (Path("new") / name).write_text("mine")
    words = ["create", write_files(ANIMALS), Path("new/x.tar"), "--index"]
    assert "exists already" in refused(*words)
    assert [path.read_text() for path in Path("new").iterdir()] == ["mine"]
    assert run(*words, "--force").returncode == 0
    assert (Path("new") / name).read_text() != "mine"
