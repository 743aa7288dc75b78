"""Names that commands write to: only a number in the last part makes a series, and other % are characters."""

import os
import shlex
import subprocess
import tarfile
import threading
from pathlib import Path

import pytest

from mpwds.cli.outputs import beside, existing
from mpwds.storage.writing.destinations import is_series, numbered


@pytest.fixture
def source(write_shard):
    """A shard of three samples, in a folder that is the current one."""
    write_shard("in.tar", *({"cls": number} for number in range(3)))
    Path("stages.py").write_text("stages = []\n")
    return "in.tar"


@pytest.mark.parametrize(
    ("arguments", "name", "count"),
    [
        (("split", "in.tar", "{}", "--maxcount", 1), "50%-%d.tar", 3),
        (("proc", "stages.py:stages", "in.tar", "{}", "--repeat", 2, "-j", 1), "out-%02d.tar", 2),
        (("convert", "in.tar", "{}", "--maxcount", 2), "50%-%d.tar", 2),
        (("convert", "in.tar", "{}", "--maxcount", 2), "%d.msgpack", 2),
        (("create", "files", "{}", "--maxcount", 1), "x-%d.tar", 2),
        (("merge", "in.tar", "{}"), "60%.tar", 1),
        (("shuffle", "in.tar", "{}", "--maxcount", 2), "%d.tar", 2),
        (("sort", "in.tar", "{}"), "60%.tar", 1),
        (("convert", "in.tar", "{}"), "60%.tar", 1),
        (("convert", "in.tar", "{}"), "60%.msgpack", 1),
        (("create", "files", "{}"), "60%.tar", 1),
        (("repair", "in.tar", "-o", "{}"), "60%.tar", 1),
        (("index", "create", "in.tar", "-o", "{}"), "60%.json", 1),
    ],
)
def test_percent_signs_are_characters_and_folders_are_made(run, source, write_files, arguments, name, count):
    write_files({"1.txt": b"", "2.txt": b""}, "files")
    target = f"100%done/my%20dir/{name}"
    done = run(*(str(word).format(target) for word in arguments))
    assert done.returncode == 0, done.stderr
    assert existing(target) == [numbered(target, number) for number in range(count)]


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (("create", "files", "{}", "--maxcount", 1), 2),
        (("convert", "in.tar", "{}", "--to", "tar", "--maxcount", 2), 2),
        (("split", "in.tar", "{}", "--maxcount", 1), 3),
        (("merge", "in.tar", "{}"), 1),
        (("shuffle", "in.tar", "{}", "--maxcount", 2), 2),
        (("shuffle", "in.tar", "{}", "--part", "0/1"), 1),
        (("sort", "in.tar", "{}"), 1),
        (("proc", "stages.py:stages", "in.tar", "in.tar", "{}", "-j", 1), 2),
        (("repack", "in.tar", "{}", "-j", 1), 1),
    ],
)
@pytest.mark.parametrize("folder", ["new/data-1.0", "new/", "there"])
def test_a_folder_gets_a_series(run, source, write_files, arguments, count, folder):
    write_files({"1.txt": b"", "2.txt": b""}, "files")
    Path("there").mkdir()
    done = run(*(str(word).format(folder) for word in arguments))
    assert done.returncode == 0, done.stderr
    assert existing(f"{folder.rstrip('/')}/shard-%06d.tar") == [
        f"{folder.rstrip('/')}/shard-{number:06d}.tar" for number in range(count)
    ]


@pytest.mark.parametrize("words", ["create files", "convert in.tar", "split --maxcount 1 in.tar"])
def test_braces_in_an_output_are_refused(refused, source, write_files, words):
    write_files({"1.txt": b""}, "files")
    told = refused(*words.split(), "out/x-{0..3}.tar", status=2)
    assert "name the series to write out/x-%06d.tar" in told


def test_a_pipe_and_a_file_that_exist_are_no_folders(run, source):
    os.mkfifo("pipe")
    with subprocess.Popen(["tar", "-tf", "pipe"], stdout=subprocess.PIPE, text=True) as listing:
        assert run("merge", source, "pipe").returncode == 0
        assert listing.stdout.read().split() == ["0000.cls", "0001.cls", "0002.cls"]
    Path("notes").touch()
    done = run("merge", source, "notes")
    assert (done.returncode, done.stderr.split(": ")[2][:20]) == (1, "notes exists already")


@pytest.mark.parametrize(
    "words",
    [
        ("merge", "in.tar", "{}"),
        ("convert", "in.tar", "{}", "--to", "tar"),
        ("create", "files", "{}"),
        ("proc", "stages.py:stages", "in.tar", "{}"),
        ("repair", "in.tar", "-o", "{}"),
        ("index", "create", "in.tar", "-o", "{}"),
    ],
)
def test_standard_output_is_the_same_under_all_its_names(command, source, write_files, words):
    write_files({"1.txt": b"one"}, "files")
    outputs = []
    for name in ("-", "/dev/stdout"):
        Path("out").write_bytes(b"before")
        with open("out", "ab") as out:
            arguments = [word.format(name) for word in words]
            subprocess.run([*command, *arguments], stdout=out, stderr=subprocess.DEVNULL, check=True)
        outputs.append(Path("out").read_bytes())
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith(b"before")


@pytest.mark.parametrize("line", ["cat pipe > read & {} pipe", "{} 'pipe:cat > read && true'", "{} - > read"])
@pytest.mark.parametrize("words", [("proc", "stages.py:stages", "in.tar"), ("create", "files")])
def test_nothing_is_beside_a_stream(command, source, write_files, words, line):
    write_files({"cat/1.txt": b"one", "dog/2.txt": b"two"}, "files")
    os.mkfifo("pipe")
    before = {*os.listdir(), "read"}
    subprocess.run(line.format(shlex.join([*command, *words])), shell=True, check=True)
    assert {*os.listdir()} - {"__pycache__"} == before


@pytest.mark.parametrize("output", ["pipe:cat > x.tar", "/dev/stdout"])
def test_a_stream_has_no_description(refused, write_files, output):
    folder = write_files({"1.txt": b"one"})
    said = refused("create", folder, output, "--index", status=2)
    assert f"{output} is a stream, and no file can be beside it" in said


def test_a_series_has_one_number_in_its_last_part():
    assert [is_series(name) for name in ("x-%d.tar", "x-%03d/y.tar", "x%20day.tar", "50%")] == [1, 0, 0, 0]
    assert numbered("%d/50%-%03d.tar", 7) == "%d/50%-007.tar"
    assert beside("a/x-%06d.tar", ".json") == "a/x.json"
    with pytest.raises(ValueError, match="needs one % directive"):
        numbered("%d-%d.tar", 0)


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("merge", "{}", "out.tar"), "out.tar"),
        (("split", "{}", "out-%d.tar", "--maxcount", 2), "out-1.tar"),
        (("sort", "{}", "out.tar"), "out.tar"),
        (("convert", "{}", "out.tar"), "out.tar"),
        (("convert", "{}", "out-%d.tar", "--maxcount", 2), "out-1.tar"),
        (("convert", "{}", "out.msgpack", "--from", "tar"), "out.msgpack"),
        (("index", "create", "s3://x", "-o", "out.json"), "out.json"),
        (("proc", "stages.py:stages", "{}", "out-%d.tar", "-j", 1), "out-0.tar"),
    ],
)
def test_a_file_that_appears_meanwhile_is_replaced_by_force_alone(
    run, source, arguments, output, monkeypatch
):
    appears = f"pipe:cat {source} && echo mine > {output} && true"
    monkeypatch.setenv("WDS_REWRITE", f"s3://={appears} ")
    done = run(*(str(word).format(appears) for word in arguments))
    assert done.returncode == 1
    meanwhile = "it was written meanwhile by another program, and is not replaced"
    assert f"{output}: {meanwhile}" in done.stderr or f"{output} exists already" in done.stderr
    assert Path(output).read_text() == "mine\n"
    os.unlink(output)
    if arguments[0] != "proc":  # a journal says what it began
        assert run(*(str(word).format(appears) for word in arguments), "--force").returncode == 0
        assert Path(output).read_bytes() != b"mine\n"


@pytest.mark.parametrize("name", ["out.tar", "out.json"])
def test_a_file_that_appears_while_shards_are_made_stays(run, source, write_files, name):
    folder = write_files({"1.txt": b"one"})
    os.mkfifo(folder / "2.txt")
    (folder / "names").write_text("1.txt\n2.txt\n")

    def appear():
        with open(folder / "2.txt", "wb") as fifo:
            Path(name).write_text("mine\n")
            fifo.write(b"two")

    thread = threading.Thread(target=appear)
    thread.start()
    words = ["create", folder / "names", "out.tar", "--from", "files", "--root", folder, "-j", 1, "--index"]
    done = run(*words)
    thread.join()
    assert done.returncode == 1
    assert f"{name}: it was written meanwhile" in done.stderr
    assert Path(name).read_text() == "mine\n"


@pytest.mark.parametrize(
    "words",
    [
        ("split", "in.tar", "{}", "--maxcount", 2),
        ("convert", "in.tar", "{}"),
        ("create", "files", "{}"),
        ("proc", "stages.py:stages", "in.tar", "{}", "-j", 1),
    ],
)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_older_shards_of_a_longer_series_need_force_and_are_named(run, source, write_files, words, options):
    write_files({"1.txt": b"one"}, "files")
    for number in (7, 8):
        Path(f"out-{number}.tar").touch()
    words = [str(word).format("out-%d.tar") for word in words]
    if words[0] != "proc":
        assert run(*words, *options).returncode == 1
    done = run(*words, "--force", *options)
    assert done.returncode == 0
    assert "out-7.tar and 1 more of the series are of an earlier run" in done.stderr


def test_a_series_at_a_file_url_is_one(run, refused, source):
    split = ["split", source, "file:my%20dir/x-%06d.tar", "--maxcount"]
    assert run(*split, 2).returncode == 0
    assert sorted(os.listdir("my dir")) == ["x-000000.tar", "x-000001.tar"]
    assert "my dir/x-000000.tar and 1 more of its series exist" in refused(*split, 1)
    assert "x-000000.tar is read" in refused("merge", "my dir/x-000000.tar", *split[2:3], "--force", status=2)
    done = run("merge", source, *split[2:3], "--force")
    assert "my dir/x-000001.tar of the series is of an earlier run" in done.stderr
    assert run("proc", "stages.py:stages", source, "file:other/x-%06d.tar", "-j", 1).returncode == 0
    assert ".x-.tar.journal" in os.listdir("other")


@pytest.mark.parametrize(
    ("output", "names"),
    [
        ("train-%04d.tar", ["train-0000.tar", "val-0000.tar"]),
        ("val-%04d.tar", ["train-0000.tar", "val-0000.tar"]),
        ("%s-%d.tar", ["train-0.tar", "val-0.tar"]),
        ("d/x.%s.tar", ["d/x.train.tar", "d/x.val.tar"]),
        ("trained-%d.tar", ["train-trained-0.tar", "val-trained-0.tar"]),
        ("my.v2", ["my.v2/train-000000.tar", "my.v2/val-000000.tar"]),
        ("data-1.0/", ["data-1.0/train-000000.tar", "data-1.0/val-000000.tar"]),
        ("there.tar", ["there.tar/train-000000.tar", "there.tar/val-000000.tar"]),
    ],
)
def test_splits_have_names_of_their_own(run, source, write_files, output, names):
    folder = write_files({f"{number}.txt": b"" for number in range(4)})
    os.mkdir("there.tar")
    done = run("create", folder, output, "--train", 0.5, "-j", 1)
    assert done.returncode == 0, done.stderr
    assert [name for name in names if os.path.isfile(name)] == names


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("split", "in.tar", "out.tar", "--maxcount", 1), 2, "limits mean nothing"),
        (("split", "in.tar", "%d-%d.tar", "--maxcount", 1), 2, "needs one % directive"),
        (("create", "files", "out.tar", "--maxcount", 1), 2, "limits mean nothing"),
        (("merge", "in.tar", "in.tar", "--force"), 2, "cannot be written as well"),
        (("proc", "stages.py:stages", "in.tar", "in.tar", "--force"), 2, "cannot be written as well"),
        (("repair", "in.tar", "-o", ".", "--force"), 2, "cannot be written as well"),
        (("create", "files", "files/x-%d.tar"), 2, "would lie in files, which is read"),
        (("create", "files", "-", "--train", 0.5), 2, "one stream, and there are splits: write %s"),
        (("create", "files", "%s.tar"), 2, "%s stands for the split"),
        (("convert", "in.tar", "out.cbor", "--maxsize", "1MB"), 2, "limits mean nothing"),
        (("convert", "in.tar", "out.tar", "--maxcount", 3), 2, "limits mean nothing"),
        (("proc", "stages.py:stages", "in.tar", "out.tar", "--repeat", 2), 2, "2 are to be written"),
        (("split", "missing.tar", "out-%d.tar", "--maxcount", 1), 1, "missing.tar: No such file"),
        (("split", "in.tar", "out-%d.tar"), 2, "say where to split"),
        (("split", "in.tar", "out-%d.tar", "--maxsize", "big"), 2, "'big' is no size"),
        (("merge", "no-*.tar", "out.tar"), 1, "no file matches no-*.tar"),
        (("create", "files", "out.tar", "--maxsize", "1kB"), 2, "limits mean nothing"),
        (("repair", "stages.py", "-o", "out.tar"), 1, ""),
        (("repair", "stages.py", "--in-place"), 1, ""),
    ],
)
def test_the_status_tells_wrong_arguments_from_wrong_data(
    run, source, write_files, arguments, status, message
):
    write_files({"1.txt": b"", "2.txt": b""}, "files")
    done = run(*arguments)
    assert (done.returncode, message in done.stderr) == (status, True)
    assert sorted(os.listdir()) == ["files", "in.tar", "stages.py"]
    assert Path("stages.py").read_text() == "stages = []\n"


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    "words", ["convert in.tar out-%d.tar", "convert in.tar out-%d.cbor", "create files out-%d.tar"]
)
def test_an_object_on_a_server_is_replaced_only_by_force(run, web, source, write_files, words, number):
    write_files({f"{number}.txt": b"" for number in range(4)}, "files")
    command, read, output = words.split()
    name = f"/{output}" % number
    web.files[name] = b"mine"
    words = [command, read, web.url(f"/{output}"), "--maxcount", 2]
    assert f"{web.url(name)} exists already" in run(*words).stderr
    assert web.files[name] == b"mine"
    assert run(*words, "--force").returncode == 0
    assert web.files[name] != b"mine"


@pytest.mark.parametrize("command", ["convert", "repack", "create"])
def test_a_field_whose_name_begins_with_an_underscore_is_one(run, in_process, write_files, command):
    folder = write_files({"a.txt": b"1", "a._mask.png": b"2"})
    with tarfile.open("fields.tar", "w") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)
    done = run(command, folder if command == "create" else "fields.tar", "out.tar")
    assert done.returncode == 0, done.stderr
    with tarfile.open("out.tar") as archive:
        assert sorted(archive.getnames()) == ["a._mask.png", "a.txt"]
