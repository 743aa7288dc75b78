"""Arguments that make no sense: the command says so in one line, and does nothing."""

import os

import pytest

REFUSED = {
    "cat train-0.tar --shards -k n1/*": "choose samples and fields with --tar",
    "cat train-0.tar --shards -f cls": "choose samples and fields with --tar",
    "cat train-0.tar --shards --limit 1": "choose samples and fields with --tar",
    "cat train-0.tar --json --tar": "exclude each other",
    "cat train-0.tar --json --lines": "exclude each other",
    "cat train-0.tar --json --shards": "exclude each other",
    "cat train-0.tar --tar --lines": "exclude each other",
    **{f"ls train-0.tar --number={each}": each for each in ("-3", "-3:", ":-3", "5:2", "5:5", "x", "3:y")},
    "ls train-0.tar --where=cls=": 'expression "cls="',
    "ls train-0.tar --where=import": 'expression "import"',
    "show x.tar --web": "--web is for feeds",
    "show x.tar --port 80": "--port is for the page",
    "show --save train-0.tar train-1.tar": "a contact sheet is a PNG image",
    "show tcp://localhost:1 -f jpg": "--where and --fields are for shards",
    "show zsub://localhost:1 -n 3": "--where and --fields are for shards",
    **{f"repair {each}": "one shard" for each in ("- -o fixed", "- --in-place", "- train-0.tar -o fixed")},
    "repair train-0.tar train-1.tar -o -": "takes one copy",
    "repair train-0.tar": "say where the copies go",
    "repair train-0.tar -o x --in-place": "say where the copies go",
    "repair train-0.tar other/train-0.tar -o fixed": "two shards have the same name",
    "repair train-0.tar http://127.0.0.1:9/x.tar --in-place": "--in-place is for local shards",
}


@pytest.mark.usefixtures("shards")
@pytest.mark.parametrize(("words", "message"), REFUSED.items(), ids=REFUSED)
def test_arguments_that_make_no_sense_are_refused_in_one_line(refused, words, message):
    before = sorted(os.listdir())
    errors = refused(*words.split(), status=2)
    assert message in errors
    assert errors.count("\n") == 1
    assert sorted(os.listdir()) == before
