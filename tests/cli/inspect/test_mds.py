import subprocess
from pathlib import Path

import pytest

import mpwds
from mpwds.cli.inspect.shards import shards_of
from mpwds.cli.main import main

COLUMNS = {"image": "jpeg", "label": "int", "text": "str", "info": "json", "tags": "jpeg_array"}


@pytest.fixture
def dataset(picture):
    """Writes a dataset of version 2 with two shards; returns its folder."""

    def dataset(**options):
        folder = Path("mds")
        with mpwds.MDSWriter(columns=COLUMNS, out=str(folder), size_limit=12_000, **options) as sink:
            for number in range(16):
                image = picture(number % 3)
                fields = {"label": number % 3, "text": f"text {number}", "info": {"n": number}}
                sink.write({"image": image, "tags": [b"file"], **fields})
        return folder

    return dataset


def test_columns_with_capital_letters_and_underscores_are_fields(capfdbinary):
    with mpwds.MDSWriter(columns={"_id": "str", "Caption": "str"}, out="mds") as sink:
        sink.write({"_id": "7", "Caption": "a cat"})
    assert main(["cat", "mds", "--fields", "Caption.txt"]) == 0
    assert capfdbinary.readouterr().out == b"a cat"
    assert main(["cat", "mds", "--tar"]) == 0
    Path("x.tar").write_bytes(capfdbinary.readouterr().out)
    (sample,) = mpwds.WebDataset("x.tar")
    assert sample["_id.txt"] == b"7"


@pytest.mark.parametrize(("other", "fields"), [("int", ("n", "n.cls")), ("json", ("n.cls", "n.cls.json"))])
def test_columns_that_would_be_one_field_are_two(run, objects, other, fields):
    with mpwds.MDSWriter(columns={"n": "int", "n.cls": other}, out="mds") as sink:
        sink.write({"n": 3, "n.cls": 4})
    (sample,) = objects(run("cat", "mds", "--json").stdout)
    assert set(fields) <= set(sample)
    assert sample["n.cls"] == (4 if other == "int" else 3)


@pytest.fixture
def old_dataset():
    """Writes a dataset of version 1, compressed or not; returns its folder."""

    def old_dataset(compression=None):
        with mpwds.StreamingDatasetWriter("old", ["cls", "txt"], 64, compression) as sink:
            for number in range(9):
                sink.write_sample({"cls": b"%d" % number, "txt": b"text"})
        return Path("old")

    return old_dataset


@pytest.mark.parametrize("options", [{}, {"compression": "zstd", "hashes": ["sha1"]}])
def test_columns_are_fields_whose_extensions_tell_their_kind(run, dataset, objects, options):
    *_, total = objects(run("info", dataset(**options), "--shapes", "--json").stdout)
    kinds = {name: list(field["kinds"]) for name, field in total["fields"].items()}
    assert kinds == {
        "image.jpg": ["JPEG image, RGB"],
        "label.cls": ["int"],
        "text": ["text"],
        "info.json": ["object with n"],
        "tags": ["bytes"],
    }
    assert (total["samples"], total["fields"]["label.cls"]["values"]) == (16, {"min": 0, "max": 2})


@pytest.mark.parametrize("compression", [None, "gz"])
def test_version_1_is_read_too(run, old_dataset, objects, compression):
    found = objects(run("cat", old_dataset(compression), "--json").stdout)
    assert found == [{"__key__": f"{number:09d}", "cls": number, "txt": "text"} for number in range(9)]


def test_samples_are_chosen_by_columns(run, dataset, objects):
    found = objects(run("cat", dataset(), "--json", "-w", "label == 2 and info.n > 10", "-f", "text").stdout)
    assert [sample["text"] for sample in found] == ["text 11", "text 14"]


def test_nothing_is_written_beside_compressed_shards(run, dataset):
    folder = dataset(compression="gz")
    before = set(folder.iterdir())
    assert run("verify", folder).returncode == 0
    assert set(folder.iterdir()) == before


def test_extracted_fields_are_files_of_their_kind(run, dataset):
    run("extract", dataset(), "-o", "out", "-n", "3")
    assert sorted(path.name for path in Path("out").iterdir()) == [
        f"000000003.{field}" for field in ("image.jpg", "info.json", "label.cls", "tags", "text")
    ]
    assert Path("out/000000003.label.cls").read_text() == "0"


def test_samples_become_a_tar_shard(command, dataset, run):
    written = subprocess.run(
        [*command, "cat", str(dataset()), "--tar", "-f", "image*,label*"], capture_output=True, check=True
    )
    listed = subprocess.run([*command, "ls", "-"], input=written.stdout, capture_output=True, check=True)
    assert listed.stdout.count(b"image.jpg") == 16


def test_bytes_of_columns_are_not_encoded_in_a_tar_shard(capfdbinary):
    with mpwds.MDSWriter(columns={"txt.gz": "bytes"}, out="mds") as sink:
        sink.write({"txt.gz": b"no gzip"})
    assert main(["cat", "mds", "--tar"]) == 0
    Path("x.tar").write_bytes(capfdbinary.readouterr().out)
    assert main(["cat", "x.tar"]) == 0
    assert capfdbinary.readouterr().out == b"no gzip"


@pytest.mark.parametrize("options", [{"hashes": ["sha1"]}, {"hashes": ["sha1"], "compression": "gz"}])
def test_verify_compares_hashes(run, dataset, flipped, objects, options):
    folder = dataset(**options)
    assert run("verify", folder, "--decode").returncode == 0
    shard = shards_of([str(folder)])[1].name
    flipped(folder / shard.rpartition("/")[2], 600)
    result = run("verify", folder, "--json")
    assert result.returncode == 1
    assert {problem["shard"] for problem in objects(result.stdout)[:-1]} == {shard}


def test_numbers_and_keys_go_on_from_shard_to_shard(run, dataset, objects):
    found = objects(run("ls", dataset(), "--json").stdout)
    assert len({sample["shard"] for sample in found}) > 1
    assert [(sample["number"], sample["key"]) for sample in found] == [(n, f"{n:09d}") for n in range(16)]


def test_samples_without_keys_are_those_of_the_dataset_in_each_shard(run, dataset, objects):
    *_, totals = objects(run("verify", dataset(), "--json").stdout)
    assert (totals["shards"] > 1, totals["keys_in_several_shards"]) == (True, 0)


def test_verify_compares_sizes(run, dataset, objects):
    shard = dataset() / "shard.00000.mds"
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes() + b"more")
    *_, problem, _ = objects(run("verify", shard.parent, "--json").stdout)
    assert problem["problem"] == f"it has {size + 4} bytes, the index says {size}"


def test_verify_finds_a_column_that_is_damaged(run, dataset, objects):
    folder = dataset()
    shard = folder / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes().replace(b'{"n": 3}', b'{"n"= 3}').replace(b'{"n":3}', b'{"n"=3}'))
    problem, _ = objects(run("verify", folder, "--decode", "--json").stdout)
    assert (problem["key"], problem["field"]) == ("000000003", "info.json")


def test_a_missing_shard_is_named_once_for_all_its_samples(run, dataset, objects):
    folder = dataset()
    (folder / "shard.00001.mds").unlink()
    (problem,) = objects(run("ls", folder, "--json").stdout)[-1:]
    assert problem["shard"] == str(folder / "shard.00001.mds")
    assert "no such file" in problem["problem"]
    assert run("verify", folder).returncode == 1


def test_a_damaged_table_of_offsets_is_a_problem_of_its_samples_alone(run, dataset, flipped, objects):
    folder = dataset()
    flipped(folder / "shard.00000.mds", 4 + 4 * 3 + 3)
    found = objects(run("ls", folder, "--json").stdout)
    assert [each["problem"][:23] for each in found if "problem" in each] == [
        f"sample {index} cannot be read" for index in (2, 3)
    ]
    assert len(found) == 16


@pytest.mark.parametrize("command", ["ls", "info", "verify", "show"])
def test_a_dataset_without_samples_is_no_error(run, command):
    with mpwds.MDSWriter(columns={"cls": "int"}, out="mds"):
        pass
    assert run(command, "mds").returncode == 0


def test_repair_says_what_to_do_instead(refused, dataset):
    assert "mpwds convert" in refused("repair", dataset(), "-o", "out", status=2)


def test_a_folder_of_tar_shards_is_read_as_they_are(run, shards, tmp_path):
    assert run("ls", tmp_path).stdout == run("ls", shards).stdout
