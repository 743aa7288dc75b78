"""What commands print: reports, tables, and how far they are."""

import io

import pytest

from mpwds.cli import console
from mpwds.cli.main import main

NAN = float("nan")


def test_json_has_null_for_what_is_no_number_at_any_depth(capsys):
    console.report(True, {"a": [NAN, ({"b": float("inf")}, 1.5)], "c": "NaN"})
    assert capsys.readouterr().out == '{"a": [null, [{"b": null}, 1.5]], "c": "NaN"}\n'


def test_files_and_pipes_get_wide_tables(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert console.console().width == 200
    monkeypatch.setenv("COLUMNS", "100")
    assert console.console().width == 100


def test_text_is_printed_as_it_is_and_no_long_line_is_broken(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "30")
    line = "[bold]x[/bold] :smile: " * 9
    console.console().print(line)
    assert capsys.readouterr().out == f"{line}\n"


def test_a_narrow_table_folds_words_and_never_figures(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "36")
    rows = [("[b]:smile:" * 3, "short", "1,234,567"), ("x", "y", "8")]
    console.console(soft_wrap=False).print(console.table("sizes", ("a", "b", "bytes"), rows, ("a", "b")))
    title, names, _, first, *folded, last = capsys.readouterr().out.splitlines()
    assert (title.strip(), names.split()) == ("sizes", ["a", "b", "bytes"])
    assert "".join(line.split()[0] for line in (first, *folded)) == rows[0][0]
    assert len(first.split()[0]) >= 13
    assert first.split()[1:] == ["short", "1,234,567"]
    assert last.split() == ["x", "y", "8"]
    assert first.rindex("7") == last.index("8") == names.rindex("s")


@pytest.mark.parametrize(("in_bytes", "amount"), [(False, "7/10"), (True, "7/10 bytes")])
def test_a_terminal_shows_how_much_is_done_with_what_was_done_before(monkeypatch, capsys, in_bytes, amount):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    with console.progress(10, done=4, in_bytes=in_bytes) as advance:
        advance(3, "copying")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "copying" in shown.err
    assert amount in shown.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("verify x.tar", "verifying"),
        ("info x.tar", "reading shards"),
        ("show x.tar", "reading samples"),
        ("extract x.tar -o out", "extracting samples"),
        ("repair x.tar -o out", "writing"),
        ("convert x.tar mds", "converting"),
        ("create mds out -j 1", "writing"),
        ("index create x.tar -o x.json", "reading shards"),
        ("merge x.tar y.tar", "2 samples"),
        ("demo --data x.tar", "reading labels"),
    ],
)
def test_a_terminal_shows_what_a_command_does(monkeypatch, write_shard, capsys, words, told):
    write_shard("x.tar", {"cls": 1, "png": b""}, {"cls": 2, "png": b""})
    assert main(["convert", "x.tar", "mds"]) == 0 if words.startswith("create") else True
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    main(words.split())
    assert told in capsys.readouterr().err
