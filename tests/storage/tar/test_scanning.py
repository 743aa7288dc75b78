import gzip
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mpwds.errors import ShardError
from mpwds.storage.tar.scanning import Damage, ScannedMember, scan
from tests.storage.members import FORMATS, Raw, archive_of

MEMBERS = [("a.cls", b"1"), ("a.jpg", b"x" * 700), ("d/b.cls", b""), ("d/b.jpg", bytes(range(256)) * 3)]
LONG = [("long/" * 40 + "a.jpg", b"long"), ("ü.txt", b"umlaut")]


def scanned(data, wants=lambda name: True):
    return list(scan("x.tar", wants, open=lambda url, offset: io.BytesIO(data)))


def entries(found):
    return [each for each in found if isinstance(each, ScannedMember)]


def damages(found):
    return [each for each in found if isinstance(each, Damage)]


def test_a_file_and_a_stream_give_the_same(tmp_path):
    data = archive_of(MEMBERS + LONG)[:-9000]
    (tmp_path / "x.tar").write_bytes(data)
    of_file = [each[:4] for each in entries(scan(str(tmp_path / "x.tar"), lambda name: True))]
    assert of_file == [each[:4] for each in entries(scanned(data))]


def test_reads_the_data_asked_for_alone():
    found = entries(scanned(archive_of(MEMBERS), lambda name: name.endswith(".cls")))
    assert [entry.data for entry in found] == [b"1", None, b"", None]
    assert [entry.size for entry in found] == [1, 700, 0, 768]


def test_blocks_joined_are_the_archive_again():
    data = archive_of(MEMBERS + LONG)
    joined = b"".join(entry.blocks for entry in scanned(data))
    assert data.startswith(joined)
    assert not any(data[len(joined) :])


@pytest.mark.parametrize("form", FORMATS)
@given(
    victim=st.integers(0, 3),
    # Between these is the checksum itself, where a space means the same as a zero.
    place=st.integers(0, 147) | st.integers(156, 511),
    flip=st.integers(1, 255),
)
def test_damage_to_one_header_costs_its_member_alone(form, victim, place, flip):
    data = bytearray(archive_of(MEMBERS, form))
    data[scanned(bytes(data))[victim].offset + place] ^= flip
    found = scanned(bytes(data))
    names = [name for name, _ in MEMBERS]
    assert [entry.name for entry in entries(found)] == names[:victim] + names[victim + 1 :]
    assert len(damages(found)) == 1


def test_damage_names_the_place_and_where_reading_continues():
    data = bytearray(archive_of(MEMBERS))
    data[1024] ^= 1
    _, damage, following, *_ = scanned(bytes(data))
    assert (damage.offset, damage.end) == (1024, following.offset)
    assert "tar header at offset 1024 of x.tar has checksum" in damage.reason


@given(length=st.integers(1, 6 * 1024))
@example(length=3 * 512)  # a header, and none of its data
def test_a_truncated_archive_shows_all_members_that_are_whole(length):
    data = archive_of(MEMBERS)
    whole = scanned(data)
    found = scanned(data[:length])
    assert damages(scanned(data[:length], lambda name: False)) == damages(found)
    assert entries(found) == [entry for entry in whole if entry.offset + len(entry.blocks) <= length]
    assert len(damages(found)) == (length < 10240 and not ends_in_zeros(data[:length], whole))


def ends_in_zeros(data, whole):
    end = whole[-1].offset + len(whole[-1].blocks)
    return len(data) >= end + 512


@given(data=st.binary(max_size=3000))
def test_any_bytes_end_in_entries_and_damage(data):
    try:
        found = scanned(data)
    except ShardError:  # of an empty archive
        return
    offsets = [each.offset for each in found]
    assert offsets == sorted(offsets)


@given(data=st.data())
def test_mutated_archives_are_scanned_to_their_end(data):
    mutated = bytearray(archive_of(MEMBERS + LONG))
    for _ in range(data.draw(st.integers(1, 5))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    for each in scanned(bytes(mutated)):
        assert each.offset <= len(mutated)


def test_damage_to_compressed_bytes_ends_the_archive():
    files = [(f"{number}.bin", bytes(100_000)) for number in range(9)]
    data = bytearray(gzip.compress(archive_of(files), 0))
    data[-8] ^= 1  # the checksum
    *before, damage = scanned(bytes(data))
    assert [entry.name for entry in before] == [name for name, _ in files][: len(before)]
    assert len(before) > 5
    assert "cannot be decompressed" in damage.reason


def test_bytes_behind_the_end_are_damage_there():
    data = archive_of(MEMBERS)
    for size in (700, 1023, 1024):
        (damage,) = damages(scanned(data + (b"garbage" * 147)[:size]))
        assert (damage.offset, damage.end) == (len(data), len(data) + size)
        assert "follow the end of the archive" in damage.reason


def test_members_after_damage_are_found_however_few_bytes_a_stream_gives():
    data = bytearray(archive_of(MEMBERS))
    data[0:2048:512] = b"****"
    found = list(scan("x.tar", lambda name: True, open=lambda url, offset: Raw(data, [512])))
    assert found == scanned(bytes(data))
    assert [entry.name for entry in entries(found)] == ["d/b.cls", "d/b.jpg"]


def test_an_archive_without_an_end_mark_is_suspicious():
    data = b"".join(entry.blocks for entry in scanned(archive_of(MEMBERS)))
    (damage,) = damages(scanned(data))
    assert damage.offset == len(data)
    assert "without the end-of-archive blocks" in damage.reason


def test_directories_and_links_are_no_files():
    found = scanned(archive_of([("d", "directory"), ("l", "symlink")]))
    assert [entry.is_file for entry in found] == [False, False]
