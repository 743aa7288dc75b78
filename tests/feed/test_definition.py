"""The definition of a dataset that a server tells its trainers."""

import pytest

from mpwds.feed.definition import RemoteSource


def test_a_dataset_of_a_server_cannot_be_iterated_here():
    told = {"description": ["range(9)"], "in_any_order": False, "unaddressed": None}
    with pytest.raises(RuntimeError, match="this dataset is on its servers: only a RemoteLoader can iterate"):
        RemoteSource(told, lambda context: 9).stream()
