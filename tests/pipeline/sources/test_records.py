import os
import pickle

import cbor2
import cloudpickle
import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpwds.errors import ShardError
from mpwds.pipeline.context import Context
from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.handlers import ignore_and_continue, ignore_and_stop
from mpwds.pipeline.sources.samples import cbors2_to_samples, cbors_to_samples, msgpacks_to_samples
from mpwds.pipeline.sources.shards import ShardList
from tests.open_files import open_files

STAGES = {"cbor": (cbors_to_samples, cbor2.dumps), "msgpack": (msgpacks_to_samples, msgpack.packb)}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Three files of each format, of 12 samples in all; the middle one is empty."""
    folder = tmp_path_factory.mktemp("records")
    for name, (_, dump) in STAGES.items():
        for number, keys in enumerate([range(5), [], range(5, 12)]):
            samples = [{"__key__": str(key), "cls": key, "data": bytes(key)} for key in keys]
            (folder / f"{number}.{name}").write_bytes(b"".join(map(dump, samples)))
    return {name: str(folder / f"{{0..2}}.{name}") for name in STAGES}


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(sorted(STAGES)), shuffled=st.booleans(), stop=st.integers(0, 13))
def test_continues_from_its_state_exactly(files, continues, name, shuffled, stop):
    stage = STAGES[name][0]()
    source = ShardList(files[name], shuffled)
    continues(lambda: stage.stream(source.stream(Context(epoch=1)), Context(epoch=1)), stop)


@pytest.mark.parametrize("name", STAGES)
def test_every_record_of_every_file_is_read_in_order(files, name):
    dataset = DataPipeline(ShardList(files[name]), STAGES[name][0]())
    assert [sample["cls"] for sample in dataset] == list(range(12))
    assert dataset.shuffle(5).batched(4, collation_fn=None).stream().state_dict()


@pytest.mark.parametrize("name", STAGES)
def test_damage_ends_the_file_and_is_handled(files, tmp_path, name):
    make, dump = STAGES[name]
    paths = [str(tmp_path / f"{number}") for number in range(2)]
    for path in paths:
        with open(path, "wb") as file:
            file.write(dump([1]) + dump("abc")[:2])
    with pytest.raises(ShardError, match="the record at offset 2 of .*0 is truncated") as caught:
        list(DataPipeline(ShardList(paths), make()))
    assert caught.value.incident.offset == 2
    assert list(DataPipeline(ShardList(paths), make(handler=ignore_and_continue))) == [[1], [1]]
    assert list(DataPipeline(ShardList(paths), make(handler=ignore_and_stop))) == [[1]]


def test_prints_and_travels(files):
    stage = msgpacks_to_samples(ignore_and_continue, 1000)
    assert str(stage) == "msgpacks_to_samples(handler=ignore_and_continue, max_record_bytes=1000)"
    assert pickle.loads(cloudpickle.dumps(stage)) == stage
    assert cbors2_to_samples() == cbors_to_samples()


def test_a_dropped_stream_closes_its_file(files):
    stream = DataPipeline(ShardList(files["msgpack"]), msgpacks_to_samples()).stream()
    next(stream)
    assert open_files(os.path.dirname(files["msgpack"]))
    del stream
    assert not open_files(os.path.dirname(files["msgpack"]))
