"""A fleet: servers on nodes that are killed, and a directory that knows where they are."""

import glob
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from functools import partial
from pathlib import Path

import psutil
import pytest
import ray

import mpwds
from mpwds.cluster import fleet as fleets
from mpwds.cluster.actors import KeyFolder
from mpwds.cluster.engine import pack
from mpwds.cluster.fleet import ServerFleet, servers_in_ray
from mpwds.errors import MpwdsError, SecurityError
from mpwds.feed.client import addresses
from mpwds.imports import load_object
from tests.cluster.conftest import without_ray

PIPELINE = """
import time
import mpwds
from helper import offset

def plus(number):
    return number + offset

dataset = mpwds.DataPipeline(range(40)).map(plus).batched(4)
"""
NUMBERS = list(range(100, 140))


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A dataset in a file that imports another one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("pipeline", "helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    Path("pipeline.py").write_text(PIPELINE)
    Path("helper.py").write_text("offset = 100\n")
    return "pipeline.py:dataset"


@pytest.fixture
def fleet(nodes, source):
    """Two servers, on two nodes."""
    nodes.add(cpus=1)
    nodes.add(cpus=1)
    with ServerFleet(source, servers=2, workers_per_server=1) as fleet:
        wait_until(lambda: len(fleet()) == 2)
        yield fleet


def wait_until(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read(urls, keys):
    with mpwds.RemoteLoader(urls, keys=keys, output="numpy") as loader:
        return sorted(number for batch in loader for number in batch.tolist())


def pid_of(actor):
    return ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))


def directory(fleet):
    return ray.get_actor(fleet.name, fleet.namespace)


def server(fleet, number):
    return ray.get_actor(f"{fleet.name}-server-{number}", fleet.namespace)


def test_trainers_read_from_all_servers_with_the_fleets_keys(fleet):
    assert read(fleet(), fleet.keys) == NUMBERS
    assert len({ray.get(server(fleet, number).__ray_call__.remote(node_of)) for number in (0, 1)}) == 2
    with pytest.raises(SecurityError, match="can be reached from other machines"):
        mpwds.RemoteLoader(fleet())


def node_of(actor):
    return ray.get_runtime_context().get_node_id()


def test_a_killed_server_is_back_at_another_address(fleet):
    before = fleet.servers()
    keys = ray.get(server(fleet, 0).__ray_call__.remote(lambda self: self._keys.path))
    os.kill(pid_of(server(fleet, 0)), signal.SIGKILL)
    wait_until(lambda: len(fleet()) == 2 and fleet.servers()[0] != before[0])
    assert fleet.servers()[1] == before[1]
    assert not os.path.exists(keys)
    assert read(fleet(), fleet.keys) == NUMBERS


def test_the_server_of_a_killed_node_is_back_on_another(nodes, source):
    first = nodes.add(cpus=1)
    with ServerFleet(source, workers_per_server=1) as fleet:
        before = fleet()
        nodes.add(cpus=1)
        nodes.kill(first)
        wait_until(lambda: fleet() not in (before, []))
        assert read(fleet(), fleet.keys) == NUMBERS


def test_a_trainer_follows_a_fleet_and_loses_nothing_with_a_node(nodes, source):
    """Its servers are on other nodes in the end, and each epoch has the order of an undisturbed one."""
    options = {"streams": 4, "output": "numpy"}
    undisturbed = mpwds.MultiLoader(mpwds.DataPipeline(NUMBERS).batched(4), workers=0, **options)
    whole = [batch.tolist() for batch in undisturbed]
    first = nodes.add(cpus=1)
    nodes.add(cpus=1)
    with ServerFleet(source, servers=2, workers_per_server=1) as fleet:
        wait_until(lambda: len(fleet()) == 2)
        before = set(fleet())
        with mpwds.RemoteLoader(fleet.url, min_servers=2, heartbeat_timeout=2, **options) as loader:
            assert [batch.tolist() for batch in loader] == whole
            nodes.add(cpus=1)
            nodes.kill(first)

            def has_moved():
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message=".*: other workers take over its streams")
                    assert [batch.tolist() for batch in loader] == whole
                workers = loader.stats().workers
                return {worker.server for worker in workers if worker.batches} - before

            wait_until(has_moved)


def test_a_fleet_grows_while_its_trainer_waits(nodes, source, monkeypatch):
    monkeypatch.setattr(fleets, "_SCALE_EVERY_S", 0.5)
    monkeypatch.setattr(addresses, "LOOK_EVERY_S", 0.2)
    Path("pipeline.py").write_text(PIPELINE.replace("    return", "    time.sleep(0.02)\n    return"))
    nodes.add(cpus=1)
    nodes.add(cpus=1)
    with ServerFleet(source, servers="auto", workers_per_server=1) as fleet:
        assert len(fleet()) == 1
        with mpwds.RemoteLoader(fleet, streams=4, output="numpy") as loader:

            def both_work():
                assert sorted(number for batch in loader for number in batch.tolist()) == NUMBERS
                workers = loader.stats().workers
                return len({worker.server for worker in workers if worker.batches}) == 2

            wait_until(both_work)


def test_a_server_for_which_there_was_no_room_is_given_up_when_it_is_not_needed(nodes, source, monkeypatch):
    monkeypatch.setattr(fleets, "_SCALE_EVERY_S", 0.5)
    monkeypatch.setattr(addresses, "LOOK_EVERY_S", 0.2)
    Path("pipeline.py").write_text(PIPELINE.replace("    return", "    time.sleep(0.02)\n    return"))
    nodes.add(cpus=1)
    with ServerFleet(source, servers="auto", workers_per_server=1) as fleet:
        with mpwds.RemoteLoader(fleet, streams=4, output="numpy") as loader:
            wait_until(lambda: list(loader) and len(fleet._actors) > 1)
            wait_until(lambda: [time.sleep(0.2) for _ in loader] and len(fleet._actors) == 1)
        assert len(fleet()) == 1


def test_a_later_server_that_cannot_start_is_told_and_given_up(nodes, source, monkeypatch, caplog):
    monkeypatch.setattr(fleets, "_SCALE_EVERY_S", 0.5)
    nodes.add(cpus=2)
    with ServerFleet(source, workers_per_server=1) as fleet, caplog.at_level("WARNING", "mpwds.cluster"):
        fleet._packed = pack({**pickle.loads(fleet._packed), "options": {"client_timeout": -1}})
        fleet._start(1)
        wait_until(lambda: set(fleet._actors) == {0})
        assert read(fleet(), fleet.keys) == NUMBERS
    (told,) = caplog.messages
    assert told.startswith(f"a server of {fleet.url} could not start on ")
    assert "client_timeout" in told


def test_the_fleet_hears_of_all_loaders_of_a_trainer(nodes, source, monkeypatch):
    monkeypatch.setattr(addresses, "LOOK_EVERY_S", 0.2)
    nodes.add(cpus=2)
    with (
        ServerFleet(source, workers_per_server=2) as fleet,
        mpwds.RemoteLoader(fleet, workers=1) as training,
        mpwds.MultiLoader(load_object(source), 1, remote=fleet) as validation,
    ):
        assert len(list(training)) == len(list(validation)) == 10
        wait_until(lambda: len(fleet._ask("figures")) == 2)
        assert all(set(told.servers) <= set(fleet()) for told in fleet._ask("figures").values())


def test_a_killed_directory_learns_the_addresses_again(fleet):
    before = fleet()
    os.kill(pid_of(directory(fleet)), signal.SIGKILL)
    found = []

    def answers():
        try:
            found.append(fleet())
        except ConnectionError:  # trainers keep the addresses that they have
            return False
        return True

    wait_until(lambda: (answers() and found[-1] != before) or len(found) > 20)
    assert all(urls == before for urls in found)


def test_other_programs_of_the_cluster_know_the_fleet_by_its_name(fleet):
    program = (
        "import pickle, sys, mpwds\n"
        "from mpwds.cluster.fleet import servers_in_ray\n"
        "for fleet in (servers_in_ray(sys.argv[1]), pickle.loads(bytes.fromhex(sys.argv[2]))):\n"
        "    with mpwds.RemoteLoader(fleet(), keys=fleet.keys, output='numpy') as loader:\n"
        "        print(sorted(number for batch in loader for number in batch.tolist()))\n"
    )
    words = [sys.executable, "-c", program, fleet.url, pickle.dumps(fleet).hex()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd="/")
    assert without_ray(done.stdout).splitlines() == [str(NUMBERS)] * 2, done.stderr


def test_a_server_that_was_taken_away_is_replaced_by_one_of_another_number(fleet):
    fleet._retire(1, is_serving=True)
    assert set(fleet.servers()) == {0}
    fleet._start(1)
    wait_until(lambda: set(fleet.servers()) == {0, 2})
    assert read(fleet(), fleet.keys) == NUMBERS


def test_nothing_is_left_of_a_closed_fleet(fleet):
    read(fleet(), fleet.keys)
    pids = [pid_of(server(fleet, number)) for number in (0, 1)]
    processes = [each for pid in pids for each in (psutil.Process(pid), *psutil.Process(pid).children(True))]
    assert len(glob.glob(f"{tempfile.gettempdir()}/mpwds-keys-*")) >= 3
    url = fleet.url
    fleet.close()
    assert not psutil.wait_procs(processes, timeout=300)[1]
    with pytest.raises(ConnectionError, match=f"there is no fleet at {url}"):
        servers_in_ray(url)()


def test_the_keys_of_a_killed_process_go_with_those_of_the_next(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    own = KeyFolder({"client.key": b"key"})
    program = "import os; from mpwds.cluster.actors import KeyFolder; k = KeyFolder({}); os.abort()"
    assert subprocess.run([sys.executable, "-c", program]).returncode == -signal.SIGABRT
    assert len(list(tmp_path.iterdir())) == 2
    own.close()
    assert not list(tmp_path.iterdir())


def test_the_end_of_ray_is_the_end_of_a_fleet(nodes, source):
    nodes.add(cpus=1)
    fleet = ServerFleet(source, workers_per_server=1)
    actor = psutil.Process(pid_of(server(fleet, 0)))
    ray.shutdown()
    fleet.close()
    assert not ray.is_initialized()
    actor.wait(timeout=300)


@pytest.mark.parametrize("url", ["ray://", "ray://fleet", "ray://a/b/c"])
def test_an_address_has_a_namespace_and_a_name(url):
    with pytest.raises(ValueError, match="ray://NAMESPACE/NAME"):
        servers_in_ray(url)


class LostOnce:
    """A dataset that ends the first process that loads it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return end_once, (self.path,)


def end_once(path):
    if not os.path.exists(path):
        Path(path).touch()
        os._exit(1)
    return range(3)


class TestMistakes:
    def test_a_cluster_without_room(self, nodes, source, caplog):
        nodes.add(cpus=2)
        with pytest.raises(MpwdsError, match="does a machine of the cluster have 500 free processors"):
            ServerFleet(source, servers=3, workers_per_server=500, start_timeout=0.5)
        (told,) = caplog.messages
        assert "room for 0 of 3 servers with 500 processors each" in told
        assert "its largest machine has 2" in told

    def test_a_dataset_that_cannot_be_sent(self, nodes):
        dataset = mpwds.DataPipeline(range(3)).map(partial(max, key=threading.Lock()))
        with pytest.raises(TypeError, match=r"^\['dataset'\]\..*\['key'\] is a lock, which cannot be sent"):
            ServerFleet(dataset)

    def test_a_server_that_cannot_start(self, nodes, source):
        nodes.add(cpus=1)
        with pytest.raises(ValueError, match="client_timeout"):
            ServerFleet(source, workers_per_server=1, client_timeout=-1)

    def test_a_server_that_is_lost_while_it_starts_and_then_cannot_start(self, nodes, source, tmp_path):
        nodes.add(cpus=1)
        with pytest.raises(ValueError, match="client_timeout"):
            ServerFleet(LostOnce(str(tmp_path / "lost")), workers_per_server=1, client_timeout=-1)

    def test_a_name_that_is_taken(self, nodes, source):
        nodes.add(cpus=2)
        with ServerFleet(source, workers_per_server=1, name="mine") as fleet:
            with pytest.raises(ValueError, match="mine"):
                ServerFleet(source, workers_per_server=1, name="mine")
            assert read(fleet(), fleet.keys) == NUMBERS

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"servers": 0}, "servers must be at least 1"),
            ({"servers": "many"}, "servers must be a number or 'auto'"),
            ({"workers_per_server": 0}, "workers_per_server must be at least 1"),
            ({"keys": "x"}, "keys= is not an option"),
            ({"name": "a/b"}, "'ray://mpwds/a/b'"),
            ({"namespace": "a b"}, "'ray://a b/fleet-"),
        ],
    )
    def test_arguments(self, source, options, told):
        with pytest.raises(ValueError, match=told):
            ServerFleet(source, **options)
