import contextlib
import io
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpwds.cli.inspect.selection import Expression

buffer = io.BytesIO()
np.save(buffer, np.zeros((3, 4)))
FIELDS = {
    "cls": b"3",
    "jpg": bytes(2000),
    "json": b'{"width": 640, "tags": ["red", "blue"], "size": {"h": 480}}',
    "txt": "ein Häuschen".encode(),
    "seg.png": b"mask",
    "npy": buffer.getvalue(),
}


HOLD = (
    "cls == 3",
    "cls in (1, 3) and not cls == 4",
    "1 < cls <= 3",
    "len(jpg) > 1000 and json.width > 200",
    'json["width"] == 640 and json.size.h == 480',
    '"blue" in json.tags and json.tags[0] == "red"',
    'lower(txt) != txt and "Haus" not in txt and "Häus" in txt',
    'len(seg.png) == 4 and field["seg.png"]',
    "cls * 2 + 1 == 7 and -cls == -3 and cls % 2 == 1",
    'key == "n/1" and "n/" in key',
    "len(npy) == 3",
    "float(cls) / 2 == 1.5",
    "len(seg) == 4",
    "cls >= 3 and cls <= 3",
    "cls - 1 == 2 and 7 // cls == 2 and 7 / 2 == 3.5",
    "cls == 4 or cls == 3",
    "abs(1 - cls) == 2",
    "int(cls) == 3 and str(cls) == '3'",
    "-cls + 3 == 0",
)
DO_NOT_HOLD = (
    "cls != 3",
    "missing == 1",
    "missing != 1",
    "json.height > 3",
    "json.tags[7] == 1",
    "len(missing) > 0",
    "cls > 3",
    "cls < 3",
    "cls == 3 and cls == 4",
    "'red' not in json.tags",
    "txt.__class__",  # attributes of Python's objects are out of reach
    "json.__class__.__mro__",
)


@pytest.mark.parametrize("text", [*HOLD, *DO_NOT_HOLD])
def test_operators_fields_and_functions_mean_what_they_mean_in_python(text):
    assert Expression(text)(FIELDS, "n/1") is (text in HOLD)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "json.keys()",
        "(lambda: 1)()",
        "[x for x in txt]",
        "cls if cls else 0",
        "f'{cls}'",
        "cls := 3",
        "len(txt, 1)",
        "cls; 1",
        "",
        "cls = 3",
        "(" * 300 + "cls" + ")" * 300,
        "not " * 5000 + "cls",
        "-" * 100_000 + "cls",
        "cls" + ".a" * 5000,
    ],
    ids=lambda text: text[:20],
)
def test_anything_else_is_refused_before_it_runs(text):
    with pytest.raises(ValueError, match="^expression "):
        Expression(text)


@pytest.mark.parametrize(
    "text", ["cls > txt", "cls / 0 == 1", "txt * 1000000000 == 1", "int(txt) == 1", "len(cls)"]
)
def test_values_that_do_not_fit_are_an_error_that_names_the_sample(text):
    with pytest.raises(ValueError, match='on sample "n/1"'):
        Expression(text)(FIELDS, "n/1")


def test_fields_that_are_not_named_are_not_needed():
    expression = Expression("len(seg.png) > 3 and json.width > 3")
    assert [field for field in FIELDS if expression.needs(field)] == ["json", "seg.png"]


def test_pickles_are_not_loaded():
    with pytest.raises(ValueError, match="would run the code"):
        Expression("pkl == 1")({"pkl": b"\x80\x04K\x01."})


@given(st.text(max_size=60))
def test_any_text_is_an_expression_or_a_clear_error(text):
    with contextlib.suppress(ValueError):
        Expression(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("open('x')", "it can call only len, abs, int, float, str, lower, each with one argument"),
        ("cls ** 9", "cls ** 9 is not allowed in it"),
        ("1" + " + 1" * 5000, "it is nested too deeply"),
        ("(" * 150 + "cls" + ")" * 150 + " ==", "write it like cls == 3 and len(jpg) > 1000"),
        ("not " * 150 + "cls ==", "write it like cls == 3 and len(jpg) > 1000"),
    ],
    ids=["call", "power", "long", "parentheses", "half"],
)
def test_what_is_refused_is_said(text, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        Expression(text)


def test_a_list_may_be_long():
    assert Expression(f"cls in {list(range(5000))}")({"cls": b"4999"})


def test_a_beginning_that_several_fields_have_is_none_of_them():
    fields = {"seg.png": b"a", "seg.txt": b"b"}
    assert not Expression("len(seg) == 1")(fields)
    assert Expression("len(seg.txt) == 1")(fields)


def test_fields_are_told_by_the_beginnings_of_their_names():
    assert Expression("key == 'a' and seg.png == b'' and field['x.y'] and cls")  # nothing runs
    assert Expression("key == 'a' and json.width > 3 and field['2.png'] and cls").fields == {
        "json",
        "2",
        "cls",
    }
