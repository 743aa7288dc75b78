import importlib.abc
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

from mpwds.cli.app import COMMANDS
from mpwds.cli.demo import demo, training
from mpwds.cli.main import main
from mpwds.errors import DecodeError, WorkerDied


@pytest.fixture
def failing(monkeypatch):
    """Makes ``mpwds demo`` fail with an exception."""

    def failing(error):
        def run():
            raise error

        monkeypatch.setattr(demo, "demo", run)

    return failing


def test_help_imports_no_command_and_that_of_a_command_neither_numpy_nor_torch():
    code = """if True:
        import sys
        from mpwds.cli.main import main
        for words in [], *([name] for name in sys.argv[1:]):
            main([*words, "--help"])
            print(*words, *sys.modules, file=sys.stderr)
    """
    words = [sys.executable, "-c", code, *COMMANDS]
    wide = {**os.environ, "COLUMNS": "400"}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=wide)
    assert all(entry.help in done.stdout for entry in COMMANDS.values())
    assert "digits to 16 tar shards in a cache folder, then trains a small network from them" in done.stdout
    imported = [set(line.split()) for line in done.stderr.splitlines()]
    assert {f"mpwds.cli.{entry.module}" for entry in COMMANDS.values()}.isdisjoint(imported[0])
    for command, modules in zip(COMMANDS, imported[1:], strict=True):
        assert command in modules
        assert {"numpy", "torch"}.isdisjoint(modules), command


def test_without_typer_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "mpwds.cli.app", raising=False)
    assert main(["--help"]) == 1
    assert "pip install 'mpwds[cli]'" in capsys.readouterr().err


def completions(command, words):
    environment = {**os.environ, "_MPWDS_COMPLETE": "complete_bash", "COMP_WORDS": words}
    environment["COMP_CWORD"] = str(len(words.split()) - (not words.endswith(" ")))
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return result.stdout.split()


def test_the_shell_completes_commands_and_their_options(command):
    assert completions(command, "mpwds de") == ["demo"]
    assert "--epochs" in completions(command, "mpwds demo --ep")


def test_the_completion_that_is_installed_works_in_bash(command, tmp_path):
    program = Path("mpwds")
    program.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    install = "mpwds --install-completion; exit $?"  # or bash would become mpwds, which looks for its shell
    subprocess.run(["bash", "-c", install], env=environment, check=True, capture_output=True)
    typed = "COMP_WORDS=(mpwds verify --dec); COMP_CWORD=2; _mpwds_completion mpwds; echo ${COMPREPLY[@]}"
    script = f"source .bash_completions/mpwds.sh; {typed}"
    shown = subprocess.run(
        ["bash", "-c", script], env=environment, check=True, capture_output=True, text=True
    )
    assert shown.stdout == "--decode\n"


def test_version_is_the_packages_and_signals_are_handled_as_before(capsys):
    before = signal.getsignal(signal.SIGTERM)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mpwds {version('mpwds')}\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_no_command_prints_the_help_and_is_a_mistake(capsys):
    assert main([]) == 2
    assert "Usage: mpwds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("demi",), ""),
        (("demo", "--epochs", "0"), ""),
        (("demo", "--workers", "-1"), ""),
        (("demo", "--lr", "nan"), ".*--lr"),
        (("demo", "--data", "x.tar", "--size", "1025"), ".*--size.*1024"),
        (("demo", "--test", "x.tar"), "--test and --size are for your own"),
        (("demo", "--size", "32"), ""),
        (("demo", "--data", "x.tar", "--size", "7"), ""),
        (("demo", "--data", "x.tar", "--cache-dir", "y"), "--cache-dir is for the digits"),
        (("demo", "--remote", "--data", "x.tar"), "--remote serves the digits"),
        (("demo", "--remote", "--cache-dir", "y"), "--remote serves the digits"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_before_any_work(refused, arguments, message):
    errors = refused(*arguments, status=2)
    assert re.search(f"error: {message}", errors)
    assert errors.count("\n") == 1


def test_an_option_takes_several_patterns_up_to_the_next_option(capsys, monkeypatch):
    def image_task(data, test, **options):
        raise ValueError(f"{data} {test}")

    monkeypatch.setattr(training, "image_task", image_task)
    assert main(["demo", "--data", "a.tar", "b.tar", "--test", "c.tar", "--epochs", "3"]) == 1
    assert "['a.tar', 'b.tar'] ['c.tar']" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("-k", "a", "b", "--", "--debug"), ("-k", "a", "b", "-n", "3", "--debug.tar")]
)
def test_words_after_two_dashes_and_other_options_are_no_values(refused, words):
    assert "--debug" in refused("ls", *words, status=1 if "--" in words else 2)


def noted(error, note):
    error.__notes__ = [note]
    return error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FileNotFoundError(2, "there is no such shard", "x.tar"), "x.tar: there is no such shard"),
        (FileNotFoundError(2, "there is no such shard", b"x.tar"), "x.tar: there is no such shard"),
        (OSError(5, "the disk is broken"), "[Errno 5] the disk is broken"),
        (OSError("nothing else is known"), "nothing else is known"),
        (ValueError("epochs\nare short"), "epochs are short"),
        (ValueError(), "ValueError"),
        (ValueError("a server said \x1b[2J"), "a server said \N{REPLACEMENT CHARACTER}[2J"),
        (noted(KeyError("cls"), "in map(f)"), "KeyError: 'cls'; in map(f); --debug shows the traceback"),
        (ImportError("pip install 'mpwds[demo]'"), "pip install 'mpwds[demo]'"),
        (WorkerDied("worker 1 was killed"), "worker 1 was killed"),
        (
            noted(ValueError("no label"), 'in map(label), on sample "0017" of x.tar'),
            'no label; in map(label), on sample "0017" of x.tar',
        ),
        (  # says by itself where it happened
            noted(DecodeError('field "png" of sample "0017"'), 'in decode("pil"), on sample "0017" of x.tar'),
            'field "png" of sample "0017"',
        ),
    ],
)
def test_an_error_is_one_line_that_says_where_it_happened(error, line, failing, capsys):
    failing(error)
    assert main(["demo"]) == 1
    assert capsys.readouterr() == ("", f"mpwds demo: error: {line}\n")


@pytest.mark.parametrize("arguments", [("--debug", "demo"), ("demo", "--debug")])
def test_debug_shows_the_traceback(arguments, failing, capsys):
    failing(ValueError("no"))
    assert main(arguments) == 1
    errors = capsys.readouterr().err
    assert "Traceback (most recent call last)" in errors
    assert errors.endswith("mpwds demo: error: no\n")


@pytest.mark.parametrize(
    ("error", "words"), [(KeyError("fault"), []), (noted(KeyError("fault"), "in map(f)"), ["--debug"])]
)
def test_what_is_no_users_mistake_keeps_its_traceback(failing, error, words):
    failing(error)
    with pytest.raises(KeyError):
        main(["demo", *words])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()])
def test_an_interrupt_is_quiet(failing, capsys, error):
    failing(error)
    assert main(["demo"]) == 130
    assert capsys.readouterr() == ("", "")


def test_an_interrupt_while_the_command_is_imported_is_quiet(monkeypatch, capsys):
    class Interrupted(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name == "mpwds.cli.inspect.commands":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "mpwds.cli.inspect.commands", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert main(["ls", "x.tar"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ("extract x.tar -o files", "files/0000.txt"),
        ("convert x.tar x.cbor", "x.cbor"),
        ("show x.tar --save sheet.png", "sheet.png"),
    ],
)
def test_the_file_is_named_that_a_full_disk_cuts_off(run_limited, write_shard, arguments, name):
    write_shard("x.tar", {"txt": "a" * 200_000})
    done = run_limited(1000, *arguments.split())
    assert done.returncode == 1
    assert done.stderr.endswith(f"{name}: File too large\n")
    assert [path.name for path in Path().rglob("*") if path.is_file()] == ["x.tar"]


@pytest.mark.parametrize("words", ["ls x.tar >&-", "merge x.tar y.tar 2>&-", "cat x.tar --tar <&- >&- 2>&-"])
def test_a_standard_stream_may_be_closed(command, write_shard, words):
    write_shard("x.tar", {"txt": "a"})
    done = subprocess.run(f"{' '.join(command)} {words}", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_warning_is_one_line_as_errors_are(command, write_shard):
    path = write_shard("x.tar", {"txt": "a"})
    path.write_bytes(path.read_bytes().rstrip(b"\0").ljust(1024, b"\0"))
    done = subprocess.run([*command, "merge", path, "y.tar"], capture_output=True, text=True)
    assert re.fullmatch(r"mpwds merge: warning: .* may be truncated.*\n", done.stderr)


@pytest.mark.parametrize("option", ["--tar", "--json", "--lines"])
def test_standard_output_is_named_if_its_disk_is_full(command, write_shard, option):
    words = [*command, "cat", option, write_shard("x.tar", {"txt": "a"})]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "cat: error: standard output: No space left on device\n" in done.stderr
