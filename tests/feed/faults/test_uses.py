"""What loaders do beside iterating, on workers that die: resume anywhere, even epochs, pinned memory."""

import itertools
import json
import os
import subprocess
import sys
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpwds
from tests.fake_cuda import FakeAccess, kept_to_the_rules
from tests.feed.faults.checking import at, kill_worker, rows, undisturbed, warned
from tests.feed.faults.even_ranks import unequal
from tests.feed.serving import ROOT, ServerProcess, bits, delivered, free_port, served

SHORT = 24


@pytest.fixture(scope="module")
def short():
    return undisturbed(2, rows(batches=SHORT), epochs=2)


@pytest.mark.slow
def test_a_state_at_every_position_continues_exactly(memory, short):
    whole, following = short
    with ServerProcess(rows(batches=SHORT), workers=2) as server:
        with mpwds.RemoteLoader(server.url, output="numpy", **memory) as loader:
            for position in range(SHORT):
                loader.set_epoch(0)
                begun = [bits(batch) for batch in itertools.islice(loader, position)]
                loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
                assert begun + delivered(loader) == whole
            assert delivered(loader) == following


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_whatever_dies_when_and_wherever_it_is_continued_all_comes_once(data, short):
    """Workers killed by samples, an epoch left and continued from its state, in a new loader, in any mix."""
    whole, _ = short
    samples = st.integers(0, 4 * SHORT - 1)
    deaths = dict.fromkeys(data.draw(st.lists(samples, max_size=3, unique=True), "killers"), 1)
    stops = data.draw(st.lists(st.integers(0, SHORT), max_size=3).map(sorted), "stops")
    options = {"output": "numpy", "shared_memory": data.draw(st.booleans(), "shared memory")}
    with tempfile.TemporaryDirectory() as folder:
        dataset = rows(batches=SHORT, deaths=deaths, folder=folder)
        with ServerProcess(dataset, workers=2) as server, warned():
            got, state = [], None
            for stop in [*stops, SHORT]:
                with mpwds.RemoteLoader(server.url, **options) as loader:
                    if state is not None:
                        loader.load_state_dict(state)
                    for batch in itertools.islice(loader, stop - len(got)):
                        got.append(bits(batch))
                    state = loader.state_dict() if stop < SHORT else None
            assert got == whole


@pytest.mark.slow
def test_stages_behind_the_loader_see_nothing_of_a_death(memory):
    def behind(loader, happen=None):
        return delivered(loader.rebatched(7, shuffle=40, seed=1), happen)

    with mpwds.MultiLoader(rows(), workers=2, output="numpy", start_method="fork") as loader:
        expected = behind(loader)
    with ServerProcess(rows(), workers=2) as server, warned():
        with mpwds.RemoteLoader(server.url, output="numpy", **memory) as loader:
            moments = {5: lambda: kill_worker(server), 15: lambda: kill_worker(server, 1)}
            assert behind(loader, at(moments)) == expected


@pytest.mark.parametrize("works", ["when asked", "when awaited"])
def test_batches_in_pinned_memory_are_whole_when_the_device_reads_them(memory, works):
    expected = undisturbed(2, output="torch", epochs=2)
    with kept_to_the_rules(works) as cuda, served(rows()) as server:
        kind = type("RemoteLoader", (mpwds.RemoteLoader,), {"_cuda": FakeAccess(cuda)})
        with kind(server.url, pin_memory=True, **memory) as loader:
            for epoch in range(2):
                copies = []
                for images, labels in loader:
                    assert cuda.is_pinned(images)
                    copies.append((cuda.copy(images), labels.clone()))
                    del images, labels
                cuda.run()
                assert [bits(copy) for copy in copies] == expected[epoch]


@pytest.mark.slow
@pytest.mark.parametrize("even", ["drop", "pad", "wrap"])
def test_ranks_have_equal_epochs_whatever_dies(even, tmp_path):
    locally = ranks_of_a_job(even)
    deaths = dict.fromkeys([20, 77, 131], 1)
    with ServerProcess(unequal(deaths=deaths, folder=tmp_path), workers=4) as server:
        remotely = ranks_of_a_job(even, server.url)
    assert len(list(tmp_path.iterdir())) == 3
    assert remotely == locally
    assert [epoch.split()[0] for epoch in locally[0]] == [epoch.split()[0] for epoch in locally[1]]


def test_ranks_whose_servers_give_them_unequal_workers_have_equal_epochs():
    """The workers' last batches are not full, so the numbers of batches follow from those of the workers."""
    dataset = mpwds.DataPipeline(range(404)).batched(4)
    with served(dataset, workers=3) as server:
        epochs = ranks_of_a_job("drop", server.url)
    numbers = [[int(epoch.split()[0]) for epoch in rank] for rank in epochs]
    assert numbers == [[51, 51], [51, 51]]


def ranks_of_a_job(*arguments, ranks=2):
    """The lines that each rank prints."""
    place = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.feed.faults.even_ranks", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **place, "RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate(timeout=600)[0] for process in started]
    assert [process.returncode for process in started] == [0] * ranks
    return [output.splitlines() for output in outputs]
