import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset import tariterators as peer

from mpwds import tariterators
from mpwds.errors import ShardError
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.handlers import ignore_and_continue, ignore_and_stop, reraise_exception
from mpwds.pipeline.sources.samples import tarfile_samples
from mpwds.pipeline.sources.shards import SimpleShardList
from mpwds.tariterators import group_by_keys, tar_file_expander, tar_file_iterator, url_opener

# webdataset leaves it to the garbage collector to close its files.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def urls(shards):
    return [{"url": url} for url in SimpleShardList(shards).urls]


def test_step_by_step_the_samples_are_those_of_the_stage_and_of_webdataset(shards, urls):
    stepwise = list(group_by_keys(tar_file_expander(url_opener(urls))))
    assert stepwise == list(tarfile_samples(urls)) == list(peer.tarfile_samples(map(dict, urls)))
    dataset = DataPipeline(SimpleShardList(shards), url_opener, tar_file_expander, group_by_keys)
    assert list(dataset) == stepwise


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2"])
def test_members_of_any_open_file_are_those_of_webdataset_and_the_file_stays_open(add_member, mode):
    names = ["a.png", "dir/b.txt", "__meta__", "__meta__/x.json", "README"]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name in names:
            add_member(archive, name, name.encode())
    buffer.seek(0)
    ours = list(tar_file_iterator(buffer))
    assert not buffer.closed
    assert ours == list(peer.tar_file_iterator(io.BytesIO(buffer.getvalue())))
    everything = tar_file_iterator(io.BytesIO(buffer.getvalue()), skip_meta=None)
    assert [member["fname"] for member in everything] == names


def test_names_are_renamed_and_then_selected(urls):
    def rename(name):
        return name.replace(".cls", ".label")

    def select(name):
        return not name.endswith(".txt")

    kept = {"select_files": select, "rename_files": rename}
    ours = list(group_by_keys(tar_file_expander(url_opener(urls), **kept)))
    assert ours == list(peer.group_by_keys(peer.tar_file_expander(peer.url_opener(map(dict, urls)), **kept)))
    assert list(ours[0]) == ["__key__", "__url__", "label"]


def test_a_function_of_names_that_fails_is_handled(urls):
    def select(name):
        if name.startswith("0003"):
            raise ValueError("no")
        return True

    def keys(handler):
        opened = url_opener(urls[:1])
        return {sample["__key__"] for sample in group_by_keys(tar_file_expander(opened, handler, select))}

    with pytest.raises(ValueError, match="no") as caught:
        keys(reraise_exception)
    assert "in tar_file_iterator(), on member 0003.txt of" in caught.value.__notes__[0]
    assert keys(ignore_and_continue) == {"0000", "0001", "0002", "0004"}
    assert keys(ignore_and_stop) == {"0000", "0001", "0002"}


def test_a_shard_that_cannot_be_opened_is_handled(urls):
    missing = [{"url": "/gone.tar"}, *urls[:1]]
    with pytest.raises(FileNotFoundError) as caught:
        list(url_opener(missing))
    assert caught.value.incident.url == "/gone.tar"
    assert len(list(group_by_keys(tar_file_expander(url_opener(missing, ignore_and_continue))))) == 5
    assert list(url_opener(missing, ignore_and_stop)) == []


def test_a_damaged_shard_is_handled_and_all_are_closed(urls, tmp_path, open_shards):
    damaged = tmp_path / "damaged.tar"
    damaged.write_bytes(Path(urls[0]["url"]).read_bytes()[:3000])
    several = [{"url": str(damaged)}, urls[0]]
    with pytest.raises(ShardError, match="truncated"):
        list(tar_file_expander(url_opener(several)))
    assert len(list(group_by_keys(tar_file_expander(url_opener(several), ignore_and_continue)))) == 6
    assert open_shards() == []


def test_samples_of_two_shards_are_not_mixed_up():
    members = [
        {"fname": "a.png", "data": b"1", "__url__": "x"},
        {},
        {"fname": "a.cls", "data": b"2", "__url__": "y"},
    ]
    assert [sample["__url__"] for sample in group_by_keys(members)] == ["x", "y"]


def test_a_member_twice_is_webdatasets_error_or_left_out():
    members = [{"fname": name, "data": b"", "__url__": "x"} for name in ("a.png", "a.PNG", "b.png")]
    with pytest.raises(ValueError, match="duplicate file name in tar file"):
        list(group_by_keys(members))
    assert len(list(group_by_keys(members, handler=ignore_and_continue))) == 2
    assert len(list(group_by_keys(members, lcase=False))) == 2
    assert len(list(group_by_keys(members, handler=ignore_and_stop))) == 1


def test_only_the_suffixes_asked_for_are_kept():
    members = [{"fname": name, "data": b"", "__url__": "x"} for name in ("a.png", "a.cls")]
    assert list(group_by_keys(members, suffixes={"cls"})) == [{"__key__": "a", "__url__": "x", "cls": b""}]


def test_a_function_of_names_makes_keys_given_first_or_by_its_name():
    members = [{"fname": "a.1.cls", "data": b"1", "__url__": "x"}]

    def at_the_last_dot(name):
        return tuple(name.rsplit(".", 1))

    for grouped in (group_by_keys(at_the_last_dot), group_by_keys(keys=at_the_last_dot)):
        assert list(grouped(members)) == [{"__key__": "a.1", "__url__": "x", "cls": b"1"}]


def test_the_local_path_of_a_shard_is_passed_on(urls):
    opened = ({**shard, "local_path": "/cache/x"} for shard in url_opener(urls[:1]))
    sample = next(group_by_keys(tar_file_expander(opened)))
    assert sample["__local_path__"] == "/cache/x"


@settings(max_examples=200, deadline=None)
@given(st.text("a./_A-", max_size=12))
def test_names_are_taken_apart_as_webdataset_does(name):
    assert tariterators.base_plus_ext(name) == peer.base_plus_ext(name)


@pytest.mark.parametrize("sample", [None, {}, {"a": 1}, {"__bad__": True}, [1], {"__bad__": False}])
def test_a_sample_is_valid_where_webdataset_says_so(sample):
    assert tariterators.valid_sample(sample) == peer.valid_sample(sample)
