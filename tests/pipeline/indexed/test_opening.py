import gzip
import json

import cloudpickle
import numpy as np
import pytest

import mpwds
from mpwds.pipeline.sources.shards import ShardList
from mpwds.storage.indexed.describing import create_description, write_description
from mpwds.storage.streams.patterns import expand_urls
from tests.pipeline.indexed.letters import Letters


def classes(dataset):
    return [int(sample["cls"]) for sample in dataset]


def write_mds(folder, version):
    """Writes an MDS dataset of five samples."""
    if version == 1:
        with mpwds.StreamingDatasetWriter(str(folder), ["cls"], compression="gz") as sink:
            sink.write_samples(({"cls": b"%d" % number} for number in range(5)), use_tqdm=False)
    else:
        with mpwds.MDSWriter(columns={"cls": "int"}, out=str(folder)) as sink:
            for number in range(5):
                sink.write({"cls": number})


@pytest.fixture
def describe(tar_shards, tmp_path, monkeypatch):
    """Writes a description of the shards, by their names, beside them; returns its path."""
    monkeypatch.chdir(tmp_path)

    def write(name, **options):
        write_description(create_description(expand_urls("x-{0..2}.tar"), **options), name)
        return tmp_path / name

    return write


class TestSources:
    def test_a_name_with_braces_a_list_of_names_or_a_folder(self, tar_shards, tmp_path):
        names = ShardList(tar_shards).urls
        for source in (tar_shards, names, list(names), tmp_path, f"{tmp_path}/", f"file:{tmp_path}/"):
            assert classes(mpwds.IndexedDataset(source)) == list(range(11))

    @pytest.mark.parametrize("name", ["dataset.json", "index.json", "dataset.shardindex"])
    def test_a_description_or_a_folder_that_has_one(self, describe, tmp_path, name):
        assert classes(mpwds.IndexedDataset(describe(name))) == list(range(11))
        assert classes(mpwds.IndexedDataset(tmp_path)) == list(range(11))

    @pytest.mark.parametrize("name", ["x.json", "x.shardindex"])
    def test_a_descriptions_url_may_have_a_query(self, describe, tmp_path, serve, name):
        describe(name)
        url = f"{serve(tmp_path)[0]}/{name}?signature=1"
        assert classes(mpwds.IndexedDataset(url, remote=True)) == list(range(11))
        assert classes(mpwds.WebDataset(url)) == list(range(11))

    @pytest.mark.parametrize("version", [1, 2])
    def test_mds_on_a_web_server_needs_no_cache(self, tmp_path, version, serve):
        write_mds(tmp_path / "mds", version)
        assert classes(mpwds.IndexedDataset(f"{serve(tmp_path)[0]}/mds")) == list(range(5))

    @pytest.mark.parametrize("version", [1, 2])
    def test_a_folder_that_an_interrupted_writer_left_is_an_error_that_says_so(self, tmp_path, version):
        write_mds(tmp_path, version)
        next(tmp_path.glob("index*")).unlink()
        with pytest.raises(FileNotFoundError, match="shards of an MDS dataset in .* and no index"):
            mpwds.IndexedDataset(tmp_path)

    def test_a_compressed_description_is_an_error_that_says_so(self, tmp_path):
        (tmp_path / "x.json.gz").write_bytes(gzip.compress(b"{}"))
        for kind in (mpwds.IndexedDataset, mpwds.WebDataset, mpwds.ShardListDataset):
            with pytest.raises(mpwds.SpecError, match="x.json.gz is compressed"):
                kind(str(tmp_path / "x.json.gz"))

    def test_a_description_tells_the_lengths_so_that_no_shard_is_opened(self, tmp_path):
        shards = [{"url": f"{n}.tar", "nsamples": n} for n in range(1000)]
        (tmp_path / "x.json").write_text(json.dumps({"wids_version": 1, "shardlist": shards}))
        assert len(mpwds.IndexedDataset(tmp_path / "x.json")) == 499500

    @pytest.mark.parametrize("shuffle", ["global", "chunked", "shards", False])
    def test_both_forms_of_a_description_give_the_same_samples(self, describe, shuffle):
        text, binary = (
            mpwds.IndexedDataset(describe(name, offsets=True), shuffle, chunksize=3)
            for name in ("x.json", "x.shardindex")
        )
        for _ in range(2):
            assert list(text) == list(binary)
        assert [text[number] for number in range(11)] == [binary[number] for number in range(11)]
        assert list(text[2:9]) == list(binary[2:9])
        assert binary.source.stream().describe(5) == text.source.stream().describe(5)

    def test_workers_map_the_binary_form_and_the_description_saves_them_the_headers(self, describe, tmp_path):
        dataset = mpwds.IndexedDataset(describe("x.shardindex", offsets=True), "global")
        assert len(cloudpickle.dumps(dataset)) < 5000
        batches = dataset.decode().to_tuple("cls").batched(2)
        with mpwds.MultiLoader(batches, workers=2, start_method="spawn") as loader:
            assert sorted(number for (numbers,) in loader for number in numbers.tolist()) == list(range(11))
        assert not (tmp_path / ".mpwds").exists()

    def test_mds_datasets_of_both_versions(self, tmp_path):
        for version in (1, 2):
            write_mds(tmp_path / f"{version}", version)
            dataset = mpwds.IndexedDataset(tmp_path / f"{version}", "global")
            assert sorted(classes(dataset)) == list(range(5))
            assert int(dataset[3]["cls"]) == 3

    def test_its_samples_are_those_of_webdataset(self, tar_shards):
        expected = list(mpwds.WebDataset(tar_shards))
        for sample in expected:
            del sample["__local_path__"]
        assert list(mpwds.IndexedDataset(tar_shards)) == expected

    def test_a_map_style_dataset(self):
        assert mpwds.IndexedDataset(np.arange(10, 20))[3] == 13

    def test_a_pipeline_of_tar_shards_with_its_stages_and_seed(self, tar_shards):
        pipeline = mpwds.WebDataset(tar_shards, shardshuffle=True, seed=7).decode().to_tuple("cls")
        dataset = mpwds.IndexedDataset(pipeline, "global")
        assert dataset[10] == (10,)
        call = f"IndexedDataset({tar_shards!r}, shuffle='global')"
        assert str(dataset).startswith(f"{call}\n    .decode()\n    .to_")
        assert dataset.given_seed == 7

    def test_a_pipeline_that_deals_shards_out(self, tar_shards):
        parts = mpwds.SimpleShardList(tar_shards), mpwds.split_by_node, mpwds.split_by_worker
        pipeline = mpwds.DataPipeline(*parts, mpwds.tarfile_to_samples())
        assert classes(mpwds.IndexedDataset(pipeline)) == list(range(11))

    def test_a_pipeline_of_a_list_or_of_another_dataset(self):
        assert mpwds.IndexedDataset(mpwds.DataPipeline(range(5)).map(abs))[3] == 3
        first = mpwds.IndexedDataset(Letters(1, 2)).map(lambda sample: sample["__key__"])
        assert list(mpwds.IndexedDataset(first)) == ["a0", "b0", "b1"]
        assert list(mpwds.IndexedDataset(mpwds.DataPipeline(first).map(str.upper))) == ["A0", "B0", "B1"]

    def test_a_pipeline_of_a_dataset_with_epochs_of_its_own(self, tmp_path):
        write_mds(tmp_path, 1)
        first = mpwds.StreamingDataset(None, str(tmp_path), False, {"cls": int}).map(lambda row: row["cls"])
        dataset = mpwds.IndexedDataset(mpwds.DataPipeline(first).map(lambda number: 2 * number))
        assert list(dataset) == [0, 2, 4, 6, 8]

    def test_the_samples_that_another_dataset_chose(self):
        whole = mpwds.IndexedDataset(Letters(1, 2))
        for part in (whole[:0:-1], whole.select([2, 1])):
            named = part.map(lambda sample: sample["__key__"])
            assert list(mpwds.IndexedDataset(named)) == ["b1", "b0"]
            shuffled = mpwds.IndexedDataset(named, "global")
            assert (len(shuffled), sorted(shuffled), shuffled[0]) == (2, ["b0", "b1"], "b1")


def test_a_pipeline_that_iterates_itself_has_no_numbers():
    class Negated(mpwds.DataPipeline):
        def __iter__(self):
            return (-element for element in super().__iter__())

    for pipeline in (Negated(range(3)), mpwds.DataPipeline(Negated(range(3))).map(abs)):
        with pytest.raises(TypeError, match="the elements of Negated have no numbers"):
            mpwds.IndexedDataset(pipeline)


def test_mds_shards_are_not_read_by_ranges(tmp_path):
    write_mds(tmp_path, 2)
    with pytest.raises(ValueError, match="Its shards are fetched whole: leave out remote=True"):
        mpwds.IndexedDataset(tmp_path, remote=True)


class TestUrls:
    def test_copies_of_tar_shards_are_fetched_once(self, tar_shards, tmp_path, tmp_path_factory, serve):
        url, web = serve(tmp_path)
        cache = tmp_path_factory.mktemp("cache")
        for _ in range(2):
            with mpwds.IndexedDataset(f"{url}/x-{{0..2}}.tar", "global", cache_dir=cache) as dataset:
                assert sorted(classes(dataset)) == list(range(11))
                assert int(dataset[7]["cls"]) == 7
        assert sorted(path for _, path, _ in web.requests) == ["/x-0.tar", "/x-1.tar", "/x-2.tar"]

    @pytest.mark.parametrize("threads", [1, 4])
    def test_with_remote_just_the_samples_asked_for_are_read(self, describe, tmp_path, serve, threads):
        describe("x.json", offsets=True)
        url, web = serve(tmp_path)
        dataset = mpwds.IndexedDataset(f"{url}/x.json", "global", remote=True, threads=threads)
        assert int(dataset[9]["cls"]) == 9
        assert {path for _, path, _ in web.requests} == {"/x.json", "/x-2.tar"}
        assert sorted(classes(dataset)) == list(range(11))

    @pytest.mark.parametrize("version", [1, 2])
    def test_each_mds_dataset_is_fetched_to_a_folder_of_its_own(self, tmp_path, serve, version):
        cache = tmp_path / "cache"
        for name in ("one", "other"):
            write_mds(tmp_path / name, version)
            url, _ = serve(tmp_path)
            assert classes(mpwds.IndexedDataset(f"{url}/{name}/", cache_dir=cache)) == list(range(5))
        assert len([path for path in cache.rglob("*") if path.suffix == ".mds"]) == 2


def test_texts_of_a_pipeline_are_its_elements():
    pipeline = mpwds.DataPipeline(["a.jpg", "b.jpg"]).map(len)
    assert list(mpwds.IndexedDataset(pipeline)) == list(pipeline) == [5, 5]
