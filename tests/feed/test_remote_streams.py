"""Streams that servers carry: the order, and the states, are those of local workers."""

import itertools
import json
import warnings

import pytest

import mpwds
from tests.feed.faults.checking import kill_worker, warned
from tests.feed.serving import ServerProcess, bits, delivered, large, locally, numbers, served
from tests.marks import slow

pytestmark = pytest.mark.usefixtures("nothing_left")

STREAMS = 12
MODES = (None, "drop", "pad", "wrap")


def uneven():
    """Streams of other lengths, which are not known."""
    numbers = mpwds.DataPipeline(range(300), seed=7).shuffle(16).select(lambda n: n % STREAMS < 9 or n % 5)
    return numbers.batched(3)


def remote(urls, workers=None, **options):
    return mpwds.RemoteLoader(urls, workers, **{"output": "numpy", "streams": STREAMS, **options})


@pytest.mark.parametrize(
    ("dataset", "even"), [*((uneven(), even) for even in MODES), (large(), None), (large(), "wrap")]
)
def test_the_order_is_that_of_local_workers(dataset, even):
    whole = locally(dataset, 1, epochs=2, streams=STREAMS, even=even)
    with served(dataset, workers=3) as one, served(dataset, workers=2) as other:
        for urls, workers in (([one.url], 1), ([one.url], 3), ([one.url, other.url], None)):
            with remote(urls, workers, even=even) as loader:
                assert [delivered(loader) for _ in range(2)] == whole


@pytest.mark.parametrize("even", [None, "pad", *slow("drop", "wrap")])
def test_local_and_remote_workers_carry_them_together(even):
    dataset = uneven()
    whole = locally(dataset, 1, streams=STREAMS, even=even)[0]
    options = {"output": "numpy", "streams": STREAMS, "even": even, "start_method": "fork"}
    with served(dataset, workers=2) as server:
        with mpwds.MultiLoader(dataset, 2, remote=server.url, **options) as loader:
            assert loader.workers == 4
            assert delivered(loader) == whole


@pytest.mark.parametrize("even", [None, "wrap", *slow("drop", "pad")])
def test_a_state_moves_between_local_and_remote_workers(even):
    dataset = uneven()
    whole = locally(dataset, 1, streams=STREAMS, even=even)[0]
    options = {"output": "numpy", "streams": STREAMS, "even": even}
    got, state = [], None
    with served(dataset, workers=3) as server:
        for turn in itertools.count():
            loader = (
                remote(server.url, 1 + turn % 3, even=even)
                if turn % 2
                else mpwds.MultiLoader(dataset, turn % 3, **options)
            )
            with loader:
                if state is not None:
                    loader.load_state_dict(json.loads(json.dumps(state)))
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message=".* had nothing left")
                    batches = list(itertools.islice(loader, 17))
                got += [bits(batch) for batch in batches]
                state = loader.state_dict()
            if len(batches) < 17:
                break
    assert got == whole


def test_in_any_order_a_server_that_is_free_takes_the_next_stream():
    dataset = uneven()
    with served(dataset, workers=2) as server, remote(server.url, in_order=False) as loader:
        assert sorted(delivered(loader)) == sorted(locally(dataset, 1, streams=STREAMS)[0])


def test_rows_that_stages_after_the_loader_hold_are_made_again_by_servers():
    dataset = large()

    def rebatched(loader):
        return loader.rebatched(6, shuffle=30)

    with mpwds.MultiLoader(dataset, 2, streams=STREAMS, output="numpy") as loader:
        whole = delivered(rebatched(loader))
    with served(dataset, workers=3) as server:
        with remote(server.url, 1) as first, remote(server.url, 2) as second:
            begun, other = rebatched(first), rebatched(second)
            got = [bits(batch) for batch in itertools.islice(begun, 7)]
            other.load_state_dict(begun.state_dict())
            assert got + delivered(other) == whole


@pytest.mark.parametrize(
    ("on_server_loss", "even"),
    [
        ("move", "wrap"),
        ("wait", "pad"),
        *(pytest.param("wait", even, marks=pytest.mark.slow) for even in MODES if even != "pad"),
        *(pytest.param("move", even, marks=pytest.mark.slow) for even in MODES[:3]),
    ],
)
def test_a_server_that_is_killed_changes_nothing(on_server_loss, even):
    dataset = large(length=240)
    whole = locally(dataset, 1, streams=STREAMS, even=even)[0]
    with ServerProcess(dataset, workers=2) as one, ServerProcess(dataset, workers=2) as other:
        options = {"even": even, "on_server_loss": on_server_loss}
        with remote([one.url, other.url], **options) as loader, warned() as texts:
            got = []
            for number, batch in enumerate(loader):
                got.append(bits(batch))
                if number == 9:
                    other.start_again() if on_server_loss == "wait" else other.kill()
    assert got == whole
    assert on_server_loss == "move" or not any("take over" in text for text in texts)


def test_the_only_stream_moves_from_a_server_that_is_killed():
    dataset = large(length=120)
    whole = locally(dataset, 1, streams=1)[0]
    with ServerProcess(dataset, workers=1) as one, ServerProcess(dataset, workers=1) as other:
        with remote([one.url, other.url], streams=1, on_server_loss="move") as loader:
            got = []
            with warned():
                for number, batch in enumerate(loader):
                    got.append(bits(batch))
                    if number == 5:
                        one.kill()
    assert got == whole


def test_a_worker_that_is_killed_there_goes_on_with_all_its_streams():
    dataset = large(length=240)
    whole = locally(dataset, 1, streams=STREAMS)[0]
    with ServerProcess(dataset, workers=2) as server, remote(server.url) as loader:
        got = []
        with warned() as texts:
            for number, batch in enumerate(loader):
                got.append(bits(batch))
                if number == 20:
                    kill_worker(server)
    assert got == whole
    assert "A new process took its place" in texts[0]


def test_the_length_is_that_of_a_local_loader():
    dataset = mpwds.DataPipeline(range(100)).batched(3)
    with served(dataset, workers=3) as server:
        for even in MODES:
            with remote(server.url, even=even) as loader:
                local = mpwds.MultiLoader(dataset, 1, streams=STREAMS, even=even)
                assert len(loader) == len(local) == len(list(loader))


def test_what_divides_itself_is_refused():
    dataset = mpwds.DataPipeline(lambda: iter(range(9))).map(abs)
    with served(dataset) as server:
        with pytest.raises(TypeError, match="lambda.* divides itself among ranks and workers"):
            remote(server.url)


def test_more_workers_than_streams_are_refused():
    with served(numbers(), workers=3) as server:
        with pytest.raises(ValueError, match="3 workers for 2 streams of this rank"):
            remote(server.url, 3, streams=2)
        with remote(server.url, streams=2) as loader:
            assert loader.workers == 2
