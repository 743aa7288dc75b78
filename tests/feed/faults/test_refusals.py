"""What does not fit together is refused, with both sides named."""

import pytest

import mpwds
from mpwds.feed import wire
from mpwds.loader.resume.description import fingerprint
from tests.feed.faults.checking import at, rows, undisturbed, wait_for_status, warned
from tests.feed.serving import ServerProcess, delivered, free_port, turned_away


def fingerprints(*datasets):
    return [fingerprint(dataset) for dataset in datasets]


def test_another_version_of_the_protocol_is_refused(monkeypatch):
    with ServerProcess(rows(), workers=1) as server:
        monkeypatch.setattr(wire, "VERSION", 7)
        with pytest.raises(
            mpwds.MpwdsError, match=r"speaks version 2 of the feed, this trainer \[7\]"
        ) as caught:
            mpwds.RemoteLoader(server.url)
        assert server.url in str(caught.value)
        monkeypatch.undo()
        with mpwds.RemoteLoader(server.url, output="numpy") as loader:
            assert delivered(loader) == undisturbed(1)[0]


def come_back_with_another_dataset(server, other):
    """Kills a server and starts one with another dataset at its place, which the caller ends."""
    server.kill()
    other.append(ServerProcess(rows(batchsize=5), server.url, workers=1).wait_until_ready())


@pytest.mark.slow
@pytest.mark.parametrize("when", ["in an epoch", "while the loader is closed"])
def test_a_server_that_comes_back_with_another_dataset_is_refused(when):
    other = []
    with ServerProcess(rows(), f"tcp://127.0.0.1:{free_port()}", workers=1) as server:
        with mpwds.RemoteLoader(server.url, output="numpy", server_timeout=600) as loader, warned():
            happen = at({10: lambda: come_back_with_another_dataset(server, other)})
            try:
                with pytest.raises(mpwds.MpwdsError, match="another dataset") as caught:
                    if when == "in an epoch":
                        delivered(loader, happen)
                    else:
                        delivered(loader)
                        loader.close()
                        happen(10)
                        delivered(loader)
                wait_for_status(other[0], lambda figures: not figures["clients"], "the trainer to leave")
                assert "is silent" not in other[0].log
            finally:
                other[0].__exit__()
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
