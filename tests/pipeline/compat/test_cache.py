import pytest

import mpwds
from mpwds.cache import FileCache, StreamingOpen
from mpwds.pipeline.handlers import ignore_and_continue, ignore_and_stop


@pytest.fixture
def letters(tmp_path):
    paths = []
    for letter in "abc":
        path = tmp_path / letter
        path.write_bytes(letter.encode() * 3)
        paths.append(str(path))
    return paths


def contents(opened):
    for shard in opened:
        with shard["stream"] as stream:
            yield shard["url"], shard.get("local_path"), stream.read()


def test_files_are_opened_where_they_are(letters):
    for stage in (StreamingOpen(), FileCache("/")):
        found = list(contents(stage([letters[0], {"url": letters[1]}])))
        assert found == [(letters[0], letters[0], b"aaa"), (letters[1], letters[1], b"bbb")]


def test_streams_have_no_local_path():
    assert list(contents(StreamingOpen()(["pipe:echo hello"]))) == [("pipe:echo hello", None, b"hello\n")]


def test_a_file_cache_keeps_what_it_opens_and_waits_for_the_whole_file(tmp_path):
    stage = FileCache(tmp_path, validator=None, url_to_name=lambda url: "hello")
    [opened] = stage(["pipe:sleep 0.2; echo hello"])
    assert opened["local_path"] == str(tmp_path / "hello")
    assert (tmp_path / "hello").read_bytes() == b"hello\n"
    with opened["stream"] as stream:
        assert stream.read() == b"hello\n"


@pytest.mark.parametrize(("handler", "found"), [(ignore_and_continue, "ab"), (ignore_and_stop, "a")])
def test_the_handler_decides_about_a_shard_that_cannot_be_opened(letters, tmp_path, handler, found):
    shards = [letters[0], str(tmp_path / "gone"), letters[1]]
    opened = contents(StreamingOpen(handler=handler)(shards))
    assert "".join(data[:1].decode() for _, _, data in opened) == found


def test_small_parts_make_a_dataset(tmp_path):
    path = str(tmp_path / "x.tar")
    with mpwds.TarWriter(path) as sink:
        for number in range(3):
            sink.write({"__key__": str(number), "cls": number})
    parts = (StreamingOpen(), mpwds.tar_file_expander, mpwds.group_by_keys)
    dataset = mpwds.DataPipeline(mpwds.SimpleShardList(path), *parts, mpwds.decode(), mpwds.to_tuple("cls"))
    assert list(dataset) == [(0,), (1,), (2,)]
