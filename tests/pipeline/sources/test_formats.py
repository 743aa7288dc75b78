import os
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from mpwds.pipeline.sources.formats import FORMATS, Format, find_format, format_named
from mpwds.storage.writing.sinks import WriteOptions

OWN = """
from mpwds.pipeline.sources.formats import Format, StoredSamples

class Lines(Format):
    name = "lines"
    endings = ("lines",)

    def shards(self, source, cache=None):
        return File(source)

    def samples(self, source, copies_bytes=None):
        read = lambda: ({"__key__": str(n), "txt": line} for n, line in enumerate(lines(source)))
        return StoredSamples([source], read)

class File:
    def __init__(self, path):
        self.urls, self.lengths = [path], [len(lines(path))]

    def read(self, shard, index):
        return lines(self.urls[shard])[index]

    def close(self):
        pass

def lines(path):
    return open(path, "rb").read().splitlines()

FORMAT = Lines()
"""


def test_an_installed_package_brings_a_format_of_its_own(tmp_path):
    (tmp_path / "lines.py").write_text(OWN)
    installed = tmp_path / "lines-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: lines\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[mpwds.formats]\nlines = lines:FORMAT\n")
    (tmp_path / "x.lines").write_text("one\ntwo\n")
    program = (
        "import mpwds; from mpwds.cli.main import main; print(mpwds.IndexedDataset('x.lines')[1]); "
        "main(['convert', 'x.lines', 'x.tar']); print([s['txt'] for s in mpwds.WebDataset('x.tar')])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[0] == "b'two'", done.stderr
    assert done.stdout.splitlines()[-1] == "[b'one', b'two']", done.stderr


NAMES = {
    "tar": [
        *("x-{000..009}.tar.gz", "x.tgz", "-", "pipe:cat x", "s3://bucket/x.json?version=1"),
        *("https://host/x.tar?signature=a/b", "https://host/x?shard=1.tar"),
    ],
    "mds": ["s3://bucket/x", "s3://bucket/x/"],
    "mds1": ["https://host/x/index.mds.gz"],
    "msgpack": ["x.msg", "https://host/x.msg?signature=a/b"],
    "cbor": ["X.CBOR"],
    None: ["x.parquet", "x"],
}


@pytest.mark.parametrize(("source", "name"), [(source, name) for name in NAMES for source in NAMES[name]])
def test_a_name_tells_the_format(source, name):
    found = find_format(source)
    assert (found and found[0].name) == name


class Nothing(Format):
    name = "nothing"


def test_records_may_name_their_fields_by_bytes(tmp_path):
    (tmp_path / "x.mp").write_bytes(msgpack.packb({b"__key__": b"a", b"cls": 1}))
    assert list(FORMATS["msgpack"].samples(f"{tmp_path}/x.mp").read()) == [{"__key__": "a", "cls": b"1"}]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: format_named("zip"), "'zip': expected one of mds, mds1, msgpack, cbor, tar"),
        (lambda: FORMATS["cbor"].shards("x.cbor"), r"x\.cbor \(cbor\) cannot be read by number"),
        (lambda: Nothing().samples("x"), r"samples of x \(nothing\) cannot be read in order"),
        (lambda: Nothing().writer("x", {}, WriteOptions()), "x: nothing cannot be written"),
        (
            lambda: FORMATS["mds1"].writer("x", {}, WriteOptions(hashes=("md5",))),
            "for MDS of version 2 alone",
        ),
        (lambda: FORMATS["mds1"].writer("x", {}, WriteOptions(force=True)), "remove the folder first"),
        (lambda: [*FORMATS["msgpack"].samples("list.mp").read()], "record at offset 6 of list.mp is a list"),
    ],
)
def test_what_a_format_cannot_do_is_an_error_that_says_so(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("list.mp").write_bytes(msgpack.packb({"cls": 1}) + msgpack.packb([1]))
    with pytest.raises(ValueError, match=message):
        call()
