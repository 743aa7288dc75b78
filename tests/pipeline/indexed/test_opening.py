import pytest

import mpwds
from mpwds.storage.streams.patterns import expand_urls
from tests.pipeline.indexed.letters import Letters


def classes(dataset):
    return [int(sample["cls"]) for sample in dataset]


class TestSources:
    def test_a_name_with_braces_a_list_of_names_or_a_folder(self, tar_shards, tmp_path):
        for source in (tar_shards, expand_urls(tar_shards), tmp_path, f"{tmp_path}/", f"file:{tmp_path}/"):
            assert classes(mpwds.IndexedDataset(source)) == list(range(11))

    def test_its_samples_are_those_of_webdataset(self, tar_shards):
        expected = list(mpwds.WebDataset(tar_shards))
        for sample in expected:
            del sample["__local_path__"]
        assert list(mpwds.IndexedDataset(tar_shards)) == expected

    def test_shards_of_ones_own(self):
        assert mpwds.IndexedDataset(Letters(1, 2))[1]["__key__"] == "b0"

    def test_a_map_style_dataset(self):
        assert mpwds.IndexedDataset({0: "zero", 1: "one"})[1] == "one"

    def test_a_pipeline_of_tar_shards_with_its_stages_and_seed(self, tar_shards):
        pipeline = mpwds.WebDataset(tar_shards, shardshuffle=True, seed=7).decode().to_tuple("cls")
        dataset = mpwds.IndexedDataset(pipeline, "global")
        assert dataset[10] == (10,)
        assert str(dataset).startswith(
            f"IndexedDataset({tar_shards!r}, shuffle='global')\n    .decode()\n    .to_"
        )
        assert dataset._seed == 7

    def test_a_pipeline_that_deals_shards_out(self, tar_shards):
        parts = mpwds.SimpleShardList(tar_shards), mpwds.split_by_node, mpwds.split_by_worker
        assert classes(mpwds.IndexedDataset(mpwds.DataPipeline(*parts, mpwds.tarfile_to_samples()))) == list(
            range(11)
        )

    def test_a_pipeline_of_a_list_or_of_another_dataset(self):
        assert mpwds.IndexedDataset(mpwds.DataPipeline(range(5)).map(abs))[3] == 3
        first = mpwds.IndexedDataset(Letters(1, 2)).map(lambda sample: sample["__key__"])
        assert list(mpwds.IndexedDataset(first)) == ["a0", "b0", "b1"]
        assert list(mpwds.IndexedDataset(mpwds.DataPipeline(first).map(str.upper))) == ["A0", "B0", "B1"]


class TestRefusals:
    def test_of_stages_that_do_not_make_one_of_one(self, tar_shards):
        with pytest.raises(
            TypeError, match=r"shuffle\(100\) does not make one element of one.*shuffle=\"global\""
        ):
            mpwds.IndexedDataset(mpwds.WebDataset(tar_shards).shuffle(100).decode())

    def test_of_selected_members(self, tar_shards):
        with pytest.raises(TypeError, match="without select_files and rename_files"):
            mpwds.IndexedDataset(mpwds.WebDataset(tar_shards, select_files=str.isascii))

    def test_of_repeated_pipelines(self):
        with pytest.raises(TypeError, match=r"call repeat\(2\) behind it"):
            mpwds.IndexedDataset(mpwds.DataPipeline(range(3)).repeat(2))

    def test_of_shards_drawn_at_random(self, tar_shards):
        with pytest.raises(TypeError, match="elements of ResampledShards.* have no numbers"):
            mpwds.IndexedDataset(mpwds.WebDataset(tar_shards, resampled=True))

    def test_of_what_can_only_be_iterated(self):
        with pytest.raises(TypeError, match="elements of a generator have no numbers"):
            mpwds.IndexedDataset(n for n in range(3))

    def test_of_shards_that_are_not_there(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="x.tar"):
            mpwds.IndexedDataset(tmp_path / "x.tar")[0]
        with pytest.raises(ValueError, match="no shards in"):
            mpwds.IndexedDataset(tmp_path)
