import copy
import pickle
import subprocess
import sys

import pytest
import torch.utils.data

from mpwds.pipeline.dataset import DataPipeline
from mpwds.pipeline.indexed.dataset import IndexedDataset
from mpwds.pipeline.sources.webdataset import WebDataset


@pytest.mark.parametrize("workers", [0, 2])
def test_dataloader_reads_each_sample_once(shards, workers):
    dataset = WebDataset(shards, shardshuffle=True).shuffle(5).decode().to_tuple("cls")
    loader = torch.utils.data.DataLoader(dataset, batch_size=3, num_workers=workers)
    assert sorted(int(label) for (labels,) in loader for label in labels) == list(range(20))


def test_dataloaders_fresh_workers_read_the_epoch_that_was_set():
    dataset = DataPipeline(range(20)).shuffle(20)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1)
    epochs = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        epochs.append(list(loader))
    dataset.set_epoch(0)
    assert epochs == [list(dataset), list(dataset)]


def test_stays_of_its_own_type_and_can_be_copied_and_pickled():
    dataset = DataPipeline(range(3)).batched(2)
    for other in (dataset, copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert type(other) is DataPipeline
        assert isinstance(other, DataPipeline)
        assert isinstance(other, torch.utils.data.IterableDataset)
        assert not isinstance(other, WebDataset)
        assert [batch.tolist() for batch in other] == [[0, 1], [2]]


def test_datasets_are_added_as_torchs_are():
    a, b = (DataPipeline(range(n, n + 3)).with_length(3, silent=True) for n in (0, 10))
    both = a + b + a
    assert isinstance(both, torch.utils.data.ChainDataset)
    assert (list(both), len(both)) == ([0, 1, 2, 10, 11, 12, 0, 1, 2], 9)
    indexed = IndexedDataset(range(3)) + IndexedDataset(range(10, 12))
    assert isinstance(indexed, torch.utils.data.ConcatDataset)
    assert [indexed[n] for n in range(len(indexed))] == [0, 1, 2, 10, 11]


def test_torch_is_not_imported_for_it():
    code = "import sys, mpwds; isinstance(mpwds.DataPipeline([1]), int); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=240).returncode == 0
