"""A source fails and is asked again: a state names what failed, so a run that loads it loses nothing."""

import itertools

import pytest

import mpwds
from mpwds import DataPipeline, IndexedDataset, WebDataset
from mpwds.errors import ShardError


class Failing:
    """Map-style: reading element 11 fails while ``away``."""

    away = True

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == 11 and self.away:
            raise OSError("the file server is away")
        return index


@pytest.fixture
def failing():
    return Failing()


def taken(stream, most=None):
    return [element for _, element in itertools.islice(stream, most)]


MAKES = {
    "map-style": DataPipeline,
    "indexed": IndexedDataset,
    "threads": lambda source: DataPipeline(source).map(int, threads=8),
    "batches": lambda source: DataPipeline(source).map(int, threads=3).listed(2).unlisted(),
    "shuffled": lambda source: DataPipeline(source).shuffle(5, initial=5),
}


@pytest.mark.parametrize("name", MAKES)
def test_the_state_after_an_error_begins_with_what_failed(failing, name):
    dataset = MAKES[name](failing)
    stream, got = dataset.stream(), []
    with pytest.raises(OSError, match="away"):
        while True:
            got += taken(stream, 1) or pytest.fail("it has ended")
    state = stream.state_dict()
    failing.away = False
    again = dataset.stream()
    again.load_state_dict(state)
    assert sorted(got + taken(again)) == list(range(40))


@pytest.mark.parametrize("count", range(11))
def test_so_does_the_state_before_it_though_the_source_has_failed_already(failing, count):
    dataset = MAKES["threads"](failing)
    stream = dataset.stream()
    got = taken(stream, count)
    state = stream.state_dict()
    failing.away = False
    again = dataset.stream()
    again.load_state_dict(state)
    assert got + taken(again) == list(range(40))


def test_who_goes_on_after_it_leaves_it_out(failing):
    stream = DataPipeline(failing).stream()
    got = taken(stream, 11)
    with pytest.raises(OSError, match="away"):
        next(stream)
    got += taken(stream, 1)
    again = DataPipeline(failing).stream()
    again.load_state_dict(stream.state_dict())
    assert got + taken(again) == [*range(11), *range(12, 40)]


@pytest.mark.parametrize("threads", [1, 4])
def test_a_shard_that_cannot_be_read_for_a_while_is_read_from_where_it_failed(tmp_path, threads):
    for shard in range(3):
        with mpwds.TarWriter(str(tmp_path / f"{shard}.tar"), mtime=0) as sink:
            for number in range(4):
                sink.write({"__key__": f"{shard}{number}", "cls": number})
    path = tmp_path / "1.tar"
    whole = path.read_bytes()
    dataset = WebDataset(str(tmp_path / "{0..2}.tar")).decode(threads=threads)
    stream, got = dataset.stream(), []
    path.write_bytes(whole[:2500])  # it ends in the third sample
    with pytest.raises(ShardError, match="truncated"):
        while True:
            got += taken(stream, 1) or pytest.fail("it has ended")
    state = stream.state_dict()
    path.write_bytes(whole)
    again = dataset.stream()
    again.load_state_dict(state)
    keys = [sample["__key__"] for sample in got + taken(again)]
    assert keys == [f"{shard}{number}" for shard in range(3) for number in range(4)]
