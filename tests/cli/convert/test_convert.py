"""``mpwds convert``: between tar shards, MDS and record files."""

import gzip
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import mpwds
from mpwds.cli.main import main
from mpwds.storage.mds.shards_v1 import MDS1Shards
from mpwds.storage.mds.shards_v2 import MDSShards
from tests.cli.convert.conftest import read

PEER = Path(__file__).parents[2] / "storage" / "mds" / "peer.py"


def image(image_format, number):
    with io.BytesIO() as stream:
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
        PIL.Image.fromarray(pixels).save(stream, image_format)
        return stream.getvalue()


def sample(number):
    array = io.BytesIO()
    np.save(array, np.full((2, 3), number, np.float32))
    return {
        "__key__": f"a/{number}",
        "cls": b"%d" % number,
        "jpg": image("JPEG", number),
        "json": json.dumps({"number": number}).encode(),
        "npy": array.getvalue(),
        "seg.png": image("PNG", number),
        "txt": f"text {number} é".encode(),
        "wav": b"RIFF....WAVE" + bytes(number),
    }


SAMPLES = [sample(number) for number in range(10)]


@pytest.fixture
def shards():
    """Shards of ten samples with fields of many kinds; returns their pattern."""
    with mpwds.ShardWriter("x-%d.tar", maxcount=4, verbose=0) as sink:
        for each in SAMPLES:
            sink.write(each)
    return Path("x-{0..2}.tar")


@pytest.mark.parametrize("to", ["mds", "mds1", "msgpack", "cbor"])
def test_each_format_and_back_gives_the_same_samples(run, shards, to):
    there = Path(f"there.{to}")
    assert run("convert", shards, there, "--to", to).returncode == 0
    back = run("convert", there, "back.tar")
    assert back.returncode == 0, back.stderr
    assert read("back.tar") == SAMPLES


def test_columns_of_mds_have_the_encodings_of_their_fields(run, shards):
    shown = run("convert", shards, "mds").stdout
    columns = MDSShards(Path("mds")).columns
    expected = "__key__:str cls:int jpg:jpeg json:json npy:ndarray seg.png:png txt:str wav:bytes"
    assert " ".join(f"{name}:{columns[name]}" for name in sorted(columns)) == expected
    assert "jpg (jpeg)" in shown
    found = MDSShards(Path("mds")).read(0, 7)
    assert (found["cls"], found["txt"], found["json"]) == (7, "text 7 é", {"number": 7})
    assert found["npy"].tolist() == [[7, 7, 7], [7, 7, 7]]


def test_columns_may_be_chosen_renamed_and_encoded_anew(run, shards):
    chosen = "image=jpg:png,label=cls:uint8,txt:str"
    run("convert", shards, "mds", "--columns", chosen, "--no-keys")
    dataset = MDSShards(Path("mds"))
    assert dataset.columns == {"image": "png", "label": "uint8", "txt": "str"}
    found = dataset.read(0, 3)
    assert found["label"] == 3
    assert found["image"].tobytes() == PIL.Image.open(io.BytesIO(SAMPLES[3]["jpg"])).tobytes()


def test_fields_of_tar_shards_may_be_chosen(run):
    with mpwds.MDSWriter(columns={"image": "bytes", "y": "float32", "n": "int"}, out="mds") as sink:
        sink.write({"image": SAMPLES[0]["jpg"], "y": 0.5, "n": 3})
    assert run("convert", "mds", "a.tar").returncode == 0
    assert read("a.tar") == [
        {"__key__": "000000000", "image.jpg": SAMPLES[0]["jpg"], "n.cls": b"3", "y.json": b"0.5"}
    ]
    assert run("convert", "mds", "b.tar", "--columns", "image:jpg,n:cls").returncode == 0
    assert read("b.tar") == [{"__key__": "000000000", "jpg": SAMPLES[0]["jpg"], "cls": b"3"}]


def test_create_makes_shards_of_mds_in_parallel(run, shards):
    run("convert", shards, "mds", "--compression", "gz", "--maxsize", "4KiB")
    assert run("create", "mds", "y-%d.tar", "--maxcount", 5, "-j", 2).returncode == 0
    assert read("y-0.tar", "y-1.tar") == SAMPLES


def test_create_reads_mds_at_a_url_as_well(run, web, shards):
    run("convert", shards, "mds", "--maxsize", "4KiB")
    web.files = {f"/mds/{path.name}": path.read_bytes() for path in Path("mds").iterdir()}
    made = run("create", web.url("/mds"), "y.tar", "--from", "mds")
    assert made.returncode == 0, made.stderr
    assert read("y.tar") == SAMPLES


def test_composers_version_holds_the_fields_bytes(run, shards):
    run("convert", shards, "mds", "--to", "mds1", "--maxsize", "4KiB")
    dataset = MDS1Shards(Path("mds"))
    assert len(dataset.lengths) > 2
    assert dataset.read(0, 0) == {**SAMPLES[0], "__key__": b"a/0"}


@pytest.mark.parametrize(
    ("limit", "most", "files"), [("--maxcount", 4, 3), ("--maxsize", 1, 10), ("--maxsize", 3000, 5)]
)
def test_records_are_divided_among_files(run, shards, limit, most, files):
    told = run("convert", shards, "r-%02d.msgpack", limit, most).stdout
    assert told.endswith(f" to {files} shards: r-00.msgpack to r-{files - 1:02}.msgpack (msgpack)\n")
    written = sorted(Path().glob("r-*"))
    assert [path.name for path in written] == [f"r-{number:02}.msgpack" for number in range(files)]
    assert most != 3000 or all(path.stat().st_size <= most for path in written)
    run("convert", f"r-{{00..{files - 1:02}}}.msgpack", "back.tar")
    assert read("back.tar") == SAMPLES


def test_records_hold_fields_whose_names_begin_with_underscores(run):
    sample = {"__key__": "a", "__note": b"of mine", "txt": b"x"}
    with mpwds.TarWriter("x.tar", keep_meta=True) as sink:
        sink.write(sample)
    run("convert", "x.tar", "x.cbor")
    run("convert", "x.cbor", "back.tar")
    assert read("back.tar") == [sample]


@pytest.mark.parametrize("between", ["y.msgpack", "y.cbor", "y"])
def test_compressed_fields_keep_their_bytes(run, between):
    sample = {"__key__": "a", "json.gz": b"not compressed", "txt.gz": gzip.compress(b"text")}
    with mpwds.TarWriter("x.tar", encoder=False) as sink:
        sink.write(sample)
    run("convert", "x.tar", between)
    run("convert", between, "back.tar")
    assert read("back.tar") == [sample]


@pytest.mark.parametrize("name", ["y.tar", "y.msgpack", "y.cbor", "y-%d.tar", "y-%d.msgpack"])
def test_a_file_that_an_error_interrupts_is_not_there(refused, shards, name):
    damaged = Path("x-2.tar")
    damaged.write_bytes(damaged.read_bytes()[:1000])
    limits = ["--maxcount", 3] if "%" in name else []
    assert "x-2.tar" in refused("convert", shards, name, *limits)
    whole = [name % 0, name % 1] if limits else []
    assert sorted(path.name for path in Path().iterdir() if path.name[0] != "x") == whole


@pytest.mark.parametrize("options", [["y.msgpack"], ["y.cbor"], ["y"], ["y", "--to", "mds1"]])
def test_a_sample_whose_key_a_format_cannot_hold_is_named(run, refused, options):
    with tarfile.open("z.tar", "w", errors="surrogateescape") as archive:
        archive.addfile(tarfile.TarInfo("caf\udce9.bin"))
    assert "the key of sample 'caf\\udce9' is not UTF-8" in refused("convert", "z.tar", *options)
    assert run("convert", "z.tar", "y.tar").returncode == 0


@pytest.mark.parametrize("options", [["y.msgpack"], ["y.cbor"], ["y"], ["y", "--to", "mds1"]])
def test_a_field_whose_name_a_format_cannot_hold_is_named(run, refused, options):
    with tarfile.open("z.tar", "w", errors="surrogateescape") as archive:
        archive.addfile(tarfile.TarInfo("a.b\udce9"))
    told = refused("convert", "z.tar", *options)
    assert "the field 'b\\udce9' is not UTF-8" in told
    assert run("convert", "z.tar", "y.tar").returncode == 0


def test_a_record_that_cannot_be_encoded_is_named(refused):
    Path("r.msgpack").write_bytes(b"\x81\xa3bin\xc4\x011\x81\xa3bin\x05")
    assert "the record at offset 8 of r.msgpack: field 'bin'" in refused("convert", "r.msgpack", "y.tar")


def test_a_description_names_the_shards(run, shards):
    run("index", "create", shards, "-o", "all.json")
    run("convert", "all.json", "one.tar")
    assert read("one.tar") == SAMPLES


def test_json_tells_what_was_done(run, shards):
    told = json.loads(run("convert", shards, "mds", "--json").stdout)
    assert told["fields"].pop("seg.png") == {"to": "seg.png", "as": "png"}
    assert told["fields"].keys() == {"cls", "jpg", "json", "npy", "txt", "wav"}
    written = MDSShards("mds", decode=False)
    stored = [written.read(0, number) for number in range(10)]
    nbytes = sum(len(value) for sample in stored for name, value in sample.items() if name != "__key__")
    del told["fields"]
    assert told == {"samples": 10, "bytes": nbytes, "shards": 1, "format": "mds"}


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_what_goes_to_standard_output_is_the_shard_alone(capfdbinary, shards, options):
    assert main(["convert", str(shards), "-", "--to", "tar", *options]) == 0
    written, told = capfdbinary.readouterr()
    with tarfile.open(fileobj=io.BytesIO(written)) as archive:
        assert archive.getnames()[:2] == ["a/0.cls", "a/0.jpg"]
    assert b"wrote 10 samples" in told
    assert (b'"samples": 10' in told) == bool(options)


def test_an_index_has_the_hashes_that_are_asked_for(run, shards):
    run("convert", shards, "mds", "--hashes", "sha1,md5")
    (shard,) = json.loads(Path("mds/index.json").read_text())["shards"]
    assert set(shard["raw_data"]["hashes"]) == {"sha1", "md5"}


def test_a_shard_holds_ten_thousand_samples_unless_it_is_said(run, write_shard):
    samples = ({"__key__": f"{number:05d}", "cls": b"1"} for number in range(10_001))
    run("convert", write_shard("x.tar", *samples), "y-%d.msgpack")
    assert len(list(Path().glob("y-*"))) == 2


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"cls": b"1"}, "sample '1' has no 'txt', only cls"),
        ({"cls": b"1", "txt": b"", "wav": b""}, "sample '1' has a field 'wav'"),
        ({"cls": b"one", "txt": b""}, "'cls' of sample '1' cannot be converted"),
        ({"cls": b"1", "txt": b"\xff"}, "'txt' of sample '1' cannot be converted"),
    ],
)
def test_a_sample_that_does_not_fit_is_an_error_and_leaves_no_index(refused, write_shard, second, message):
    first = {"__key__": "0", "cls": b"0", "txt": b""}
    path = write_shard("x.tar", first, {"__key__": "1", **second})
    assert message in refused("convert", path, "mds")
    assert not Path("mds/index.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--columns", "png:png"), "NAME one of cls, txt"),
        (("--columns", "cls"), "expected NAME:TARGET"),
        (("--columns", "cls:"), "expected NAME:TARGET"),
        (("--columns", "cls:cls"), "no encoding 'cls'"),
        (("--columns", "txt=cls:int,txt:str"), "would have one name"),
        (("--to", "zip"), "--to zip"),
        (("--maxsize", "0"), "is no size"),
        (("--maxcount", "3"), "not for MDS"),
    ],
)
def test_a_wrong_argument_is_an_error(run, write_shard, arguments, message):
    path = write_shard("x.tar", {"__key__": "0", "cls": b"0", "txt": b""})
    result = run("convert", path, "mds", *arguments)
    assert result.returncode in (1, 2)
    assert message in result.stderr


@pytest.mark.parametrize("options", [("x-%d.tar",), ("mds", "--to", "mds", "--columns", "cls:int")])
def test_what_is_read_is_not_replaced_either(run, shards, tmp_path, options):
    run("convert", shards, "mds")
    source = Path("mds") if options[0] == "mds" else shards
    result = run("convert", source, tmp_path / options[0], *options[1:], "--force")
    assert "cannot be written as well" in result.stderr
    assert read("x-0.tar") == SAMPLES[:4]
    assert len(mpwds.IndexedDataset("mds")) == 10


def test_a_folder_gets_shards_of_the_format_asked_for_and_of_any_file(run, shards, refused, write_shard):
    Path("x-0.tar").rename(Path("of.any.name"))
    words = "convert", Path("of.any.name"), Path("out")
    assert "does not tell its format: give --from" in refused(*words)
    assert run(*words, "--from", "tar", "--to", "msgpack").returncode == 0
    assert [path.name for path in Path("out").iterdir()] == ["shard-000000.msgpack"]
    run("convert", "out/shard-000000.msgpack", "back.tar")
    assert read("back.tar") == SAMPLES[:4]
    assert "there is no sample in it" in refused("convert", write_shard("empty.tar"), "mds")


def test_a_folder_without_an_index_holds_tar_shards(run, write_shard):
    folder = Path("shards")
    folder.mkdir()
    assert f"no shards in {folder}" in run("convert", folder, "-").stderr
    write_shard("shards/x.tar", *SAMPLES)
    assert run("convert", folder, "x-%d.tar", "--maxsize", "12kB").returncode == 0
    shards = sorted(Path().glob("x-*.tar"))
    assert [sample for shard in shards for sample in read(shard)] == SAMPLES
    assert [shard.stat().st_size for shard in shards] == [10240] * len(shards)
    assert len(shards) > 1


@pytest.mark.parametrize("command", ["convert", "create"])
def test_a_column_can_hold_the_keys(run, command):
    with mpwds.MDSWriter(columns={"name": "str", "number": "int"}, out="mds") as sink:
        for number in range(3):
            sink.write({"name": f"n{number}", "number": number})
    words = [command, Path("mds"), Path("x.tar"), "--columns"]
    run(*words, "number:cls,name:__key__")
    assert read("x.tar") == [{"__key__": f"n{n}", "cls": b"%d" % n} for n in range(3)]
    run(*words, "name:txt,number:__key__", "--force")
    assert read("x.tar") == [{"__key__": f"{n}", "txt": b"n%d" % n} for n in range(3)]
    assert "would" in run(*words, "name:txt,number:txt", "--force").stderr


@pytest.fixture
def with_keys():
    """An MDS dataset whose column ``id`` names the samples."""
    with mpwds.MDSWriter(columns={"id": "str", "a": "str", "b": "str"}, out="mds") as sink:
        sink.write({"id": "n0", "a": "x", "b": "y"})
    return Path("mds")


@pytest.mark.parametrize(
    ("columns", "fields"),
    [
        ((), {"a.txt": b"x", "b.txt": b"y"}),
        (("--columns", "a:txt"), {"txt": b"x"}),
        (("--columns", "a:txt,id:name.txt"), {"txt": b"x", "name.txt": b"n0"}),
    ],
)
def test_the_key_is_a_column_that_becomes_a_field_only_if_the_user_says_so(run, with_keys, columns, fields):
    run("create", with_keys, "x.tar", "--key", "id", *columns)
    assert read("x.tar") == [{"__key__": "n0", **fields}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "--key nothing: there is no such column, only a, b, id"),
        (["id", "--columns", "a:txt,b:txt"], "two columns would be one field"),
        (["id", "--columns", "a:__key__"], "two columns would be one field"),
    ],
)
def test_a_key_is_one_of_the_columns_and_no_field_has_two(refused, with_keys, words, message):
    assert message in refused("create", with_keys, "x.tar", "--key", *words)
    assert not Path("x.tar").exists()


@pytest.mark.parametrize("options", [["--compression", "zstd"], ["--to", "mds1", "--compression", "gz"]])
def test_reading_compressed_shards_leaves_nothing_behind(command, run, shards, options):
    assert run("convert", shards, "mds", *options).returncode == 0
    before = sorted(Path("mds").iterdir())
    Path("scratch").mkdir()
    words = [*command, "convert", Path("mds"), Path("x.tar")]
    subprocess.run(words, env={**os.environ, "TMPDIR": "scratch"}, check=True)
    assert sorted(Path("mds").iterdir()) == before
    assert list(Path("scratch").iterdir()) == []


def test_pickles_are_copied_and_never_read(run, write_shard):
    harmful = b"cos\nsystem\n(S'touch /tmp/mpwds-harm'\ntR."
    path = write_shard("x.tar", {"__key__": "0", "pkl": harmful})
    assert run("convert", path, "mds", "--columns", "pkl:pkl").returncode == 0
    assert run("convert", "mds", "back.tar").returncode == 0
    assert read("back.tar") == [{"__key__": "0", "pkl": harmful}]


def test_mosaicml_streaming_reads_what_is_converted(run, shards):
    options = ["--compression", "zstd:3", "--hashes", "sha1", "--maxsize", "4KiB"]
    assert run("convert", shards, "mds", *options).returncode == 0
    words = [sys.executable, PEER, "read", Path("mds")]
    (found,) = pickle.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
    assert [each["__key__"] for each in found] == [each["__key__"] for each in SAMPLES]
    assert (found[7]["cls"], found[7]["txt"], found[7]["json"]) == (7, "text 7 é", {"number": 7})
    assert found[7]["wav"] == SAMPLES[7]["wav"]
    pixels = PIL.Image.open(io.BytesIO(SAMPLES[7]["jpg"]))
    assert np.array_equal(np.asarray(found[7]["jpg"]), np.asarray(pixels))


def test_an_mds_dataset_may_be_named_by_its_index_and_gets_no_shards_that_are_made_of_it(run, shards):
    assert run("convert", shards, "mds").returncode == 0
    before = sorted(Path("mds").iterdir())
    assert "choose another folder" in run("convert", "mds", "mds").stderr
    assert sorted(Path("mds").iterdir()) == before
    for options in ((), ("--from", "mds", "--force")):
        assert run("convert", "mds/index.json", "y.tar", *options).returncode == 0
        assert len(read("y.tar")) == len(SAMPLES)


@pytest.mark.parametrize("name", ["x.tar", "x.msgpack", "x.cbor"])
def test_fields_that_some_samples_lack_are_for_all_formats_but_mds(run, write_shard, name):
    samples = [{"cls": b"0"}, {"cls": b"1", "wav": b"RIFF"}, {"txt": b"a"}]
    samples = [{"__key__": str(number), **each} for number, each in enumerate(samples)]
    path = write_shard("in.tar", *samples)
    assert run("convert", path, name).returncode == 0
    assert run("convert", name, "back.tar").returncode == 0
    assert read("back.tar") == samples


def test_what_a_killed_run_to_mds_left_is_named_and_replaced_by_force(run, refused, shards):
    run("convert", shards, "mds")
    Path("mds/index.json").unlink()
    Path("mds/.shard.00001.mds.0123abcd.partial").write_bytes(b"MDS")
    for command in ("info", "ls", "verify"):
        assert "no index" in run(command, "mds").stderr
    assert "--force" in refused("convert", shards, "mds")
    assert run("convert", shards, "mds", "--force").returncode == 0
    assert sorted(path.name for path in Path("mds").iterdir()) == ["index.json", "shard.00000.mds"]
    assert run("verify", "mds").returncode == 0


def test_shards_are_filled_up_to_their_size(run, write_shard):
    source = write_shard("x.tar", *({"cls": 1} for _ in range(27)))  # 1,024 bytes each, and 1,024 for the end
    assert run("convert", source, "y-%d.tar", "--maxsize", 10_240).returncode == 0
    assert [path.stat().st_size for path in sorted(Path().glob("y-*.tar"))] == [10_240] * 3
