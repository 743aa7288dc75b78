"""What a newcomer writes by mistake, or as for torch's DataLoader, is an error that says what to write."""

import copy
import inspect
import pickle
import traceback

import pytest
import torch.utils.data

import mpwds
from mpwds import DataPipeline, MultiLoader, WebDataset


def numbers():
    return DataPipeline(range(4))


WRONG_ARGUMENTS = {
    "num_workers": (lambda: MultiLoader(numbers(), num_workers=2), "MultiLoader takes workers=2"),
    "batch_size": (lambda: MultiLoader(numbers(), batch_size=8), r"dataset\.batched\(8\)"),
    "shuffle": (lambda: MultiLoader(numbers(), shuffle=True), "shardshuffle=True"),
    "shuffle of shards": (lambda: WebDataset("x.tar", shuffle=True), "shardshuffle=True"),
    "drop_last": (
        lambda: numbers().batched(8, drop_last=True),
        r"write dataset\.batched\(8, partial=False\)",
    ),
    "of a function": (lambda: numbers().pipe(mpwds.batched, 8, drop_last=True), r"^batched\(\) .*=False"),
    "of a loader": (lambda: MultiLoader(numbers()).batched(8, drop_last=True), "partial=False"),
    "behind a loader": (lambda: MultiLoader(numbers()).rebatched(8, bufsize=9), "no argument 'bufsize'"),
    "of DataLoader": (lambda: mpwds.DataLoader([1], num_worker=2), "did you mean 'num_workers'"),
    "of MultiLoader alone": (lambda: mpwds.DataLoader([1], streams=12), "'streams': MultiLoader takes it"),
    "of WebLoader": (lambda: mpwds.WebLoader([1], bach_size=2), "did you mean 'batch_size'"),
    "of a server": (lambda: mpwds.Server(numbers(), bnd="ipc://x"), r"Server\(\) .*did you mean 'bind'"),
    "of a writer": (lambda: mpwds.TarWriter("x", encodr=False), r"TarWriter\(\) .*did you mean 'encoder'"),
    "of shards": (lambda: mpwds.ShardWriter("%d", maxcont=3), r"ShardWriter\(\) .*did you mean 'maxcount'"),
    "misspelt": (lambda: MultiLoader(numbers(), worker=2), "no argument 'worker': did you mean 'workers'"),
}


@pytest.mark.parametrize(("call", "advice"), WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS)
def test_a_wrong_argument_is_an_error_that_says_what_to_write(call, advice):
    with pytest.raises(TypeError, match=advice):
        call()


@pytest.mark.parametrize("argument", inspect.signature(torch.utils.data.DataLoader.__init__).parameters)
def test_every_argument_of_torchs_data_loader_is_taken_or_explained(argument):
    if argument not in inspect.signature(MultiLoader.__init__).parameters:
        with pytest.raises(TypeError, match=f"^MultiLoader\\(\\) has no argument '{argument}': "):
            MultiLoader(numbers(), **{argument: None})


def test_an_error_inside_a_call_is_left_as_it_is():
    with pytest.raises(TypeError, match=r"compose takes stages and has no argument 'number'"):
        numbers().compose(abs, number=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'f'"):
        numbers().map()


@pytest.mark.parametrize(
    "thing",
    [numbers, lambda: MultiLoader(numbers()), lambda: MultiLoader(numbers()).map(str), lambda: mpwds],
    ids=["dataset", "loader", "stages behind a loader", "module"],
)
def test_a_misspelt_stage_is_an_error_that_names_the_right_one_once(thing):
    with pytest.raises(AttributeError) as caught:
        thing().shufle(10)
    shown = "".join(traceback.format_exception_only(caught.value)).lower()
    assert shown.endswith("has no attribute 'shufle': did you mean 'shuffle'?\n")


def test_a_name_that_is_like_no_other_gets_no_advice():
    with pytest.raises(AttributeError, match="^'DataPipeline' object has no attribute 'num_workers'$"):
        numbers().num_workers  # looking it up is what is tested


def test_what_asks_for_attributes_and_copies_works_as_before():
    dataset = numbers()
    assert not hasattr(dataset, "shufle")
    assert not hasattr(dataset, "__array__")
    assert getattr(dataset, "sampler", None) is None
    for other in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert list(other) == [0, 1, 2, 3]


def test_an_attribute_error_inside_a_property_is_not_hidden():
    class Mine(DataPipeline):
        @property
        def size(self):
            return self.pipeline.nothing

    with pytest.raises(AttributeError, match="'list' object has no attribute 'nothing'"):
        Mine([1]).size  # looking it up is what is tested


def test_methods_keep_their_signatures():
    assert str(inspect.signature(numbers().listed)).startswith(
        "(batchsize: 'int' = 20, partial: 'bool' = True)"
    )
    assert "workers" in inspect.signature(MultiLoader).parameters


@pytest.mark.parametrize("braces", ["{000-003}", "{000:003}", "{000...003}"])
def test_braces_that_hold_no_range_are_an_error_that_shows_the_range(braces):
    with pytest.raises(ValueError, match=r"did you mean \{000\.\.003\}\?"):
        WebDataset(f"https://host/x-{braces}.tar")


@pytest.mark.parametrize(
    "name", ["x-*.tar", "x-{000-003}.tar", "https://host/x.tar?part=1", "pipe:cat *.tar"]
)
def test_names_that_look_like_patterns_are_taken_where_they_are_names(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x-*.tar").touch()
    (tmp_path / "x-{000-003}.tar").touch()
    if not name.startswith("x-{"):
        WebDataset(name)
    WebDataset([name])


def read(urls, workers=0):
    return list(MultiLoader(WebDataset(urls), workers=workers))


def notes_of(urls, kind=FileNotFoundError, workers=0):
    with pytest.raises(kind) as caught:
        read(urls, workers)
    return " ".join(caught.value.__notes__)


@pytest.fixture
def shards(tmp_path):
    for number in range(6):
        with mpwds.TarWriter(str(tmp_path / f"x-{number}.tar")) as sink:
            sink.write({"__key__": str(number), "cls": number})
    return tmp_path


@pytest.mark.parametrize("workers", [0, 1])
def test_a_missing_shard_names_its_pattern_and_the_shards_that_are_there(shards, workers):
    (shards / "x-0.tar").unlink()
    pattern = f"{shards}/x-{{4..7}}.tar"
    noted = notes_of(pattern, workers=workers)
    assert f"it is one of the 4 shards of '{pattern}'; {shards} holds x-4.tar, x-5.tar of them" in noted


SIX = "x-0.tar, x-1.tar, ... x-5.tar (6 files)"


@pytest.mark.parametrize(
    ("pattern", "noted"),
    [
        ("x-{0..900}.tar", f"holds {SIX}"),
        ("x-{0..99999}.tar", f"holds {SIX} of the first 10000"),  # only these are looked for
        ("y-{0..3}.tar", f"holds no such file, but {SIX}"),
        ("none/y-{0..3}.tar", "there is no folder FOLDER/none"),
    ],
)
def test_a_missing_shard_tells_what_the_folder_holds(shards, pattern, noted):
    assert noted.replace("FOLDER", str(shards)) in notes_of(f"{shards}/{pattern}")


def test_a_missing_shard_of_a_list_names_those_of_the_list_that_are_there(shards):
    assert notes_of([f"{shards}/x-1.tar", f"{shards}/x-9.tar"]).endswith(f"; {shards} holds x-1.tar of them")


def test_a_missing_shard_that_was_drawn_names_its_pattern(shards):
    pattern = f"{shards}/x-{{7..8}}.tar"
    with pytest.raises(FileNotFoundError) as caught:
        next(iter(WebDataset(pattern, resampled=True)))
    assert (
        f"it is one of the 2 shards of '{pattern}'; {shards} holds no such file" in caught.value.__notes__[0]
    )


def test_a_handler_that_leaves_missing_shards_out_costs_no_look_into_the_folder(shards):
    seen = []
    dataset = WebDataset(f"{shards}/x-{{4..7}}.tar", handler=lambda error: seen.append(error) or True)
    assert len(list(dataset)) == 2
    assert all("shards of" not in str(getattr(error, "__notes__", "")) for error in seen)


def test_a_folder_in_place_of_a_shard_says_how_to_read_the_shards_in_it(shards):
    assert f"add a slash to its name: '{shards}/'" in notes_of(str(shards), IsADirectoryError)
    assert len(read(f"{shards}/")) == 6
