"""What does not fit together is refused, with both sides named."""

import pytest

import mpwds
from mpwds.loader.resume.description import fingerprint
from tests.feed.faults.checking import rows, undisturbed, wait_for_status, warned
from tests.feed.serving import ServerProcess, delivered, turned_away


def fingerprints(*datasets):
    return [fingerprint(dataset) for dataset in datasets]


@pytest.mark.slow
def test_a_server_that_has_another_dataset_when_a_closed_loader_comes_back_is_refused():
    with ServerProcess(rows(), workers=1) as server:
        with mpwds.RemoteLoader(server.url, output="numpy", server_timeout=600) as loader, warned():
            assert delivered(loader) == undisturbed(1)[0]
            loader.close()
            server.kill()
            with ServerProcess(rows(batchsize=5), server.url, workers=1) as other:
                with pytest.raises(mpwds.MpwdsError, match="another dataset") as caught:
                    delivered(loader)
                wait_for_status(other, lambda figures: not figures["clients"], "the trainer to leave")
                assert "is silent" not in other.log
        for name in (server.url, *fingerprints(rows(), rows(batchsize=5))):
            assert name in str(caught.value)


@pytest.mark.slow
def test_a_dataset_beside_another_one_on_a_server_is_refused():
    with ServerProcess(rows(), workers=1) as server:
        with pytest.raises(mpwds.MpwdsError, match="has another dataset") as caught:
            mpwds.MultiLoader(rows(batchsize=5), workers=1, remote=server.url)
        for name in (server.url, *fingerprints(rows(), rows(batchsize=5))):
            assert name in str(caught.value)


def test_an_address_on_this_machine_without_a_socket_is_named(tmp_path):
    turned_away(f"ipc://{tmp_path}/none", because=f"there is no {tmp_path}/none")
