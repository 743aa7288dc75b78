from mpwds.pipeline.stream import Source, as_address, fetch_held


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


def test_addresses_of_a_splitter_s_own_beside_numbers_are_fetched_too():
    class Sources(Source):
        def fetch(self, address):
            return address

    held = [(3, 512), ("/near/x.tar", 0), (1, 0)]
    assert fetch_held(Sources(""), held) == [(address, address) for address in held]
