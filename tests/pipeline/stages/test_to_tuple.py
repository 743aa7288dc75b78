import pytest

from mpwds.pipeline.stages.fields import ToTuple
from mpwds.pipeline.stream import Source, collect

SAMPLE = {"__key__": "a", "jpg": b"..", "cls": 7, "json": None}


def pick(*specs, **options):
    return collect(ToTuple(specs, **options), [SAMPLE])[0]


@pytest.mark.parametrize("stop", range(5))
def test_continues_from_its_state_exactly(stop, continues):
    continues(lambda: ToTuple(("cls",)).stream(Source({"cls": n} for n in range(4))), stop)


def test_picks_fields_in_the_order_asked_for():
    assert pick("cls", "__key__") == (7, "a")


def test_a_single_field_makes_a_tuple_of_one():
    assert pick("cls") == (7,)


def test_spaces_separate_fields_and_semicolons_alternatives():
    assert pick("png;jpg cls") == (b"..", 7)


def test_a_field_that_is_none_is_an_error_unless_that_is_allowed():
    with pytest.raises(ValueError, match="to_tuple: field 'json' is None"):
        pick("json")
    assert pick("json", none_is_error=False) == (None,)


def test_a_missing_field_is_an_error_that_lists_those_that_are_there():
    with pytest.raises(ValueError, match="no field 'png' or 'webp'; the sample has __key__, jpg, cls, json"):
        pick("png;webp", "cls")


def test_a_missing_field_becomes_none_on_request():
    assert pick("png", "cls", missing_is_error=False) == (None, 7)


def test_a_sample_that_is_no_dict_is_an_error():
    with pytest.raises(TypeError, match="to_tuple needs dict samples, got a tuple"):
        collect(ToTuple(("png",)), [(1, 2)])


@pytest.mark.parametrize(("specs", "error"), [((), ValueError), ((" ",), ValueError), ((3,), TypeError)])
def test_no_fields_are_refused(specs, error):
    with pytest.raises(error, match="to_tuple: "):
        ToTuple(specs)
