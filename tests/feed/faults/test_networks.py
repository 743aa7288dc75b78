"""A network that delays, loses, reorders and parts: every batch comes once, bit for bit."""

import time
from pathlib import Path

import pytest

from tests.feed.faults.checking import rows, undisturbed
from tests.feed.faults.networks import SERVER, BadNetwork
from tests.feed.faults.trainers import Trainer
from tests.feed.serving import ServerProcess
from tests.loader.faults.processes import wait_until

pytestmark = pytest.mark.slow

SMALL = {"batches": 120, "size": 6000}
SILENCE_S = 3.0


@pytest.fixture
def network():
    network = BadNetwork()
    yield network
    network.close()


@pytest.fixture
def ends(network):
    """A server and a trainer, each at its end of the network."""
    server_end, trainer_end = network.within
    url = f"tcp://{SERVER}:7880"
    options = {"workers": 2, "insecure": True, "client_timeout": SILENCE_S}
    with ServerProcess(rows(**SMALL), url, within=server_end, **options) as server:
        options = {"insecure": True, "heartbeat_timeout": SILENCE_S}
        with Trainer(url, within=trainer_end, **options) as trainer:
            yield server, trainer


@pytest.mark.parametrize(
    "disturbance",
    [
        {"delay_ms": 40},
        {"delay_ms": 10, "jitter_ms": 10},
        {"loss": 0.03},
        {"delay_ms": 5, "jitter_ms": 5, "loss": 0.02},
    ],
    ids=["delay", "reordering", "loss", "all of it"],
)
def test_a_bad_network_changes_nothing(network, ends, disturbance):
    _, trainer = ends
    network.disturb(**disturbance)
    assert trainer.rest() == undisturbed(2, rows(**SMALL))[0]


def test_a_short_partition_is_not_noticed(network, ends):
    server, trainer = ends
    got = [trainer.batch()]
    network.partition()
    trainer.go_on(3)
    time.sleep(1)
    network.disturb()
    assert got + trainer.rest() == undisturbed(2, rows(**SMALL))[0]
    assert "silent" not in server.log


def test_a_partition_that_heals_costs_no_batch(network, ends):
    server, trainer = ends
    got = [trainer.batch()]
    for number in (1, 2):
        network.partition()
        trainer.go_on(4)
        wait_until(lambda n=number: server.log.count("is silent") >= n, "the server to miss the trainer")
        network.disturb()
        trainer.go_on(36)
        got += [trainer.batch() for _ in range(40)]  # more than had arrived before
    assert got + trainer.rest() == undisturbed(2, rows(**SMALL))[0]


def test_connections_to_a_lost_machine_are_ended_at_both_ends(network, ends):
    server, trainer = ends
    trainer.batch()
    wait_until(lambda: connections(server.pid) == connections(trainer.process.pid) == 1, "a connection")
    network.partition()
    wait_until(lambda: connections(server.pid) == connections(trainer.process.pid) == 0, "both to notice")
    network.disturb()
    trainer.rest()


def connections(pid):
    """How many TCP connections are established in the network namespace of a process."""
    tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    return sum(line.split()[3] == "01" for table in tables for line in table.splitlines()[1:])
