import pytest

from mpwds.pipeline.stages.batched import Batched
from mpwds.pipeline.stream import Source, as_address, collect, fetch_held


def test_an_address_survives_a_message_that_knows_only_lists():
    assert as_address([[3, [512, "a"]], 7]) == ((3, (512, "a")), 7)


def test_held_elements_are_fetched_forward_and_returned_in_their_own_order():
    asked = []

    class Recording(Source):
        def fetch(self, address):
            asked.append(address)
            return super().fetch(address)

    assert fetch_held(Recording("abc"), [2, 0, 1, 0]) == [(2, "c"), (0, "a"), (1, "b"), (0, "a")]
    assert asked == [0, 0, 1, 2]


@pytest.mark.parametrize("stop", range(5))
def test_a_source_continues_from_its_state_exactly(stop, continues):
    continues(lambda: Source("abc"), stop)


def test_collect_gives_plain_elements():
    assert collect(Batched(2, collation_fn=None), range(3)) == [[0, 1], [2]]
