"""``mpwds create`` from lists: .csv, .jsonl, Parquet, and the folders of Hugging Face datasets."""

import datetime
import decimal
import gzip
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

import mpwds
from tests.cli.convert.conftest import read

PNG = b"\x89PNG\r\n\x1a\n"
JPEG = b"\xff\xd8\xff"


def create(run, source, *arguments):
    """Runs the command, and returns the samples of its one shard."""
    result = run("create", source, "out.tar", "--force", *arguments)
    assert result.returncode == 0, result.stderr
    return read("out.tar")


def test_columns_of_a_csv_become_files_labels_texts_and_the_rest(run, write_files):
    table = b'path,label,caption,width,score\na/1.jpg,dog,"one, two",640,0.5\nb.png,cat,,007,1\n'
    folder = write_files({"list.csv": table, "a/1.jpg": JPEG, "b.png": PNG})
    assert create(run, folder / "list.csv") == [
        {
            "__key__": "000000000",
            "jpg": JPEG,
            "cls": b"1",
            "txt": b"one, two",
            "json": b'{"width": "640", "score": 0.5}',
        },
        {"__key__": "000000001", "png": PNG, "cls": b"0", "json": b'{"width": "007", "score": 1.0}'},
    ]
    assert json.loads(Path("out.classes.json").read_text()) == ["cat", "dog"]


@pytest.mark.parametrize("arguments", [(), ("--columns", "a.b:a.b.gz,c:c.gz")])
def test_compressed_files_are_not_compressed_again(run, write_files, arguments):
    texts = {name: gzip.compress(name.encode()) for name in ("1.txt.gz", "2.txt.gz")}
    folder = write_files({"list.csv": b"a.b,c\n1.txt.gz,2.txt.gz\n", **texts})
    (sample,) = create(run, folder / "list.csv", *arguments)
    assert [value for name, value in sample.items() if name != "__key__"] == list(texts.values())


def test_a_column_may_become_a_compressed_field(run, write_files):
    folder = write_files({"list.jsonl": b'{"a": "text"}\n'})
    (sample,) = create(run, folder / "list.jsonl", "--columns", "a:txt.gz")
    assert gzip.decompress(sample["txt.gz"]) == b"text"


def test_columns_may_be_chosen_and_one_may_hold_the_keys(run, write_files):
    rows = [{"id": f"n{number}", "x": [1, number], "note": "a"} for number in range(2)]
    folder = write_files({"list.jsonl": "\n".join(map(json.dumps, rows)).encode()})
    found = create(run, folder / "list.jsonl", "--columns", "x:x.json,note:txt", "--key", "id")
    assert found == [
        {"__key__": "n0", "txt": b"a", "x.json": b"[1, 0]"},
        {"__key__": "n1", "txt": b"a", "x.json": b"[1, 1]"},
    ]
    chosen = ("--columns", "id:txt", "--key", "id")  # the same column may also be a field
    assert create(run, folder / "list.jsonl", *chosen) == [
        {"__key__": "n0", "txt": b"n0"},
        {"__key__": "n1", "txt": b"n1"},
    ]


def test_a_column_may_become_the_keys(run, refused, write_files):
    folder = write_files({"list.csv": b"number,word\n17,a\n18,b\n"})
    found = create(run, folder / "list.csv", "--columns", "number:__key__,word:txt")
    assert found == [{"__key__": "17", "txt": b"a"}, {"__key__": "18", "txt": b"b"}]
    errors = refused("create", folder / "list.csv", "x.tar", "--columns", "number:__key__", "--key", "word")
    assert "one column holds the keys, but several are given: number, word" in errors


def test_the_column_of_keys_is_no_text_as_well_unless_the_user_says_so(run, write_files):
    folder = write_files({"list.csv": b"caption,label,width\na,1,2\n"})
    (sample,) = create(run, folder / "list.csv", "--key", "caption")
    assert sample == {"__key__": "a", "cls": b"1", "json": b'{"width": 2}'}


@pytest.mark.parametrize(
    ("values", "fields"), [(b"dog,x", {"cls", "json"}), (b"1,2", {"label.cls", "class.cls"})]
)
def test_one_column_of_words_is_the_label_and_all_of_numbers_are(run, write_files, values, fields):
    folder = write_files({"list.csv": b"label,class\n" + values + b"\n"})
    (sample,) = create(run, folder / "list.csv")
    assert sample.keys() == {"__key__", *fields}


@pytest.mark.parametrize("name", ["list.csv", "list.tsv", "list.jsonl"])
def test_a_text_may_be_long(run, write_files, name):
    text = "a text " * 30_000
    line = json.dumps({"txt": text}) if name.endswith("jsonl") else f"txt\n{text}"
    assert create(run, write_files({name: f"{line}\n".encode()}) / name)[0]["txt"].decode() == text


def test_the_table_of_what_was_guessed_is_shown(run, write_files):
    folder = write_files({"list.csv": b"path,label,caption,age\na.jpg,1,a,2\n", "a.jpg": JPEG})
    shown = run("create", folder / "list.csv", "x.tar").stdout
    for guessed in ("path * (by its content)", "label cls", "caption txt", "age json"):
        assert [line for line in shown.splitlines() if " ".join(line.split()).startswith(guessed)]


@pytest.mark.parametrize(
    ("brand", "extension"),
    [(b"avif", "avif"), (b"heic", "heic"), (b"M4A ", "m4a"), (b"qt  ", "mov"), (b"isom", "mp4")],
)
def test_media_in_the_container_of_mp4_keep_their_kind(run, write_files, brand, extension):
    content = b"\0\0\0\x1cftyp" + brand
    folder = write_files({"list.csv": b"path\nx.bin\n", "x.bin": content})
    assert create(run, folder / "list.csv") == [{"__key__": "000000000", extension: content}]


def test_a_row_without_a_key_is_named(refused, write_files):
    folder = write_files({"list.jsonl": b'{"key": "a", "text": "x"}\n{"text": "y"}\n'})
    for target in ("x.tar", "x-%d.tar"):
        errors = refused("create", folder / "list.jsonl", target)
        assert "error: row 1 has no value in 'key'" in errors


@pytest.mark.parametrize("text", ["dog", "1"])
def test_labels_in_words_are_numbered_when_columns_are_chosen_too(run, write_files, text):
    rows = [{"image": "1.jpg", "label": label} for label in (text, "0")]
    folder = write_files({"list.jsonl": "\n".join(map(json.dumps, rows)).encode(), "1.jpg": JPEG})
    found = create(run, folder / "list.jsonl", "--columns", "image:jpg,label:cls,*:json")
    assert [sample["cls"] for sample in found] == [b"1", b"0"]
    names = Path("out.classes.json")
    assert (json.loads(names.read_text()) if names.exists() else None) == (
        ["0", "dog"] if text == "dog" else None
    )


def test_names_of_files_start_where_the_user_says(run, write_files):
    folder = write_files({"lists/list.csv": b"file\n1.txt\n", "data/1.txt": b"one"})
    assert create(run, folder / "lists" / "list.csv", "--root", folder / "data")[0]["txt"] == b"one"


def test_a_list_comes_from_standard_input(command):
    subprocess.run(
        [*command, "create", "-", Path("x.tar"), "--from", "jsonl"],
        input=b'{"text": "one"}\n\n{"text": "two"}\n',
        check=True,
    )
    assert [sample["txt"] for sample in read("x.tar")] == [b"one", b"two"]


LIST = {"list.csv": b"path,n\n1.txt,3\n", "1.txt": b""}


def parquet(*rows, **options):
    """A file with these rows, or with a column that has none."""
    table = pyarrow.Table.from_pylist(rows) if rows else pyarrow.table({"a": pyarrow.array([], "int64")})
    pyarrow.parquet.write_table(table, stream := io.BytesIO(), **options)
    return stream.getvalue()


NAMED = parquet({"image": {"bytes": None, "path": "/etc/hostname"}})
INSIDE = parquet({"n": 1, "x": {"data": b"bytes"}})
PAGES = bytearray(parquet(*({"a": "a" * number} for number in range(50)), compression="none"))
PAGES[4:60] = b"\xff" * 56


@pytest.mark.parametrize(
    ("files", "arguments", "message"),
    [
        ({"x.csv": b"a,b\n1\n"}, (), "line 2 of"),
        ({"x.csv": b"a,b\n1,2\n,\n"}, (), "source/x.csv has no value: remove it"),
        ({"x.jsonl": b'{"a": 1}\n\n{}\n'}, (), "source/x.jsonl has no value: remove it"),
        ({"x.csv": b"a,a\n1,2\n"}, (), "names a column twice"),
        ({"x.csv": b'a\n"1\n'}, (), "line 2 of"),
        ({"x.csv": b"a\n"}, (), "there is no row"),
        ({"x.csv": b"a\n\xff\n"}, (), "not UTF-8"),
        ({"x.jsonl": b'{"a": 1}\n{\n'}, (), "line 2 of"),
        ({"x.jsonl": b"[1]\n"}, (), "a JSON list"),
        ({"x.parquet": b"PAR1 and no more"}, (), "x.parquet"),
        ({"x.parquet": bytes(PAGES)}, (), "x.parquet"),
        ({"x.parquet": parquet()}, (), "there is no row in"),
        ({"x.parquet": NAMED}, (), "does not hold it"),
        ({"x.parquet": INSIDE}, (), "error: column 'x' of row 0: bytes cannot be a part of a JSON field"),
        ({"x.arrow": b"no table"}, (), "x.arrow"),
        ({"x.csv": b"path\n1.txt\n2.txt\n", "1.txt": b""}, (), "2.txt"),
        ({"x.csv": b"key,cls\na,1\nb,2\na,3\n"}, (), "the key 'a' occurs twice"),
        ({"x.csv": b"key,cls\na,1\na,2\n"}, (), "the key 'a' occurs twice"),
        (LIST, ("--columns", "nothing:cls"), "where COLUMN is one of path, n or *"),
        (LIST, ("--columns", "path"), "expected COLUMN:FIELD"),
        (LIST, ("--columns", "path:txt,n:txt"), "another column become the field 'txt'"),
        (LIST, ("--columns", "path:txt,n:npz"), "column 'n' of row 0: field 'npz' cannot be encoded"),
        (LIST, ("--key", "nothing"), "no such column"),
    ],
)
def test_a_damaged_list_or_a_wrong_choice_of_columns_is_an_error_that_names_the_place(
    run, write_files, files, arguments, message
):
    result = run("create", write_files(files) / next(iter(files)), "out.tar", *arguments)
    assert result.returncode == 1 or arguments
    assert message in result.stderr
    assert not Path("out.tar").exists()


def test_without_pyarrow_the_error_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    Path("x.parquet").write_bytes(b"")
    assert "pip install 'mpwds[parquet]'" in run("create", "x.parquet", "-").stderr


TABLE = [
    {
        "image": f"pictures/{number}.jpg",
        "label": ("dog", "cat")[number % 2],
        "caption": f"a {number}",
        "n": number,
    }
    for number in range(7)
]


def write_table(kind, folder):
    """Writes the table, and the pictures that it names; returns its path."""
    path = folder / f"list.{kind}"
    (folder / "pictures").mkdir()
    for number in range(len(TABLE)):
        (folder / "pictures" / f"{number}.jpg").write_bytes(JPEG + bytes(20_000 + number))
    table = pyarrow.Table.from_pylist(TABLE)
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, TABLE)))
    elif kind == "parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=3)
    else:
        with pyarrow.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    return path


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize(
    "arguments", [(), ("--columns", "image:jpg,label:cls,caption:txt"), ("--shuffle", "--seed", 3)]
)
def test_a_table_becomes_what_the_same_list_in_lines_becomes(run, kind, arguments):
    made = []
    for each in (kind, "jsonl"):
        folder = Path(each)
        folder.mkdir()
        source, output = write_table(each, folder), folder / "out"
        assert run("create", source, output, "--maxsize", "70kB", "-j", 1, *arguments).returncode == 0
        classes = json.loads((output / "shard.classes.json").read_text())
        made.append((read(*sorted(output.glob("*.tar"))), classes))
        assert max(path.stat().st_size for path in output.glob("*.tar")) <= 71_680
    assert made[0] == made[1]
    assert made[0][0][0]["jpg"].startswith(JPEG)
    assert made[0][1] == ["cat", "dog"]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("text", ["string", "large_string", "string_view"])
@pytest.mark.parametrize("binary", ["binary", "large_binary", "binary_view", pyarrow.binary(len(PNG))])
def test_texts_and_bytes_may_have_any_of_arrows_types(run, kind, text, binary):
    tags = pyarrow.list_(pyarrow.type_for_alias(text))
    columns = {"caption": (["a", "b"], text), "image": ([PNG, PNG], binary), "tags": ([["x"], ["y"]], tags)}
    table = pyarrow.table({name: pyarrow.array(*column) for name, column in columns.items()})
    if kind == "parquet":
        pyarrow.parquet.write_table(table, "x.parquet")
    else:
        with pyarrow.ipc.new_stream("x.arrow", table.schema) as writer:
            writer.write_table(table)
    for arguments in ((), ("--shuffle", "--force")):
        found = create(run, f"x.{kind}", *arguments)
        assert {(each["txt"], each["png"], each["json"]) for each in found} == {
            (b"a", PNG, b'{"tags": ["x"]}'),
            (b"b", PNG, b'{"tags": ["y"]}'),
        }


@pytest.mark.parametrize("arguments", [(), ("--columns", "label:cls,caption:txt")])
def test_categories_of_a_table_are_texts(run, arguments):
    table = pyarrow.table({"label": ["dog", "cat", "dog"], "caption": ["a", "b", "b"]})
    categories = {name: table[name].dictionary_encode() for name in table.column_names}
    for name, each in (("texts", table), ("categories", pyarrow.table(categories))):
        pyarrow.parquet.write_table(each, f"{name}.parquet")
    found = create(run, "categories.parquet", *arguments)
    assert found == create(run, "texts.parquet", *arguments)
    assert [sample["cls"] for sample in found] == [b"1", b"0", b"1"]


def test_names_of_files_in_a_table_start_where_the_user_says(run, tmp_path):
    path = write_table("parquet", tmp_path).rename(Path("pictures/list.parquet"))
    refused = run("create", path, "x.tar", "--columns", "image:jpg")
    assert "--root" in refused.stderr
    assert len(create(run, path, "--columns", "image:jpg", "--root", tmp_path)[0]["jpg"]) == 20_003


# Files as Hugging Face's datasets write them.

FEATURES = {
    "image": {"_type": "Image"},
    "label": {"_type": "ClassLabel", "names": ["cat", "dog"]},
    "seen": {"_type": "Value", "dtype": "date32"},
}
SCHEMA = pyarrow.schema(
    [
        ("image", pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])),
        ("label", pyarrow.int64()),
        ("seen", pyarrow.date32()),
    ],
    {"huggingface": json.dumps({"info": {"features": FEATURES}})},
)


def rows(count, first=0):
    numbers = range(first, first + count)
    images = [{"bytes": (PNG if n % 2 else JPEG) + bytes([n]), "path": f"{n}.jpeg"} for n in numbers]
    seen = [datetime.date(2026, 1, 1 + n) for n in numbers]
    return pyarrow.table({"image": images, "label": [n % 2 for n in numbers], "seen": seen}, SCHEMA)


def expected(number):
    return {
        "__key__": f"{number:09d}",
        **({"png": PNG + bytes([number])} if number % 2 else {"jpeg": JPEG + bytes([number])}),
        "cls": b"%d" % (number % 2),
        "json": json.dumps({"seen": f"2026-01-{number + 1:02}"}).encode(),
    }


@pytest.fixture
def saved():
    """A folder as ``save_to_disk`` leaves it, of two files."""
    folder = Path("saved")
    folder.mkdir()
    for number in range(2):
        with pyarrow.ipc.new_stream(folder / f"data-{number}.arrow", SCHEMA) as writer:
            writer.write_table(rows(10, 10 * number), max_chunksize=4)
    files = [{"filename": f"data-{number}.arrow"} for number in range(2)]
    (folder / "state.json").write_text(json.dumps({"_data_files": files}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    return folder


def test_a_dataset_saved_to_disk_is_read_with_its_classes_and_images(run, saved):
    assert create(run, saved) == [expected(number) for number in range(20)]
    assert json.loads(Path("out.classes.json").read_text()) == ["cat", "dog"]


def test_splits_of_a_dataset_saved_to_disk_become_splits(run, saved):
    Path("both").mkdir()
    for split in ("test", "train"):
        shutil.copytree(saved, Path("both") / split)
    Path("both/dataset_dict.json").write_text('{"splits": ["test", "train"]}')
    assert run("create", "both", "x-%d.tar", "-j", 1, "--maxcount", 50).returncode == 0
    for split in ("test", "train"):
        assert read(f"{split}-x-0.tar") == [expected(number) for number in range(20)]


def test_splits_of_parquet_files_become_splits(run, tmp_path):
    Path("data").mkdir()
    for name, count in (
        ("train-00000-of-00002", 10),
        ("train-00001-of-00002", 10),
        ("test-00000-of-00001", 3),
    ):
        table = rows(count, 10 * int(name[10]) if "train" in name else 0)
        pyarrow.parquet.write_table(table, Path(f"data/{name}.parquet"), row_group_size=4)
    assert run("create", tmp_path, "x-%d.tar", "-j", 1, "--maxcount", 50).returncode == 0
    assert read("train-x-0.tar") == [expected(number) for number in range(20)]
    assert len(read("test-x-0.tar")) == 3


def test_a_split_is_named_after_the_dataset(run, tmp_path):
    for name in ("digits-train", "digits-test-00000-of-00001"):
        pyarrow.parquet.write_table(rows(3), f"{name}.parquet")
    assert run("create", tmp_path, "x-%d.tar", "-j", 1).returncode == 0
    assert {path.name for path in Path().glob("*-0.tar")} == {"train-x-0.tar", "test-x-0.tar"}


@pytest.mark.parametrize("other", ["cat/1.jpg", "0000.parquet"])
def test_what_is_beside_the_tables_of_splits_is_not_left_out_silently(refused, other):
    (Path("all") / other).parent.mkdir(parents=True)
    (Path("all") / other).write_bytes(JPEG)
    pyarrow.parquet.write_table(rows(3), Path("all/metadata.parquet"))
    told = refused("create", "all", "x-%d.tar")
    assert f"{other.partition('/')[0]}, which is none of a split" in told


def test_a_list_is_not_replaced_by_what_describes_its_shards(refused):
    Path("x.json").write_text('{"txt": "a"}\n')
    words = ["create", Path("x.json"), Path("x-%d.tar"), "--from", "jsonl", "--index", "--force"]
    assert "x.json is read, so it cannot be written" in refused(*words, status=2)
    assert Path("x.json").read_text() == '{"txt": "a"}\n'


def test_a_label_in_words_has_one_number_in_all_splits(run, tmp_path):
    for split, labels in (("train", ["cat", "dog"]), ("test", ["ant", "dog"])):
        pyarrow.parquet.write_table(pyarrow.table({"label": labels}), Path(f"{split}.parquet"))
    assert run("create", tmp_path, "x-%d.tar", "-j", 1).returncode == 0
    assert [sample["cls"] for sample in read("train-x-0.tar")] == [b"1", b"2"]
    assert [sample["cls"] for sample in read("test-x-0.tar")] == [b"0", b"2"]
    for split in ("train", "test"):
        assert json.loads(Path(f"{split}-x.classes.json").read_text()) == ["ant", "cat", "dog"]


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_rows_are_shuffled_among_all_shards(run, name):
    if name == "x.parquet":
        pyarrow.parquet.write_table(rows(20), Path(name), row_group_size=4)
    else:
        with pyarrow.ipc.new_file(Path(name), SCHEMA) as writer:
            writer.write_table(rows(20), max_chunksize=4)
    run("create", name, "out", "--shuffle", "--maxcount", 10, "-j", 1)
    first, second = (read(f"out/shard-00000{number}.tar") for number in range(2))
    assert sorted((*first, *second), key=lambda sample: sample["__key__"]) == [expected(n) for n in range(20)]
    assert max(sample["__key__"] for sample in first) > "000000009"


def test_a_dataset_that_names_files_elsewhere_is_refused(run, saved):
    (saved / "state.json").write_text(json.dumps({"_data_files": [{"filename": "../x.arrow"}]}))
    assert "is not in that folder" in run("create", saved, "x.tar").stderr


def test_lists_and_shards_may_be_at_urls(run, write_files):
    folder = write_files({"list.jsonl": b'{"text": "one"}\n{"text": "two"}\n'})
    source, target = f"pipe:cat {folder}/list.jsonl", "pipe:cat > x-%d.tar"
    assert run("create", source, target, "--from", "jsonl", "--maxcount", 1, "-j", 1).returncode == 0
    assert read("x-1.tar") == [{"__key__": "000000001", "txt": b"two"}]
    assert run("create", source, target, "--from", "jsonl", "--train", 0.5).returncode == 2


def test_parquet_files_elsewhere_are_copied_first(run):
    pyarrow.parquet.write_table(rows(4), Path("x.parquet"))
    assert create(run, "pipe:cat x.parquet") == [expected(number) for number in range(4)]


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet", "x.tar", "mds"])
def test_headers_of_long_names_count_towards_the_limit(run, name):
    listed = [{"key": f"{number:097}", "text": "x"} for number in range(200)]
    columns = ("--columns", "text:long.txt", "--key", "key")
    if name == "x.jsonl":
        Path(name).write_text("\n".join(map(json.dumps, listed)))
    elif name == "x.parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(listed), Path(name))
    else:
        with mpwds.TarWriter(Path("x.tar")) as sink:
            for row in listed:
                sink.write({"__key__": row["key"], "long.txt": row["text"]})
        columns = ()
        if name == "mds":
            run("convert", "x.tar", "mds")
    command, options = ("convert", ()) if name == "x.tar" else ("create", ("-j", 1))
    limits = "--maxsize", 51_200
    made = run(command, name, "y-%d.tar", *columns, *limits, *options)
    assert made.returncode == 0, made.stderr
    sizes = [path.stat().st_size for path in Path().glob("y-*.tar")]
    assert len(sizes) > 1
    assert max(sizes) <= 51_200


def test_a_list_that_names_commands_runs_none(refused, write_files):
    rows = [{"image": "a.jpg"}, {"image": "pipe:touch ran; cat a.jpg"}]
    folder = write_files({"a.jpg": b"a", "list.jsonl": "\n".join(map(json.dumps, rows)).encode()})
    assert "runs a command" in refused("create", folder / "list.jsonl", "x.tar")
    assert not Path("ran").exists()
    assert not Path("x.tar").exists()


def test_a_list_that_a_command_writes_adds_nothing_to_the_command(run, write_files, web):
    web.files["/a.jpg"] = JPEG
    rows = [{"image": web.url("/a.jpg")}, {"image": "a.jpg; touch ran"}]
    folder = write_files({"a.jpg": JPEG, "list.jsonl": "\n".join(map(json.dumps, rows)).encode()})
    made = run("create", f"pipe:cat {folder}/list.jsonl", "x.tar", "--from", "jsonl")
    assert made.returncode == 1
    assert not Path("ran").exists()


def test_values_of_all_kinds_become_json(run):
    row = {
        "day": datetime.date(2020, 1, 2),
        "at": datetime.time(3, 4),
        "when": datetime.datetime(2020, 1, 2, 3, 4),
        "n": decimal.Decimal("1.50"),
        "yes": True,
    }
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), Path("x.parquet"))
    (sample,) = create(run, "x.parquet")
    assert json.loads(sample["json"]) == {
        "day": "2020-01-02",
        "at": "03:04:00",
        "when": "2020-01-02T03:04:00",
        "n": "1.50",
        "yes": True,
    }


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv"])
@pytest.mark.parametrize("number", [b"3", b"0.5", b"1.50"])
def test_numbers_may_be_texts_which_a_table_keeps_as_they_are(run, write_files, name, number):
    folder = write_files({"x.jsonl": b'{"n": %s}' % number, "x.csv": b"n\n%s\n" % number})
    (sample,) = create(run, folder / name, "--columns", "n:txt")
    assert sample["txt"] == (b"1.5" if name == "x.jsonl" and number == b"1.50" else number)


@pytest.mark.parametrize("label", [1, True])
def test_a_label_is_a_number_and_no_truth(run, write_files, label):
    folder = write_files({"x.jsonl": json.dumps({"label": label}).encode()})
    (sample,) = create(run, folder / "x.jsonl")
    assert ("cls" in sample) == (label is not True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl", b'\xef\xbb\xbf{"text": "a"}\n\n  \n{"text": "b"}\n'),
        ("x.ndjson", b'{"text": "a"}\n\n{"text": "b"}\n'),
        ("x.csv", b"\xef\xbb\xbftext\na\n\nb\n"),
    ],
)
def test_empty_lines_and_a_mark_at_the_beginning_are_no_data(run, write_files, name, content):
    folder = write_files({name: content})
    assert [sample["txt"] for sample in create(run, folder / name)] == [b"a", b"b"]


def test_two_columns_of_labels_have_names_of_classes_each(run, write_files):
    folder = write_files({"x.csv": b"one,two,three\ndog,red,7\ncat,red,8\n"})
    create(run, folder / "x.csv", "--columns", "one:cls,two:best.cls,three:n.cls")
    assert json.loads(Path("out.cls.classes.json").read_text()) == ["cat", "dog"]
    assert json.loads(Path("out.best.cls.classes.json").read_text()) == ["red"]
    assert len(list(Path().glob("*classes.json"))) == 2


@pytest.mark.parametrize("name", ["x.tar", "x.tgz", "x.bin"])
def test_who_gives_shards_is_told_what_reads_them(refused, name):
    Path(name).write_bytes(b"")
    errors = refused("create", name, "out.tar")
    assert "is neither a folder nor a list" in errors
    assert ("mpwds convert and mpwds split read shards" in errors) == (name != "x.bin")


def test_files_with_different_columns_are_refused(refused, tmp_path):
    for name in "ab":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{name: 1}]), Path(f"train-{name}.parquet"))
    assert "has other columns (b) than" in refused("create", tmp_path, "out.tar")
