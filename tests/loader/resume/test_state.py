"""A loader's state: what is left of an epoch is delivered as if nothing had come in between."""

import copy
import logging
import os
import pickle
import re
import warnings
from dataclasses import dataclass
from functools import partial

import cloudpickle
import msgpack
import numpy as np
import pytest

import mpwds
from mpwds import DataPipeline, MultiLoader, RandomMix, WebDataset
from mpwds.errors import MpwdsError
from mpwds.loader.resume.description import described
from mpwds.loader.resume.position import VERSION
from mpwds.pipeline.context import ALONE
from mpwds.pipeline.filter import Filter
from mpwds.storage.streams.patterns import Names
from tests.loader.jobs import as_json, as_lists, continued
from tests.warned import files_of

pytestmark = pytest.mark.usefixtures("quick_workers")

ROUND_TRIPS = {
    "as it is": copy.deepcopy,
    "json": as_json,
    "msgpack": lambda state: msgpack.unpackb(msgpack.packb(state)),
    "pickle": lambda state: pickle.loads(pickle.dumps(state)),
}


def noisy(number):
    return number + np.random.random()


DATASETS = {
    "shuffles": lambda shards: (
        WebDataset(shards, shardshuffle=True, seed=5).shuffle(8).decode().to_tuple("cls")
    ),
    "batched": lambda shards: DataPipeline(range(60)).shuffle(20).map(noisy).batched(4),
    "select": lambda shards: DataPipeline(range(90)).shuffle(9).select(lambda number: number % 3).batched(5),
    "flatmap": lambda shards: DataPipeline(range(30)).flatmap(lambda number: [number, noisy(number)]),
    "mixing": lambda shards: RandomMix(
        [DataPipeline(range(30)).shuffle(4), range(100, 140)], probs=[2, 1], longest=True, seed=1
    ),
    "resampled": lambda shards: (
        WebDataset(shards, resampled=True).shuffle(5).decode().to_tuple("cls").with_epoch(25)
    ),
    "repeated": lambda shards: DataPipeline(range(14)).shuffle(5).batched(3).repeat(3),
    "foreign": lambda shards: own_numbers,
    "generator": lambda shards: DataPipeline(range(40)).compose(lambda source: map(noisy, source)).batched(3),
}


def own_numbers():
    worker, workers = int(os.environ.get("WORKER", 0)), int(os.environ.get("NUM_WORKERS", 1))
    return (noisy(number) for number in range(worker, 50, workers))


@pytest.fixture(params=[0, 2])
def make(request, states_everywhere):
    loaders = []

    def make(dataset, **options):
        options = {"output": "numpy", "start_method": "fork", "workers": request.param, **options}
        loaders.append(MultiLoader(dataset, **options))
        return loaders[-1]

    make.workers = request.param
    yield make
    for loader in loaders:
        loader.close()


def plain(loader):
    """All that is left, as Python objects that can be compared."""
    return [repr(element) for element in loader]


def taken(loader, count):
    elements = iter(loader)
    return [repr(next(elements)) for _ in range(count)]


def first_and_rest(loader, count, round_trip=copy.deepcopy):
    """The first elements of an epoch; then, from their state, the rest of it and the epoch behind."""
    loader.set_epoch(0)
    first = taken(loader, count)
    state = round_trip(loader.state_dict())
    plain(loader)  # another epoch in between
    loader.load_state_dict(state)
    assert round_trip(loader.state_dict()) == state
    return first, plain(loader), plain(loader)


@pytest.mark.filterwarnings("ignore:.*is continued by running it again", "ignore:.*had nothing left")
@pytest.mark.parametrize("dataset", DATASETS)
def test_what_is_left_is_delivered_in_the_same_order_and_so_is_the_next_epoch(make, shards, dataset):
    loader = make(DATASETS[dataset](shards))
    whole, following = plain(loader), plain(loader)
    half, end = len(whole) // 2, len(whole)
    for count in (1, half, end) if make.workers else (0, 1, half, end - 1, end):
        first, rest, behind = first_and_rest(loader, count)
        assert first + rest == whole
        assert behind == following


@pytest.mark.filterwarnings("ignore:.*is continued by running it again", "ignore:.*had nothing left")
@pytest.mark.parametrize("dataset", ["shuffles", "select", "mixing", "foreign"])
def test_out_of_order_each_element_is_delivered_once(make, shards, dataset):
    loader = make(DATASETS[dataset](shards), in_order=False)
    whole = sorted(plain(loader))
    for count in (1, len(whole) // 2, len(whole)):
        first, rest, _ = first_and_rest(loader, count)
        assert sorted(first + rest) == whole


@pytest.mark.parametrize("round_trip", ROUND_TRIPS)
def test_a_state_survives(make, shards, round_trip):
    loader = make(DATASETS["shuffles"](shards))
    whole = plain(loader)
    first, rest, _ = first_and_rest(loader, 17, ROUND_TRIPS[round_trip])
    assert first + rest == whole


def test_behind_an_epoch_it_is_the_start_of_the_next(make):
    loader = make(range(8))
    start = loader.state_dict()
    plain(loader)
    end = loader.state_dict()
    assert (start["epoch"], end["epoch"]) == (0, 1)
    assert {worker["delivered"] for worker in end["streams"]} == {0}


def test_behind_the_last_element_nothing_is_left_of_the_epoch(make):
    loader = make(range(8))
    loader.load_state_dict(first_and_state(loader, 8))
    with pytest.warns(UserWarning, match="had nothing left, so this iteration is empty") as caught:
        assert plain(loader) == []
    assert files_of(caught) == [__file__]
    assert len(plain(loader)) == 8


def first_and_state(loader, count):
    taken(loader, count)
    return loader.state_dict()


def test_one_process_delivers_what_a_worker_would_have(states_everywhere):
    dataset = DATASETS["batched"](None)
    local = MultiLoader(dataset, workers=0, output="numpy")
    whole = plain(local)
    state = first_and_state(MultiLoader(dataset, workers=0, output="numpy"), 5)
    with MultiLoader(dataset, workers=1, output="numpy", start_method="fork", in_order=False) as loader:
        loader.load_state_dict(state)
        assert plain(loader) == whole[5:]


@pytest.mark.parametrize("same", [True, False])
def test_set_epoch_keeps_the_state_if_it_names_the_epoch_that_is_continued(make, same):
    loader = make(DataPipeline(range(20)).shuffle(20))
    epochs = [plain(loader) for _ in range(4)]
    loader.set_epoch(2)
    state = first_and_state(loader, 5)
    loader.load_state_dict(state)
    if same:
        loader.set_epoch(2)
        assert plain(loader) == epochs[2][5:]
    else:
        loader.set_epoch(3)
        assert loader.state_dict()["epoch"] == 3
        with pytest.warns(UserWarning, match="epoch 3 begins, which drops the rest of epoch 2"):
            assert plain(loader) == epochs[3]
        loader.load_state_dict(make(loader.dataset).state_dict())
        loader.set_epoch(3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing of epoch 0 was delivered
            assert plain(loader) == epochs[3]


@pytest.mark.parametrize("elements", [3, 0])
def test_set_epoch_after_the_loop_was_left_names_the_next_epoch(make, elements):
    loader = make(range(8))
    for epoch, pipeline in ((5, loader), (8, loader.map(abs))):
        taken(pipeline, elements)
        pipeline.set_epoch(epoch)
        assert pipeline.state_dict()["epoch"] == epoch


def test_a_dataset_without_state_is_run_again_and_one_warning_says_so(make):
    loader = make(DataPipeline(range(40)).compose(lambda source: source))
    state = first_and_state(loader, 6)
    loader.load_state_dict(state)
    with pytest.warns(
        UserWarning, match=r"compose\(<lambda>\) gives elements without addresses: .* the 6 b"
    ) as caught:
        elements = iter(loader)
    assert len(files_of(caught)) == 1
    assert len(list(elements)) == 34


def test_a_stage_whose_state_cannot_be_had_costs_a_run_from_the_start(make):
    loader = make(DataPipeline(range(30)).compose(Doubled()))
    whole = plain(loader)
    loader.set_epoch(0)
    state = first_and_state(loader, 9)
    loader.load_state_dict(state)
    with pytest.warns(
        UserWarning, match="NotImplementedError: no state here: the epoch is continued by running"
    ):
        assert plain(loader) == whole[9:]
    pipeline = make(range(30)).compose(Doubled())
    pipeline.load_state_dict(first_and_state(pipeline, 9))
    with pytest.warns(UserWarning, match=r"the first 9 elements .* \(NotImplementedError: no state here\)"):
        assert plain(pipeline) == whole[9:]


class Doubled:
    """A user's stage, whose stream has no state."""

    def stream(self, source, context):
        class Stream:
            def __iter__(self):
                return self

            def __next__(self):
                address, element = next(source)
                return address, 2 * element

            def state_dict(self):
                raise NotImplementedError("no state here")

        return Stream()


def test_a_dataset_that_ends_before_is_an_error(make, tmp_path):
    class Shrinking:
        def __iter__(self):
            return iter(range(3 if self.shrunk() else 10))

        def shrunk(self):
            return os.path.exists(self.path)

    dataset = Shrinking()
    dataset.path = str(tmp_path / "shrunk")
    loader = make(dataset, workers=min(make.workers, 1))
    state = first_and_state(loader, 6)
    loader.load_state_dict(state)
    open(dataset.path, "w").close()
    with (
        pytest.warns(UserWarning, match="a Shrinking has no state"),
        pytest.raises(MpwdsError, match="made 3 batches, 6 were delivered before"),
    ):
        plain(loader)


def test_that_holds_while_stages_behind_the_loader_hold_rows_of_earlier_batches(make, tmp_path):
    shrunk = tmp_path / "shrunk"
    dataset = DataPipeline(range(40)).select(lambda number: number < 18 or not shrunk.exists()).batched(2)
    pipeline = make(dataset, workers=min(make.workers, 1)).rebatched(4, shuffle=8)
    taken(pipeline, 3)
    pipeline.load_state_dict(pipeline.state_dict())
    shrunk.touch()
    with pytest.raises(MpwdsError, match="made 9 batches, 10 were delivered before"):
        plain(pipeline)


class Unmeasured:
    """Numbers of which it is not known how many there are."""

    def __init__(self, error):
        self.error = error

    def __iter__(self):
        return iter(range(6))

    def __len__(self):
        raise self.error


@pytest.mark.filterwarnings("ignore:.*is continued by running it again")
@pytest.mark.parametrize("error", [TypeError, NotImplementedError])
def test_a_dataset_need_not_know_its_length(error):
    loader = MultiLoader(Unmeasured(error), workers=0, output="numpy")
    first, rest, _ = first_and_rest(loader, 2)
    assert [*first, *rest] == plain(loader)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"workers": 3}, "workers of the loader changed .*it was 2, is 3.*: load it into a loader with"),
        ({"workers": 3}, '; a run with streams= may change it .guide "Elastic runs"'),
        ({"seed": 4}, "seed of the loader changed .*it was None, is 4"),
        ({"dataset": DataPipeline(range(21)).batched(4)}, r"part 1 was range \(20\), is range \(21\)"),
        ({"dataset": DataPipeline(range(20)).batched(5)}, r"part 2 was batched\(4\), is batched\(5\)"),
        ({"in_order": False}, "in_order of the loader changed .*it was True, is False"),
        ({"dataset": DataPipeline(range(20))}, r"it was \['.*', '.*'\], is \['[^,]*'\]"),
    ],
)
def test_the_state_of_another_loader_is_refused(other, message):
    options = {"dataset": DataPipeline(range(20)).batched(4), "workers": 2}
    state = MultiLoader(**options).state_dict()
    with pytest.raises(ValueError, match=message):
        MultiLoader(**{**options, **other}).load_state_dict(state)


LAMBDAS = {
    "map": lambda n: DataPipeline(range(9)).map((lambda row: row * 2) if n else (lambda row: row + 2)),
    "a set": lambda n: DataPipeline("ab").map((lambda x: x in {"a", "b"}) if n else (lambda x: x in {"a"})),
    "nested": lambda n: DataPipeline([[1]]).map(
        (lambda r: [x + 1 for x in r]) if n else (lambda r: [x + 2 for x in r])
    ),
    "generator": lambda n: DataPipeline(range(9)).compose((lambda s: s) if n else (lambda s: iter(list(s)))),
    "arguments": lambda n: DataPipeline("a").map_dict(x=(lambda v: v + 1) if n else (lambda v: v + 2)),
    "partial": lambda n: DataPipeline("a").map(partial((lambda a, b: a) if n else (lambda a, b: b), 1)),
    "source": lambda n: (lambda: iter([1])) if n else (lambda: iter([2])),
}


@pytest.mark.parametrize("make", LAMBDAS.values(), ids=LAMBDAS)
def test_another_lambda_is_another_dataset(make):
    state = MultiLoader(make(0)).state_dict()
    MultiLoader(make(0)).load_state_dict(state)
    MultiLoader(pickle.loads(cloudpickle.dumps(make(0)))).load_state_dict(state)
    with pytest.raises(ValueError, match=r"\[code .*\], is .* \[code"):
        MultiLoader(make(1)).load_state_dict(state)


def test_another_lambda_behind_the_loader_is_another_stage():
    loader = MultiLoader(DataPipeline(range(9)), workers=0)
    state = loader.map(lambda row: row + 1).state_dict()
    with pytest.raises(ValueError, match=r"was map\(<lambda>\) \[code .*\], is map\(<lambda>\) \[code"):
        loader.map(lambda row: row + 2).load_state_dict(state)


def test_another_function_of_the_same_name_is_a_mended_one():
    def crop(row):
        return row

    state = MultiLoader(DataPipeline(range(9)).map(crop)).state_dict()

    def crop(row):
        return row + 1

    MultiLoader(DataPipeline(range(9)).map(crop)).load_state_dict(state)
    with pytest.raises(ValueError, match=r"was map\(crop\), is map\(noisy\)"):
        MultiLoader(DataPipeline(range(9)).map(noisy)).load_state_dict(state)


class Scaled:
    """A stage of a user's own."""

    def __init__(self, factor):
        self.factor = factor
        self.log = logging.getLogger(f"scaled.{factor}")
        self._seen = [factor]

    def stream(self, source, context=None):
        return source


class Times:
    """A function object of a user's own."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, row):
        return row * self.factor


VALUES = {
    "a stage's": (lambda n: DataPipeline("a").pipe(Scaled(n)), "Scaled [factor=1], is Scaled [factor=2]"),
    "of partial": (lambda n: DataPipeline("a").map(partial(noisy, number=n)), "map(noisy) [number=1]"),
    "in a list": (lambda n: DataPipeline("a").map(partial(map, [partial(min, n)])), "map(map) [1]"),
    "of collation": (lambda n: DataPipeline("a").batched(4, partial(zip, n)), "[1]"),
    "of a source": (lambda n: partial(range, n), "[1]"),
    "of a dataclass": (lambda n: DataPipeline("a").map(partial(noisy, number=Slotted(n))), "[size=1]"),
    "many": (lambda n: DataPipeline("a").map(partial(zip, *[n] * 90)), "map(zip) [values "),
}


@pytest.mark.parametrize(("make", "message"), VALUES.values(), ids=VALUES)
def test_another_argument_is_another_dataset(make, message):
    state = MultiLoader(make(1)).state_dict()
    MultiLoader(make(1)).load_state_dict(state)
    MultiLoader(pickle.loads(cloudpickle.dumps(make(1)))).load_state_dict(state)
    with pytest.raises(ValueError, match=re.escape(message)):
        MultiLoader(make(2)).load_state_dict(state)


def test_what_stages_behind_the_loader_hold_may_change_while_they_run():
    scaled = Scaled(1)
    loader = MultiLoader(DataPipeline(range(9)), workers=0).pipe(scaled)
    state = loader.state_dict()
    scaled.factor = 2
    loader.load_state_dict(state)


def test_a_run_that_met_a_bad_sample_goes_on_with_a_handler_that_skips_it(make):
    def decoded(number):
        if number == 7:
            raise ValueError("a bad sample")
        return number

    dataset = DataPipeline(range(12)).map(decoded)
    loader = make(dataset)
    with pytest.raises(ValueError, match="a bad sample"):
        list(loader)
    state = loader.state_dict()
    skipping = DataPipeline(range(12)).map(decoded, handler=mpwds.ignore_and_continue)
    assert sorted(continued(make(skipping), state)) == [8, 9, 10, 11]


def first_half(name):
    return name < "5"


def second_half(name):
    return name >= "5"


class Every(Filter):
    """A user's stage that prints its name alone."""

    def __init__(self, n):
        self.n = n

    def stream(self, source, context=ALONE):
        return mpwds.slice(0, None, self.n).stream(source, context)


SHARDS = "x-{0..9}.tar"
OTHER_ORDERS = {
    "shuffle": [WebDataset(SHARDS, shardshuffle=shuffled) for shuffled in (False, True)],
    "splitter": [WebDataset(SHARDS, nodesplitter=split) for split in (mpwds.split_by_node, None)],
    "seed": [DataPipeline(mpwds.ResampledShards(SHARDS, seed=seed)) for seed in (1, 2)],
    "order": [mpwds.IndexedDataset(range(9), shuffle=shuffle) for shuffle in (False, "global", "chunked")],
    "size of chunks": [mpwds.IndexedDataset(range(9), shuffle="chunked", chunksize=n) for n in (2, 3)],
    "subset": [mpwds.IndexedDataset(range(9)).select(numbers) for numbers in ([1, 2], [2, 1])],
    "seed inside": [RandomMix([WebDataset(SHARDS, shardshuffle=True, seed=seed)]) for seed in (1, 2)],
    "files": [WebDataset(SHARDS, select_files=select) for select in (None, first_half, second_half)],
    "attribute": [DataPipeline("abc").compose(Every(n)) for n in (1, 2)],
}


@pytest.mark.parametrize("name", OTHER_ORDERS)
def test_the_state_of_a_dataset_in_another_order_is_refused(name):
    first, *others = OTHER_ORDERS[name]
    state = MultiLoader(first).state_dict()
    MultiLoader(copy.copy(first)).load_state_dict(state)
    for other in others:
        with pytest.raises(ValueError, match="dataset of the loader changed since the state was saved"):
            MultiLoader(other).load_state_dict(state)


def test_how_many_threads_read_is_no_other_order():
    state = MultiLoader(mpwds.IndexedDataset(range(9), shuffle="global")).state_dict()
    MultiLoader(mpwds.IndexedDataset(range(9), shuffle="global", threads=4)).load_state_dict(state)


def test_what_changes_while_a_program_runs_is_no_other_dataset():
    stage, function, calls, seen = Scaled(1), Times(1), 0, [0]
    dataset = DataPipeline("a").pipe(stage).map(function).map(lambda row: (row, calls))
    dataset = dataset.map(partial(zip, seen))
    state = MultiLoader(dataset).state_dict()
    stage._seen, stage.log, function.factor, calls, seen[0] = [2], logging.getLogger("other"), 2, 1, 1
    MultiLoader(dataset).load_state_dict(state)


def test_a_description_tells_no_secret():
    secret = partial(noisy, number="sesame")
    told = described(DataPipeline("a").map(secret))
    assert told != described(DataPipeline("a").map(partial(noisy, number="open")))
    assert "sesame" not in str(told)


@pytest.mark.parametrize("stages", [lambda loader: loader, lambda loader: loader.rebatched(3, shuffle=9)])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_of_another_rank_counts_by_what_was_delivered(stages, workers, at_rank):
    def make():
        return stages(MultiLoader(DataPipeline(range(80)).shuffle(20).batched(4), workers=workers))

    at_rank(1, 2)
    whole = as_lists(make())
    at_rank(0, 2)
    loader = make()
    at_start = loader.state_dict()
    state, at_end = as_json(first_and_state(loader, 5)), first_and_state(make(), len(whole))
    at_rank(1, 2)
    loader = continued(make(), state)
    assert as_json(loader.state_dict())["facts"]["rank"] == 1
    with pytest.warns(UserWarning, match="that of rank 0, this is rank 1"):
        assert as_lists(loader) == whole[5:]
    loader.load_state_dict(at_start)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_lists(loader) == whole
    loader.load_state_dict(at_end)
    with pytest.warns(UserWarning, match="had nothing left"):
        assert as_lists(loader) == []


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (DataPipeline(range(20)).map(float, threads=2, in_order=False), {"workers": 1}),
        (range(20), {"workers": 2, "in_order": False}),
    ],
    ids=["the dataset has none", "the loader has none"],
)
def test_the_state_of_another_rank_that_has_no_order_is_refused(dataset, options, at_rank):
    at_rank(1, 2)
    loader = MultiLoader(dataset, **options)
    state = first_and_state(loader, 1)
    at_rank(0, 2)
    with pytest.raises(ValueError, match="in_order=False each rank saves and loads its own"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("delivered", [3, 11, 14])
def test_the_state_of_another_rank_counts_so_though_its_workers_have_other_lengths(delivered, at_rank):
    def make():
        def batches():
            rank, worker = int(os.environ["RANK"]), int(os.environ["WORKER"])
            return iter([[rank, worker, n] for n in range(5 if rank == worker else 10)])

        return MultiLoader(batches, workers=2, output="numpy", start_method="fork")

    at_rank(1, 2)
    whole = list(make())
    at_rank(0, 2)
    state = as_json(first_and_state(make(), delivered))
    at_rank(1, 2)
    for _ in range(2):
        loader = continued(make(), state)
        state = as_json(loader.state_dict())
    with pytest.warns(UserWarning, match=f"without the {delivered} batches that were delivered"):
        assert list(loader) == whole[delivered:]
    with pytest.warns(UserWarning, match="that of rank 0"):
        loader.load_state_dict(state)
        assert first_and_state(loader, 1)["delivered"] == delivered + 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: "state", "is the dict that state_dict.. gave, got 'state'"),
        (
            lambda state: {**state, "version": VERSION + 1},
            f"version {VERSION + 1}, but this mpwds reads version {VERSION}",
        ),
        (lambda state: {**state, "kind": "DataLoader"}, "state of a DataLoader, loaded into a MultiLoader"),
        (lambda state: {**state, "epoch": -1}, "epoch=-1, expected a whole number"),
        (lambda state: {**state, "streams": [{}]}, "delivered=None, expected a whole number"),
        (lambda state: {**state, "facts": None}, "facts=None, expected a dict"),
        (lambda state: {**state, "streams": [{"delivered": 0}]}, "stateless=None, expected a str"),
        (lambda state: {**state, "streams": state["streams"][:1]}, "expected the progress of 2 workers"),
        (lambda state: {**state, "facts": {**state["facts"], "dataset": 3}}, "it was 3, is "),
    ],
)
def test_what_is_no_state_is_refused_by_name(change, message):
    loader = MultiLoader(range(4), workers=2)
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict(change(loader.state_dict()))


def test_a_dataset_is_described_alike_wherever_it_lies(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    first, second = (
        WebDataset(f"{tmp_path}/{folder}/x-{{0..3}}.tar", shardshuffle=True)
        .map(partial(noisy, path=f"{tmp_path}/{folder}", thing=object()))
        .batched(4)
        for folder in ("a", "b")
    )
    assert described(first) == described(second)
    assert described(first)[0].startswith("ShardList (4) {shuffle=True, ")
    changes = [{}, {"probs": [2, 1]}, {"longest": True}, {"seed": 3}]
    mixes = [RandomMix([range(3), first], **{"probs": [1, 1], **change}) for change in changes]
    assert len({tuple(described(mix)) for mix in mixes}) == 4


@dataclass(slots=True)
class Slotted:
    size: int = 3


def _cyclic():
    cyclic = []
    cyclic.append(cyclic)
    return cyclic


@pytest.mark.parametrize("argument", [Slotted(), Slotted, _cyclic(), [[lambda row: row] * 1000]])
def test_a_function_may_be_given_any_data(argument):
    dataset = DataPipeline(range(3)).map(partial(min, key=argument))
    assert described(dataset) == described(copy.deepcopy(dataset))
    assert "code" not in described(dataset)[-1]


def test_a_state_is_small(shards, states_everywhere):
    dataset = WebDataset(shards, shardshuffle=True).shuffle(20).decode().to_tuple("cls").batched(2)
    with MultiLoader(dataset, workers=2, start_method="fork") as loader:
        state = first_and_state(loader, 5)
    assert len(msgpack.packb(state)) < 2 * 5000
    assert mpwds.MultiLoader(dataset, workers=2).state_dict()["streams"][0]["states"] == []


def test_a_state_counts_the_shards_of_a_pattern_and_computes_no_name(monkeypatch):
    with MultiLoader(WebDataset("x-{000000..999999}.tar", shardshuffle=True), workers=0) as loader:
        monkeypatch.setattr(Names, "__getitem__", None)
        assert loader.state_dict()["facts"]["dataset"][0].startswith("ShardList (1000000) ")
