import os
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpwds
from mpwds.errors import SecurityError, SpecError
from mpwds.pipeline.context import Context
from mpwds.pipeline.handlers import warn_and_continue
from mpwds.pipeline.sources import specs
from mpwds.pipeline.sources.shards import SimpleShardList
from mpwds.pipeline.sources.specs import MultiShardSample, SpecSource, load_spec, shardspec
from mpwds.pipeline.sources.webdataset import WebDataset, construct_dataset
from mpwds.storage.streams import patterns
from tests.pipeline.places import read_everywhere

SOURCES = [
    {"name": "all", "shards": "a-{0..4}.tar"},
    {"name": "some", "shards": ["b-{0..4}.tar", "b-5.tar"], "choose": 3},
    {"name": "drawn", "shards": "c-{0..1}.tar", "resample": 7},
]


def epoch(shards, **context):
    return [shard["url"] for _, shard in shards.stream(Context(**context))]


@pytest.fixture
def yaml_file(tmp_path):
    def write(text):
        path = tmp_path / "spec.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


README = """\
dataset:
  - shards: gs://nvdata-ocropus-tess/ia1-{000000..000033}.tar
    scaleprob: 0.3
  - shards: gs://nvdata-ocropus-tess/bin-gsub-{000000..000167}.tar
    extensions: nrm.jpg
    scale: [0.3, 1.0]
"""


def test_the_readmes_specification_is_read(yaml_file):
    spec = load_spec(yaml_file(README))
    assert spec.sources[0].urls[1] == "gs://nvdata-ocropus-tess/ia1-000001.tar"
    assert [source.meta for source in spec.sources] == [{"__scaleprob__": 0.3}, {"__scale__": [0.3, 1.0]}]
    assert spec.sources[1].extensions == {"nrm.jpg": "nrm.jpg"}
    assert not spec.mixes_samples
    assert len(list(WebDataset(spec).stage(0))) == 34 + 168


def test_webdatasets_test_specification_is_read(monkeypatch):
    monkeypatch.setenv("PLACE", "web")
    sources = [{"shards": "ia1/{0..1}.tar"}, {"shards": "gsub/0.tar", "buckets": ["other/"]}]
    prefix = "pipe:curl -s -L http://storage.googleapis.com/"
    spec = load_spec({"prefix": prefix, "buckets": "ocropus4-$PLACE", "datasets": sources})
    assert spec.sources[0].urls[1] == f"{prefix}ocropus4-web/ia1/1.tar"
    assert spec.sources[1].urls == (f"{prefix}other/gsub/0.tar",)


def test_shards_may_be_joined_and_named_by_the_environment_as_in_code(monkeypatch):
    monkeypatch.setenv("WDS_PLACE", "web")
    monkeypatch.setenv("PLACE", "elsewhere")
    monkeypatch.setenv("OTHER", "b")
    spec = load_spec({"datasets": [{"shards": "${PLACE}-{0..1}.tar::${OTHER}.tar", "buckets": "x"}]})
    assert spec.sources[0].urls == ("x/web-0.tar", "x/web-1.tar", "x/b.tar")


def test_of_each_source_an_epoch_has_its_count():
    shards = MultiShardSample({"datasets": SOURCES})
    seen = set()
    for number in range(6):
        urls = epoch(shards, epoch=number)
        counts = Counter(url[0] for url in urls)
        assert counts == {"a": 5, "b": 3, "c": 7}
        assert len({url for url in urls if url[0] in "ab"}) == 8
        seen.update(urls)
    assert len(seen) == 13


def test_all_workers_have_the_same_shards_and_every_epoch_others():
    shards = MultiShardSample({"datasets": SOURCES})
    assert epoch(shards) == epoch(shards, worker=1, workers=2) == epoch(shards, rank=1, world_size=2)
    assert len({tuple(epoch(shards, epoch=e, seed=s)) for e in (0, 1) for s in (0, 1)}) == 4


def test_set_epoch_makes_other_draws():
    shards = MultiShardSample({"datasets": SOURCES})
    before = epoch(shards)
    shards.set_epoch(17)
    assert epoch(shards) != before
    assert [shard["url"] for shard in shards] == epoch(shards)


@settings(max_examples=30, deadline=None)
@given(stop=st.integers(0, 16), number=st.integers(0, 2))
def test_continues_from_its_state_exactly(continues, stop, number):
    shards = MultiShardSample({"datasets": SOURCES})
    continues(lambda: shards.stream(Context(epoch=number)), stop)


def test_a_shard_that_is_drawn_twice_has_two_addresses():
    addresses = [address for address, _ in MultiShardSample({"datasets": SOURCES}).stream()]
    assert len(set(addresses)) == 15


def test_divided_among_nodes_and_workers_each_shard_of_the_epoch_is_read_once(shards):
    dataset = WebDataset({"datasets": [{"shards": shards}]}, empty_check=False).to_tuple("cls")
    assert sorted(int(cls) for (cls,) in read_everywhere(dataset.stream, 2, 2)) == list(range(20))


def test_extensions_choose_and_rename_members_and_other_options_ride_along(shards):
    one = {"shards": shards, "extensions": {"label": "cls"}, "scale": [1, 2], "meta": {"source": 7}}
    two = {"shards": shards, "extensions": "txt"}
    dataset = WebDataset({"datasets": [one, two]})
    samples = list(dataset)
    assert len(samples) == 40
    assert Counter(tuple(sorted(sample)) for sample in samples) == {
        ("__key__", "__local_path__", "__scale__", "__url__", "label", "source"): 20,
        ("__key__", "__local_path__", "__url__", "txt"): 20,
    }
    stream = dataset.stream()
    assert all(stream.fetch(address) == sample for address, sample in dataset.stream())


def test_extensions_come_behind_the_users_own_choice(shards):
    spec = {"datasets": [{"shards": shards, "extensions": "label"}]}
    chosen = {"select_files": lambda name: name.startswith("0007")}
    dataset = WebDataset(spec, rename_files=lambda name: name.replace(".cls", ".label"), **chosen)
    assert [(sample["__key__"], sample["label"]) for sample in dataset] == [("0007", b"7")]


def test_weights_mix_samples_and_each_comes_once(shards, continues):
    spec = {"datasets": [{"shards": shards, "weight": 3}, {"shards": shards, "probability": 1}]}
    dataset = WebDataset(spec).to_tuple("cls")
    assert Counter(int(cls) for (cls,) in dataset) == Counter([*range(20), *range(20)])
    continues(dataset.stream, 9)


def test_a_source_gives_a_part_of_its_samples_or_another_order_or_nothing(shards):
    def keys(*sources):
        sources = [{"weight": 1, "shards": shards, **source} for source in sources]
        return [sample["__key__"] for sample in WebDataset({"datasets": sources})]

    part = keys({"subsample": 0.5}, {"weight": 0, "subsample": 1})
    assert 0 < len(set(part)) == len(part) < 20
    _, empty, _, shard, *_ = SimpleShardList(shards).urls
    in_order = keys({"shards": empty}, {"shards": shard})
    assert in_order == sorted(in_order) == sorted(keys({"shards": shard, "shuffle": 20}))
    assert keys({"shards": shard, "shuffle": 20}) != in_order


def test_every_option_of_a_source_is_read():
    same = {"name": "a", "resample": 3, "weight": 2, "subsample": 0.25, "shuffle": 5, "epoch": 7}
    given = {"shards": "a.tar", "extensions": {"png": "PNG jpg"}, "meta": {"lang": "en"}, "scale": 4}
    given |= {"scaleprob": 0.5, "handler": "warn_and_continue"}
    (source,) = load_spec({"datasets": [{**same, **given}]}).sources
    read = {"urls": ("a.tar",), "extensions": {"png": "png jpg"}, "handler": warn_and_continue}
    assert source == SpecSource(**same, **read, meta={"__scale__": 4, "__scaleprob__": 0.5, "lang": "en"})


@pytest.mark.parametrize("mixed", [{}, {"weight": 1}])
def test_the_epoch_of_a_specification_counts_samples_also_where_they_are_batched(shards, mixed):
    dataset = construct_dataset({"datasets": [{"shards": shards, **mixed}], "epoch": 33}).listed(10)
    assert [len(samples) for samples in dataset] == [10, 10, 10, 3]
    assert [len(samples) for samples in dataset.with_epoch(5)] == [10, 10, 10, 3, 10]


def test_an_epoch_of_a_specification_continues_exactly(shards, continues):
    dataset = WebDataset({"datasets": [{"shards": shards}], "epoch": 33}, seed=3).shuffle(4).listed(5)
    continues(lambda: dataset.stream(Context(epoch=1)), 5)


def test_a_source_may_have_an_epoch_of_its_own(shards):
    spec = {"datasets": [{"shards": shards, "epoch": 3}, {"shards": shards, "epoch": 25}]}
    assert len(list(WebDataset(spec))) == 28


def test_a_stop_rule_of_a_specification_counts(shards):
    sources = [{"shards": shards, "weight": 1}, {"shards": shards, "epoch": 2}]
    assert len(list(WebDataset({"datasets": sources, "stop": "first_exhausted"}))) < 22


def test_a_source_has_its_own_error_handler(shards, tmp_path):
    (tmp_path / "bad.tar").write_bytes(b"x" * 600)
    bad = {"shards": str(tmp_path / "bad.tar"), "handler": "warn_and_continue"}
    with pytest.warns(UserWarning, match="bad.tar"):
        assert len(list(WebDataset({"datasets": [{"shards": shards}, bad]}))) == 20
    assert load_spec({"datasets": [bad]}).sources[0].handler is warn_and_continue


def test_a_yaml_file_is_a_dataset_and_a_list_of_shards(yaml_file, shards):
    path = yaml_file(f"datasets:\n  - shards: {shards}\n")
    assert len(list(WebDataset(path))) == 20
    assert len(list(shardspec(path))) == 6
    assert repr(WebDataset(path).shuffle(5)).startswith(f"WebDataset('{path}')")
    assert isinstance(shardspec("a.tar"), SimpleShardList)


def test_commands_in_files_are_refused_unless_the_caller_vouches_for_them(yaml_file):
    path = yaml_file("datasets:\n  - name: x\n    shards:\n      - a.tar\n      - 'pipe:cat b.tar'\n")
    place = r"spec.yaml, line 5, datasets\[0\].shards\[1\]: .*pipe:cat b.tar"
    with pytest.raises(SecurityError, match=place) as caught:
        WebDataset(path)
    call = str(caught.value).rpartition("trusted=True: ")[2]
    assert call == f"mpwds.WebDataset(mpwds.load_spec({path!r}, trusted=True))"
    assert isinstance(eval(call, {"mpwds": mpwds}), WebDataset)
    assert load_spec(path, trusted=True).sources[0].urls == ("a.tar", "pipe:cat b.tar")
    with pytest.raises(SecurityError):
        load_spec({"datasets": [{"shards": "pipe:cat b.tar"}]}, trusted=False)


@pytest.fixture
def web_file(yaml_file, serve, tmp_path):
    """Makes a YAML file and tells its URL on a web server."""

    def url(text):
        name = os.path.basename(yaml_file(text))
        return f"{serve(tmp_path)[0]}/{name}"

    return url


def test_a_specification_on_a_web_server_is_read_from_there(web_file, shards):
    url = web_file(f"datasets:\n- shards: {shards}\n")
    assert len(list(WebDataset(url))) == 20
    assert len(list(shardspec(url))) == 6
    with pytest.raises(SpecError, match=rf"^{web_file('datasets: 3')}, line 1, datasets must be"):
        WebDataset(url)
    with pytest.raises(FileNotFoundError, match=r"missing.yaml"):
        WebDataset(url.replace("spec", "missing"))


@pytest.mark.parametrize(
    "text",
    [
        "datasets: [{shards: 'pipe:touch x'}]",
        "prefix: 'https://host/$SECRET/'\ndatasets: [{shards: x.tar}]",
        "datasets: [{shards: 'https://host/${SECRET}.tar'}]",
        "buckets: ~/data\ndatasets: [{shards: x.tar}]",
    ],
)
def test_what_comes_over_the_network_runs_no_command_and_learns_no_variable(web_file, monkeypatch, text):
    monkeypatch.setenv("SECRET", "4711")
    url = web_file(text)
    with pytest.raises(SecurityError, match=r"load_spec\('http.*spec.yaml', trusted=True\)"):
        WebDataset(url)
    (read,) = load_spec(url, trusted=True).sources[0].urls
    assert "SECRET" not in read


def test_a_specification_that_contains_itself_or_grows_by_aliases_is_an_error_soon(yaml_file):
    rows = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    grown = "\n".join(["a0: &a0 [x]", *rows])
    for text in ("datasets: &d [*d]", grown, f"{grown}\ndatasets: *a29", f"prefix: {{{grown}}}"):
        with pytest.raises(SpecError):
            load_spec(yaml_file(text))


@pytest.mark.parametrize(
    ("sources", "place"),
    [
        ("- shards: ['{0..9}', 'b']", r"line 2, datasets\[0\].shards\[1\] brings the shards to 11"),
        ("- &a {shards: '{0..9}'}\n- *a", r"datasets\[1\] brings the shards to 20"),
        ("- {shards: '{0..4}::{0..5}'}", r"datasets\[0\].shards is wrong: .* '{0..5}' stand for 6"),
    ],
)
def test_the_shards_of_a_specification_are_limited_together(yaml_file, monkeypatch, sources, place):
    for module in (patterns, specs):
        monkeypatch.setattr(module, "MAX_NAMES", 10)
    with pytest.raises(SpecError, match=f"{place}.* 10 are allowed"):
        load_spec(yaml_file(f"datasets:\n{sources}"))


BAD = [
    ("datasets: \a", r"spec.yaml is not YAML: .*special characters are not allowed"),
    (b"datasets: \xff", "spec.yaml is not YAML: it is not UTF-8 text"),
    ("datasets: 3", "line 1, datasets must be a list of at least one item, got 3"),
    ("datasets: []", "line 1, datasets must be a list"),
    ("prefix: x", "must have one key `datasets`"),
    ("datasets:\n- shards: a.tar\nepoch: 0", "line 3, epoch must be a whole number, 1 or more, got 0"),
    ("datasets:\n- shards: a.tar\nsource: b", "line 3, source is unknown: allowed here are prefix, buckets"),
    ("datasets:\n- shards: ${ABSENT}/a.tar", r"line 2, datasets\[0\].shards needs .* ABSENT or WDS_ABSENT"),
    ("datasets:\n- name: a", r"line 2, datasets\[0\] has no key `shards`"),
    ("datasets:\n- a.tar", r"line 2, datasets\[0\] must be a mapping, got 'a.tar'"),
    ("datasets:\n- shards: [a.tar,\n   7]", r"line 3, datasets\[0\].shards\[1\] must be a string, got 7"),
    *(
        (f"datasets:\n- shards: '{shards}'", rf"line 2, datasets\[0\].shards is wrong: {problem}")
        for shards, problem in (
            ("a-{0..3.tar", "the braces in .* do not match"),
            ("a-{0..99999999999}.tar", ".* 100000000000 names"),
        )
    ),
    ("datasets:\n- shards: a.tar\nstop: now", "line 3, stop must be one of first_exhausted"),
    ("datasets:\n- shards: a.tar\nstop: first_exhausted", "line 3, stop has no effect here"),
    ("datasets:\n- {shards: a, weight: 1}\nepoch: 9\nstop: first_exhausted", "line 4, stop has no"),
    ("datasets:\n- shards: a.tar\n 1: 2\n", "line 3 is not YAML"),
    ("datasets: [", "line 1 is not YAML"),
    ("3", "must be a mapping, got 3"),
    *(
        (f"datasets:\n- shards: a.tar\n  {options}", message)
        for options, message in (
            ("shard: b", r"line 3, datasets\[0\].shard is unknown"),
            ("choose: many", r"line 3, datasets\[0\].choose must be a whole number"),
            ("choose: 2", r"line 3, datasets\[0\].choose is 2, but there are only 1 shards"),
            ("choose: 1\n  resample: 1", "line 4, .*resample and choose exclude each other"),
            ("weight: 1\n  probability: 1", "line 4, .* mean the same"),
            ("weight: -1", r"line 3, datasets\[0\].weight must be a number, 0 or more"),
            ("weight: .inf", "line 3, .*weight must be finite"),
            ("subsample: 2", "line 3, .*subsample must be a number, from 0 to 1, got 2"),
            ("handler: panic", "line 3, .*handler must be one of reraise_exception"),
            ("buckets: [a, b]", r"line 3, datasets\[0\].buckets\[1\] is a second bucket"),
            ("extensions: 3", "line 3, .*extensions must be a list"),
            ("extensions: {jpg: 3}", "line 3, .*extensions.jpg must be a string"),
            ("extensions: {a: jpg, b: JPG}", "line 3, .*extensions gives one extension two names"),
            ("meta: 3", "line 3, .*meta must be a mapping"),
            ("name: 3", "line 3, .*name must be a string, got 3"),
            ("shards: b.tar", "line 3: the key 'shards' is already in line 2"),
            ("1: 2", r"line 2, datasets\[0\] has the key 1, which is not a string"),
        )
    ),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_bad_specification_gets_an_error_with_file_line_and_key(yaml_file, text, message):
    path = yaml_file(text)
    with pytest.raises(SpecError, match=message) as caught:
        WebDataset(path)
    assert str(caught.value).startswith(path)
    assert caught.value.file == path


def test_of_a_dict_the_error_names_the_key():
    with pytest.raises(SpecError, match=r"datasets\[1\].choose of the specification must be") as caught:
        load_spec({"datasets": [{"shards": "a"}, {"shards": "b", "choose": 0}]})
    assert (caught.value.file, caught.value.line, caught.value.key) == (None, None, "datasets[1].choose")


def test_the_extra_is_named_where_pyyaml_is_missing(yaml_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ImportError, match=r"pip install 'mpwds\[yaml\]'"):
        load_spec(yaml_file("datasets: []"))
