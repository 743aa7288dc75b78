import numpy as np
import pytest
import torch

import mpwds
from mpwds.cli.demo.training import ImageTask, small_cnn, train


@pytest.mark.parametrize("size", [8, 9, 31, 32, 64, 100, 224])
def test_the_network_takes_images_of_any_size(size):
    assert small_cnn(classes=7, size=size)(torch.zeros(2, 3, size, size)).shape == (2, 7)


@pytest.mark.slow
def test_the_accuracy_is_measured_on_the_held_out_samples():
    def batches(count, label):
        images = np.full((count, 3, 8, 8), 200 * label, np.uint8)
        return [(images, np.full(count, label))]

    task = ImageTask(
        train=mpwds.DataPipeline(batches(30, 0) + batches(30, 1)),
        held_out=mpwds.DataPipeline([*batches(3, 1), (batches(1, 0)[0][0], np.array([1]))]),
        train_samples=60,
        held_out_samples=4,
        names=["dark", "bright"],
        size=8,
        shards=1,
    )
    outcome = train(task, epochs=20, workers=0, lr=3e-3)
    assert outcome.accuracy == 0.75
    assert outcome.stats.batches == 20 * 2
