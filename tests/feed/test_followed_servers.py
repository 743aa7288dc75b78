"""Servers that come and go while a trainer runs: their addresses are looked up, and streams move to them."""

import contextlib
import os
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout  # another one before Python 3.11

import pytest

import mpwds
from mpwds.feed import wire
from mpwds.feed.client import addresses, sharing
from tests.feed.clients import Client
from tests.feed.faults.checking import rows, undisturbed, wait_for_status, warned
from tests.feed.serving import ServerProcess, bits, delivered, served
from tests.loader.faults.processes import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")

STREAMS = 12


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(addresses, "LOOK_EVERY_S", 0.05)


class Listed:
    """A file with the addresses of servers."""

    def __init__(self, folder):
        self.path = folder / "servers.txt"
        self.write()

    def write(self, *servers):
        new = self.path.with_suffix(".new")
        new.write_text("# servers\n" + "".join(f"{server.url}\n" for server in servers))
        os.replace(new, self.path)

    @property
    def url(self):
        return f"file:{self.path}"


def follow(urls, **options):
    return mpwds.RemoteLoader(urls, **{"output": "numpy", "streams": STREAMS, **options})


def until_there_are(workers, loader, batches):
    """Batches until the loader has so many workers."""
    got = []
    while len(loader.stats().workers) < workers:
        got.append(bits(next(batches)))
        time.sleep(0.02)
    return got


def begin(loader):
    """An epoch, and its first batches."""
    batches = iter(loader)
    return batches, [bits(next(batches)) for _ in range(20)]


def rest_of(batches):
    """The rest of an epoch, whose warnings of losses are of no interest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [bits(batch) for batch in batches]


def has_made(loader, server):
    """True once counters of a server, which come every second, tell of batches."""
    return any(worker.server == server.url and worker.batches for worker in loader.stats("start").workers)


def is_whole(got, dataset, in_order=True, **options):
    """True if an epoch is that of local workers, or has the same batches."""
    [whole] = undisturbed(1, dataset, **{"streams": STREAMS, **options})
    return (got if in_order else sorted(got)) == (whole if in_order else sorted(whole))


@pytest.mark.parametrize("even", [None, "pad"])
def test_a_server_that_comes_gets_work_and_one_that_goes_hands_it_over(even, tmp_path):
    listed, dataset = Listed(tmp_path), rows(400, 2)
    whole = undisturbed(1, dataset, 2, streams=STREAMS, even=even)
    with ServerProcess(dataset, workers=2) as first:
        listed.write(first)
        with follow(listed.url, even=even) as loader:
            batches, got = begin(loader)
            with ServerProcess(dataset, workers=2) as second:
                listed.write(first, second)
                got += until_there_are(4, loader, batches)
                got += [bits(next(batches)) for _ in range(30)]
                with warned() as texts:
                    first.kill()
                    listed.write(second)
                    got += [bits(next(batches)) for _ in range(100)]
                assert len(texts) == 1, texts
                assert f"{first.url} is lost" in texts[0]
                assert "other workers take over its streams" in texts[0]
                got += [bits(batch) for batch in batches]
                assert [got, delivered(loader)] == whole
                wait_until(lambda: has_made(loader, second), "the second server's counters")
                assert "no answer" not in str(loader.stats())


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_it_goes_on_when_all_servers_were_away(workers, in_order, tmp_path):
    listed, dataset = Listed(tmp_path), rows(100, 2)
    with ServerProcess(dataset, workers=2) as first:
        listed.write(first)
        with follow(listed.url, in_order=in_order) as loader:
            batches, got = begin(loader)
            first.kill()
            listed.write()
            with ServerProcess(dataset, workers=workers) as second:
                listed.write(second)
                got += [bits(batch) for batch in batches]
    assert is_whole(got, dataset, in_order)


def test_a_smaller_server_takes_the_place_of_a_larger_one(tmp_path):
    listed, dataset = Listed(tmp_path), rows(100, 2)
    with ServerProcess(dataset, workers=2) as first:
        listed.write(first)
        with follow(listed.url, workers=2) as loader:
            batches, got = begin(loader)
            first.kill()
            listed.write()
            with ServerProcess(dataset, workers=1) as second:
                listed.write(second)
                got += rest_of(batches)
    assert is_whole(got, dataset)


def test_a_rank_waits_until_there_are_workers_for_all_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    listed, dataset = Listed(tmp_path), rows(20, 2)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(served(dataset, workers=2)) for _ in range(4)]
        listed.write(servers[0])
        threads = stack.enter_context(ThreadPoolExecutor(1))
        made = threads.submit(follow, listed.url)
        with pytest.raises(FutureTimeout):
            made.result(1)
        listed.write(*servers)
        with made.result() as loader:
            assert loader.workers >= 1  # more, if it saw every server before the first welcomed it


@pytest.mark.parametrize("rank", range(4))
def test_servers_of_one_worker_each_serve_as_many_ranks_that_take_one_server(rank, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "4")
    listed = Listed(tmp_path)
    with contextlib.ExitStack() as stack:
        listed.write(*[stack.enter_context(served(rows(20, 2), workers=1)) for _ in range(4)])
        with follow(listed.url, max_servers=1) as loader:
            assert loader.workers == 1


def test_ranks_divide_servers_that_have_fewer_workers_than_ranks_connect_to_them(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    listed, dataset = Listed(tmp_path), rows(20, 2)
    with contextlib.ExitStack() as stack:
        listed.write(*[stack.enter_context(served(dataset, workers=1)) for _ in range(4)])
        workers = []
        for rank in range(4):
            monkeypatch.setenv("RANK", str(rank))
            workers.append(stack.enter_context(follow(listed.url)).workers)
        assert workers == [1, 1, 1, 1]


def test_a_loader_takes_its_workers_from_servers_that_answer(tmp_path):
    listed, dataset = Listed(tmp_path), rows(20, 2)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(served(dataset, workers=2)) for _ in range(3)]
        listed.write(*servers)
        path = tmp_path / "servers.txt"
        path.write_text("tcp://127.0.0.1:9\n" + path.read_text())
        with follow(listed.url, workers=1) as loader:
            assert loader.workers == 1
            assert is_whole([bits(batch) for batch in loader], dataset)
            connections = loader._remote.connected().connections
            wait_until(lambda: sum(each.is_up for each in connections) == 1, "the others to be left")


def test_a_loader_begins_with_all_servers_that_answer_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("mpwds.feed.client.connections._OTHERS_S", 60.0)
    listed, dataset = Listed(tmp_path), rows(20, 2)
    with contextlib.ExitStack() as stack:
        listed.write(*[stack.enter_context(served(dataset, workers=2)) for _ in range(4)])
        for options, workers in (({}, 8), ({"workers": 5}, 5)):
            with warned() as texts, follow(listed.url, streams=None, **options) as loader:
                assert loader.workers == workers
            assert texts == []


def test_a_member_of_a_group_takes_the_workers_that_the_group_has(tmp_path):
    listed = Listed(tmp_path)
    with served(rows(20, 2), workers=4) as server:
        listed.write(server)
        options = {"streams": None, "group": "sweep"}
        with follow(listed.url, workers=2, **options), follow(listed.url, workers=1, **options) as second:
            assert second.workers == 2


def test_of_fewer_workers_than_were_asked_for_the_user_hears(tmp_path):
    listed = Listed(tmp_path)
    with served(rows(20, 2), workers=2) as server:
        listed.write(server)
        with warned() as texts, follow(listed.url, streams=None, workers=3) as loader:
            assert loader.workers == 2
    (text,) = texts
    assert "the servers that answered have 2 workers, and workers=3: the loader begins with these" in text


@pytest.mark.parametrize(
    ("urls", "options", "is_known"),
    [
        ("listed", {}, False),
        ("listed", {"workers": 1}, False),
        ("fixed", {}, False),
        ("fixed", {"workers": 1}, True),
        ("listed", {"streams": 4}, True),
    ],
)
def test_an_even_length_is_known_if_all_ranks_surely_have_equal_workers(
    urls, options, is_known, tmp_path, monkeypatch
):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    listed = Listed(tmp_path)
    with served(mpwds.DataPipeline(range(404)).batched(4), workers=2) as server:
        listed.write(server)
        url = {"listed": listed.url, "fixed": server.url}[urls]
        with follow(url, even="drop", **{"streams": None, **options}) as loader:
            if is_known:
                assert len(loader) > 0
            else:
                with pytest.raises(TypeError, match="servers may give another rank another number"):
                    len(loader)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_server_takes_the_place_of_another(in_order, tmp_path):
    """The trainer waits for nothing meanwhile: it hears of both between two batches."""
    listed, dataset = Listed(tmp_path), rows(200, 2)
    with ServerProcess(dataset, workers=1) as first, ServerProcess(dataset, workers=1) as stays:
        listed.write(first, stays)
        with follow(listed.url, min_servers=2, in_order=in_order) as loader:
            batches, got = begin(loader)
            first.kill()
            with ServerProcess(dataset, workers=1) as second:
                listed.write(stays, second)
                connections = loader._remote.connected()
                wait_until(lambda: len(connections.slots()) == 2, "the trainer to reach the second server")
                got += [bits(batch) for batch in batches]
                wait_until(lambda: has_made(loader, second), "the second server's counters")
    assert is_whole(got, dataset, in_order)


@pytest.mark.parametrize("even", [None, "drop"])
def test_servers_and_workers_of_the_trainer_carry_streams_together(even, tmp_path):
    listed, dataset = Listed(tmp_path), rows(200, 2)
    with ServerProcess(dataset, workers=2) as server:
        listed.write(server)
        options = {"output": "numpy", "streams": STREAMS, "even": even, "start_method": "fork"}
        with mpwds.MultiLoader(dataset, 1, remote=listed.url, **options) as loader:
            batches, got = begin(loader)
            server.kill()
            got += rest_of(batches)
    assert is_whole(got, dataset, even=even)


def test_a_loss_is_raised_where_the_user_said_so(tmp_path):
    dataset = rows(200, 2)
    with ServerProcess(dataset, workers=1) as first, ServerProcess(dataset, workers=1) as second:
        with follow([first.url, second.url], on_server_loss="raise") as loader:
            batches = iter(loader)
            for _ in range(20):
                next(batches)
            first.kill()
            with pytest.raises(mpwds.ServerLost, match="in the middle of an epoch"):
                list(batches)


def test_a_server_with_another_dataset_gets_no_work_and_the_user_hears_of_it(tmp_path):
    listed, dataset = Listed(tmp_path), rows(200, 2)
    with ServerProcess(dataset, workers=1) as first, ServerProcess(rows(100, 3), workers=2) as other:
        listed.write(first)
        with follow(listed.url) as loader, warned() as texts:
            batches, got = begin(loader)
            listed.write(first, other)
            wait_until(lambda: "another dataset" in other.log, "the refusal of the other server")
            got += [bits(batch) for batch in batches]
            assert len(loader.stats().workers) == 1
    assert is_whole(got, dataset)
    assert [text.partition(" refuses: ")[0] for text in texts] == [f"the server {other.url}"]
    assert texts[0].endswith("It gets no work")


def test_of_two_servers_with_different_datasets_the_user_hears_at_once(tmp_path):
    listed, dataset, another = Listed(tmp_path), rows(200, 2), rows(200, 3)
    with ServerProcess(dataset, workers=1) as one, ServerProcess(another, workers=1) as other:
        listed.write(one, other)
        with pytest.raises(mpwds.MpwdsError, match="another dataset|different datasets"):
            follow(listed.url, min_servers=2)
        with warned() as texts, follow(listed.url) as loader:
            servers = loader._remote.connected()
            wait_until(lambda: any(each.refused for each in servers.connections), "the second answer")
            next(iter(loader))
    assert len(texts) == 1
    assert "another dataset" in texts[0]


def test_any_order_gives_every_batch_once(tmp_path):
    listed, dataset = Listed(tmp_path), rows(200, 2)
    with ServerProcess(dataset, workers=2) as first, ServerProcess(dataset, workers=2) as second:
        listed.write(first)
        with follow(listed.url, in_order=False) as loader:
            batches, got = begin(loader)
            listed.write(first, second)
            got += until_there_are(4, loader, batches)
            first.kill()
            got += rest_of(batches)
    assert is_whole(got, dataset, in_order=False)


def test_a_trainer_leaves_a_server_for_another_if_it_may_have_no_more(tmp_path):
    listed, dataset = Listed(tmp_path), rows(200, 2)
    with ServerProcess(dataset, workers=1) as first, ServerProcess(dataset, workers=1) as second:
        listed.write(first)
        with follow(listed.url, max_servers=1) as loader:
            batches, got = begin(loader)
            listed.write(second)
            got += rest_of(batches)
            connections = loader._remote.connected().connections
            assert [connection.url for connection in connections] == [second.url]
        wait_for_status(first, lambda figures: not figures["clients"], "the trainer to leave")
    assert is_whole(got, dataset)


@pytest.mark.parametrize("streams", [STREAMS, None])
@pytest.mark.parametrize("on_loss", ["wait", "raise"])
def test_a_trainer_that_moves_no_parts_leaves_no_server_for_another(on_loss, streams, tmp_path):
    listed, dataset = Listed(tmp_path), rows(200, 2)
    with served(dataset, workers=1) as first, served(dataset, workers=1) as second:
        listed.write(first)
        options = {"streams": streams, "on_server_loss": on_loss, "server_timeout": 5}
        with follow(listed.url, max_servers=1, **options) as loader:
            batches, got = begin(loader)
            servers = loader._remote.connected()
            listed.write(second)
            wait_until(lambda: [each.url for each in servers._shares.values()] == [second.url], "the look-up")
            got += [bits(batch) for batch in batches]
    assert [got] == undisturbed(1, dataset, streams=streams)


@pytest.mark.parametrize("streams", [STREAMS, None])
def test_a_server_that_is_waited_for_may_be_listed_again_when_it_is_back(streams, tmp_path):
    listed, dataset = Listed(tmp_path), rows(200, 2)
    with ServerProcess(dataset, workers=1) as server:
        listed.write(server)
        options = {"streams": streams, "on_server_loss": "wait"}
        with follow(listed.url, server_timeout=60, **options) as loader:
            batches, got = begin(loader)
            servers = loader._remote.connected()
            server.kill()
            listed.write()
            wait_until(lambda: not servers._shares, "the look-up")
            server.start_again()
            listed.write(server)
            got += rest_of(batches)
    assert [got] == undisturbed(1, dataset, streams=streams)


def test_a_server_whose_address_is_gone_stays_while_it_is_up(tmp_path):
    listed, dataset = Listed(tmp_path), rows(200, 2)
    with ServerProcess(dataset, workers=1) as server:
        listed.write(server)
        with follow(listed.url) as loader, warned() as texts:
            batches, got = begin(loader)
            listed.path.unlink()
            time.sleep(0.3)
            listed.write()
            got += [bits(batch) for batch in batches]
    assert is_whole(got, dataset)
    assert texts == []


def test_without_streams_another_server_takes_over_the_part_of_a_lost_one(tmp_path):
    listed, dataset = Listed(tmp_path), rows(200, 2)
    with ServerProcess(dataset, workers=2) as first:
        listed.write(first)
        with follow(listed.url, streams=None) as loader:
            batches, got = begin(loader)
            with ServerProcess(dataset, workers=2) as second:
                listed.write(second)
                first.kill()
                got += [bits(batch) for batch in batches]
    assert [got] == undisturbed(2, dataset)


@pytest.mark.parametrize("options", [{"on_server_loss": "wait"}, {"on_server_loss": "raise"}, {"workers": 2}])
def test_a_rank_that_moves_no_parts_or_has_as_many_workers_as_it_wants_keeps_those_that_another_needs(
    options, tmp_path, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    listed, dataset = Listed(tmp_path), rows(200, 2)
    with served(dataset, workers=1) as one, served(dataset, workers=1) as two:
        [[first, _], _] = sharing.links([one.url, two.url], world_size=2, each=2)
        listed.write([two, one][first])
        with follow(listed.url, server_timeout=5, **options) as loader:
            batches, got = begin(loader)
            servers = loader._remote.connected()
            listed.write(one, two)
            wait_until(lambda: len(servers.slots()) == 2, "the other server")
            for connection in servers.connections:
                servers._handle(connection, {"kind": wire.NEEDED, "ranks": 1})
            assert len(servers.slots()) == 2
            got += [bits(batch) for batch in batches]
    assert [got] == undisturbed(1, dataset, streams=STREAMS)


def test_a_server_that_was_left_to_another_rank_is_asked_again_when_it_is_a_share(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    listed, dataset = Listed(tmp_path), rows(20, 2)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(served(dataset, workers=2)) for _ in range(4)]
        shares = [share.url for share in sharing.shares([server.url for server in servers], 0, 2)]
        left, other = [server for server in servers if server.url not in shares]
        listed.write(left)
        connections = stack.enter_context(follow(listed.url))._remote.connected()
        listed.write(*servers)
        wait_until(lambda: len(connections.slots()) > 2, "the servers that are shares")
        with Client(left.url) as one, Client(left.url) as another:
            for each in (one, another):
                each.welcomed(share=[1, 2], patient=True)
        listed.write(left, other)
        wait_until(
            lambda: any(each.url == left.url and each.is_up for each in connections.connections),
            "its welcome",
        )


@pytest.mark.parametrize("streams", [STREAMS, None])
def test_a_rank_that_lost_all_its_servers_gets_workers_of_another_ranks_servers(
    streams, tmp_path, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    listed, dataset = Listed(tmp_path), rows(200, 2)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(served(dataset, workers=2)) for _ in range(4)]
        shares = [share.url for share in sharing.shares([server.url for server in servers], 0, 2)]
        listed.write(*servers)
        monkeypatch.setenv("RANK", "0")
        loader = stack.enter_context(follow(listed.url, streams=streams, min_servers=2))
        batches, got = begin(loader)
        assert loader.workers == 4
        listed.write(*[server for server in servers if server.url in shares])
        monkeypatch.setenv("RANK", "1")
        with follow(listed.url, streams=streams) as other:
            assert other.workers >= 1
            monkeypatch.setenv("RANK", "0")
            got += rest_of(batches)
    assert [got] == undisturbed(4, dataset, streams=streams)


@pytest.mark.parametrize(("workers", "of_each"), [(1, 1), (3, 2)])
def test_a_rank_takes_no_workers_that_others_need_of_servers_that_give_a_number(
    workers, of_each, tmp_path, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    listed, options = Listed(tmp_path), {"workers": workers, "workers_per_client": of_each}
    with served(rows(20, 2), **options) as one, served(rows(20, 2), **options) as two:
        listed.write(one, two)
        monkeypatch.setenv("RANK", "0")
        with follow(listed.url) as loader, warned() as texts:
            assert loader.workers == of_each
            monkeypatch.setenv("RANK", "1")
            with follow(listed.url) as other:
                assert other.workers == of_each
    assert texts == []


@pytest.mark.parametrize("streams", [STREAMS, None])
def test_a_rank_that_came_before_other_servers_leaves_a_worker_to_the_rank_that_has_none(
    streams, tmp_path, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    listed, dataset = Listed(tmp_path), rows(200, 2)
    with served(dataset, workers=1) as one, served(dataset, workers=1) as two:
        monkeypatch.setenv("RANK", "0")
        [[first, _], _] = sharing.links([one.url, two.url], world_size=2, each=2)
        of_other_rank = [two, one][first]
        listed.write(of_other_rank)
        with follow(listed.url, streams=streams) as loader:
            batches, got = begin(loader)
            listed.write(one, two)
            monkeypatch.setenv("RANK", "1")
            with follow(listed.url, streams=streams) as other:
                assert other.workers == 1
                monkeypatch.setenv("RANK", "0")
                got += rest_of(batches)
    assert [got] == undisturbed(1, dataset, streams=streams)
