"""FetchingSetup: what a worker does with the indices that it is given."""

import numpy as np
import pytest

import mpwds
from mpwds.loader.dataloader.task_worker import FetchingSetup
from mpwds.loader.resume.progress import START
from mpwds.pipeline.context import Context


def fetcher(dataset, context=None, **options):
    setup = FetchingSetup(dataset, workers=1, blocks=4, **options)
    return setup.fetcher(setup.samples(context or Context(), START) if setup.iterable else iter(()))


def test_a_batch_of_a_pipeline_is_collated_when_it_is_written():
    rows = [np.zeros(3), np.zeros(3)]
    batch = fetcher(mpwds.DataPipeline(rows).batched(2), iterable=True, batches=False)(None)
    rows[1][:] = 7
    out = np.empty(batch.shape)
    batch.write_into(out)
    assert out.tolist() == [[0, 0, 0], [7, 7, 7]]


def test_a_dataset_of_ours_that_iterates_in_its_own_way_is_told_the_epoch():
    class Epochs(mpwds.DataPipeline):
        def __iter__(self):
            yield self._epoch

    assert fetcher(Epochs(), Context(epoch=3), iterable=True, batches=False)(None) == 3


def test_stop_iteration_of_the_collate_function_is_no_end_of_the_dataset():
    def collate(sample):
        raise StopIteration

    with pytest.raises(StopIteration):
        fetcher(range(5), iterable=True, batches=False, collate_fn=collate)(None)
