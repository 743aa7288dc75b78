"""All ways to read headers find the same members as `tarfile` does, in archives of all formats."""

import io
import tarfile

from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.storage.tar.headers import find_all_members
from mpwds.storage.tar.scanning import scan
from tests.storage.members import Raw, read_members

MAGIC = {"v7": b"", "ustar": b"ustar\x0000", "gnu": b"ustar  \0"}


def header(kind, name, size, magic="ustar", base_256=False):
    number = b"\x80" + size.to_bytes(11, "big") if base_256 else b"%011o\0" % size
    is_long = magic == "ustar" and len(name.encode()) > 100
    directory, _, last = name.rpartition("/") if is_long else ("", "", name)
    fields = [
        (last.encode()[:100], 100),
        (b"0000644\0" * 3, 24),
        (number, 12),
        (b"%011o\0" % 0, 12),
        (b" " * 8, 8),
        (kind, 1),
        (b"", 100),
        (MAGIC[magic], 88),
        (directory.encode()[:155], 167),
    ]
    block = b"".join(value.ljust(width, b"\0") for value, width in fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def with_body(kind, body, **options):
    return header(kind, "././@LongLink", len(body), **options) + body + bytes(-len(body) % 512)


def pax(**records):
    body = b""
    for keyword, value in records.items():
        record = b" %s=%s\n" % (keyword.encode(), str(value).encode())
        length = len(record) + next(n for n in (1, 2, 3, 4) if len(str(len(record) + n)) == n)
        body += b"%d" % length + record
    return body


parts = st.sampled_from(["a", "é", "b.c", "x" * 90, "y" * 100])  # the last fills a header's field
names = st.lists(parts, min_size=1, max_size=3).map("/".join)
sizes = st.sampled_from([0, 1, 511, 512, 513, 1500, 5000])


@st.composite
def members(draw):
    """A member with its extensions, which are in any order, and state its name and its size once each."""
    name, size, base_256 = draw(names), draw(sizes), draw(st.booleans())
    magic = draw(st.sampled_from(list(MAGIC)))
    kind = draw(st.sampled_from([b"0", b"0", b"7", b"\0", b"5", b"2"]))
    size = size if kind in b"07\0" else 0
    directory, _, last = name.encode().rpartition(b"/")
    is_divided = magic == "ustar" and 0 < len(directory) <= 155 and len(last) <= 100
    by_pax, by_gnu = draw(st.booleans()), draw(st.booleans())
    by_gnu |= len(name.encode()) > 100 and not is_divided and not by_pax
    records = {"path": name} if by_pax and not by_gnu else {}
    stated = kind in b"07\0" and draw(st.booleans())
    extensions = [with_body(b"L", name.encode() + b"\0", base_256=base_256)] if by_gnu else []
    if stated:
        records["size"] = size
    for chosen in ({"mtime": 1.5}, {"comment": "c" * draw(sizes)}):
        if draw(st.booleans()):
            records |= chosen
    parts = draw(st.sampled_from([1, 2]))
    items = list(records.items())
    for part in range(parts):
        if items[part::parts]:
            extensions.append(with_body(b"x", pax(**dict(items[part::parts]))))
    if draw(st.booleans()):
        extensions.append(with_body(b"K", b"t" * 120 + b"\0"))
    extensions = draw(st.permutations(extensions))
    own = "short" if by_gnu or "path" in records else name
    block = header(kind, own, draw(sizes) if stated else size, magic, base_256)
    between = draw(st.sampled_from([b"", b"", with_body(b"g", pax(comment="all")), bytes(1024)]))
    return between + b"".join(extensions) + block + b"d" * size + bytes(-size % 512)


class Archive:
    url = "x.tar"

    def __init__(self, data, least):
        self.end, self.window_bytes = len(data), (least, 8 * least)
        self._data = memoryview(data)

    def read(self, size, offset):
        return self._data[offset : offset + size]


def by_tarfile(data):
    with tarfile.open(fileobj=io.BytesIO(data), ignore_zeros=True) as archive:
        for info in archive:
            if info.isreg():
                yield info.name, info.offset, archive.extractfile(info).read()


def by_windows(data, least):
    for _, _, found in find_all_members(Archive(data, least)):
        for name, first, start, size in found:
            yield name, first, data[start : start + size]


def by_scanning(data):
    for entry in scan("x.tar", lambda name: True, open=lambda url, offset: io.BytesIO(data)):
        if entry.is_file:
            at = 0  # a global header is a part of the entry
            while entry.header[at + 156] == ord("g"):
                at += 1024
            yield entry.name, entry.offset + at, entry.data


@settings(max_examples=200)
@given(
    parts=st.lists(members(), max_size=6),
    zeros=st.sampled_from([1024, 1124]),
    least=st.sampled_from([512, 1024, 4096]),
)
def test_all_readers_agree_with_tarfile(tmp_path_factory, parts, zeros, least):
    data = b"".join(parts) + bytes(zeros)
    path = tmp_path_factory.mktemp("archive") / "x.tar"
    path.write_bytes(data)
    expected = list(by_tarfile(data))
    assert [
        tuple(member) for member in read_members("x", open=lambda url, offset: io.BytesIO(data))
    ] == expected
    assert [(each.name, each.offset, each.data) for each in read_members(str(path))] == expected
    assert list(by_windows(data, least)) == expected
    assert list(by_scanning(data)) == expected
    for index, (_, offset, _) in enumerate(expected):
        of_stream = read_members("x", offset, open=lambda url, offset: Raw(data, [500], offset))
        for found in (read_members(str(path), offset), of_stream):
            assert [tuple(member) for member in found] == expected[index:]
