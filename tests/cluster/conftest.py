"""Ray clusters of several nodes on this machine. ``make test-cluster`` installs Ray and runs these tests."""

import re

import pytest

from tests.cli.conftest import command as command
from tests.cli.conftest import write_files as write_files
from tests.cli.conftest import write_shard as write_shard

ray = pytest.importorskip("ray", reason="make test-cluster installs Ray")

_LITTLE = {"object_store_memory": 80 << 20}
# A node whose processes are gone is lost after 2 s, one that is only slow after a minute.
_SOON = {
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
    "health_check_timeout_ms": 15_000,
}


def without_ray(text):
    """A program's output without what Ray prints, any time, of nodes that earlier tests have killed."""
    return re.sub(r"\x1b\[33m\(raylet\).*\n(\s+\(.*\n)*", "", text)


class Nodes:
    """A cluster's nodes: a head without processors, and those that a test adds and kills."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._added = []

    def add(self, cpus=2):
        self._added.append(self._cluster.add_node(num_cpus=cpus, **_LITTLE))
        return self._added[-1]

    def kill(self, node):
        """Kills a node's processes, as the end of its machine would."""
        self._added.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self):
        for node in tuple(self._added):
            self.kill(node)


@pytest.fixture(scope="session")
def _cluster():
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": _SOON, **_LITTLE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def nodes(_cluster, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", _cluster.address)
    nodes = Nodes(_cluster)
    yield nodes
    ray.shutdown()
    nodes.close()
