"""A client that shares no code with this package reads what a MultiLoader yields."""

import ast
from pathlib import Path

import pytest

import mpwds
from tests.feed import foreign_client
from tests.feed.serving import ServerProcess, bits, large, locally, numbers

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("dataset", [numbers(), large()], ids=["small", "large"])
def test_a_foreign_client_reads_the_epochs_of_a_multi_loader(dataset):
    expected = locally(dataset, 2, epochs=2)
    with ServerProcess(dataset, workers=2) as server:
        for epoch in range(2):
            read = [bits(batch) for batch in foreign_client.epoch(server.url, 2, epoch)]
            assert read == expected[epoch]


def test_a_foreign_client_hears_of_errors_with_their_place():
    dataset = mpwds.DataPipeline(range(8)).map(lambda number: 1 // (number - 5)).batched(2)
    with ServerProcess(dataset, workers=1) as server:
        with pytest.raises(RuntimeError, match="ZeroDivisionError: (?s:.*)on element 5"):
            list(foreign_client.epoch(server.url, 1))


def test_the_client_is_short_and_imports_nothing_of_this_package():
    source = Path(foreign_client.__file__).read_text()
    assert len(source.splitlines()) <= 80
    imported = {
        name.name.partition(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import)
        for name in node.names
    }
    assert imported == {"os", "struct", "msgpack", "numpy", "zmq"}
