"""The commands of ``mpwds``. A command's module is imported when the command runs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from mpwds.viewing.wording import printable


class About(NamedTuple):
    """A command: the module below ``mpwds.cli`` with a function of its name, and one line of help."""

    module: str
    help: str


COMMANDS = {
    "demo": About(
        "demo.demo", "Train a small network from tar shards, on handwritten digits or your own images."
    ),
    "ls": About("inspect.commands", "List the samples of shards: number, bytes, key, and fields."),
    "info": About("inspect.commands", "Sum up shards: samples, bytes, fields with types and shapes, damage."),
    "show": About(
        "inspect.show",
        "Show samples of shards, or a batch of a feed: in the terminal, as a picture, or on a page.",
    ),
    "cat": About(
        "inspect.commands", "Write fields or samples of shards to standard output: bytes, JSON or tar."
    ),
    "extract": About("inspect.extract", "Write fields of shards to files in a folder."),
    "verify": About(
        "inspect.commands", "Check shards: headers, keys, checksums, fields; list what is damaged."
    ),
    "repair": About("inspect.commands", "Write a copy of shards without what is damaged in them."),
    "create": About(
        "convert.create", "Make tar shards of a folder of files, a list, a Hugging Face dataset, or MDS."
    ),
    "convert": About("convert.convert", "Convert datasets between tar shards, MDS and record files."),
    "index": About("convert.index", "Make and change descriptions of indexed datasets (wids)."),
    "split": About("reshard.commands", "Split shards into smaller ones, by samples or by size."),
    "merge": About("reshard.commands", "Merge shards into one, or into fewer."),
    "shuffle": About("reshard.commands", "Shuffle all samples of shards, also of more than fit in memory."),
    "sort": About("reshard.commands", "Sort all samples of shards by their keys or by a field."),
    "repack": About("reshard.repack", "Make the JPEG images in shards smaller."),
    "proc": About("reshard.commands", "Process shards through your pipeline, in parallel; can continue."),
    "bench": About(
        "convert.bench", "Measure how fast a dataset or its storage can feed this machine, and why."
    ),
    "serve": About("feed.serve", "Serve a dataset: workers here decode and augment for trainers elsewhere."),
    "monitor": About("feed.commands", "Show what feed servers do, live: rates, workers, stages, clients."),
    "stat": About("feed.commands", "Compute statistics of a feed's tensors over some batches."),
    "keygen": About("feed.commands", "Make the keys that servers and their clients need."),
}


class Invocation:
    """One run of the command, and what its errors need: ``command``, and whether ``debug`` was asked for."""

    def __init__(self) -> None:
        self.command = ""
        self.debug = False

    def run(self, argv: Sequence[str]) -> int:
        """Runs the command; returns its exit status. Errors of any kind are raised."""
        options = argv[: argv.index("--")] if "--" in argv else argv
        self.debug = "--debug" in options
        words = [word for word in options if word != "--debug"] + list(argv[len(options) :])
        command = typer.main.get_command(_app())
        usual = warnings.formatwarning

        def in_one_line(message: Any, category: Any, filename: str, lineno: int, line: Any = None) -> str:
            if filename != typer.main.__file__:  # which calls this package
                return usual(message, category, filename, lineno, line)
            return f"mpwds {self.command}: warning: {printable(' '.join(str(message).split()))}\n"

        try:
            warnings.formatwarning = in_one_line
            # SIGTERM ends a command as Ctrl-C does, so that it removes what it began.
            before = signal.signal(signal.SIGTERM, signal.default_int_handler)
            status = command.main(words, prog_name="mpwds", standalone_mode=False, obj=self)
        except typer.Abort:  # how some versions of typer report Ctrl-C
            raise KeyboardInterrupt from None
        finally:
            warnings.formatwarning = usual
            signal.signal(signal.SIGTERM, before)
        return status or 0


class _Commands(TyperGroup):
    """A group that lists commands without importing them."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # older typers have click's
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else TyperCommand(cmd_name, help=entry.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # The parser suggests names out of these; their modules are not imported for that.
        self.commands = {name: self.get_command(ctx, name) for name in COMMANDS}
        name, _, rest = super().resolve_command(ctx, args)
        return (name, None, rest) if name is None else (name, load(name), rest)

    def invoke(self, ctx: Any) -> Any:
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_output()
            return 128 + signal.SIGPIPE
        except OSError:
            try:
                sys.stdout.flush()
            except OSError:  # as if its disk is full
                _discard_output()
            raise
        return status


def _discard_output() -> None:
    """Buffered output goes nowhere, so that the interpreter does not fail on it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Command(TyperCommand):
    """A command whose repeatable options take several values at a time, as in ``--data *.tar``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = (param for param in self.params if isinstance(param, TyperOption) and param.multiple)
        repeatable = {name for option in options for name in option.opts}
        ctx.obj.command = ctx.command_path.partition(" ")[2]
        return super().parse_args(ctx, _repeated(args, repeatable))


def _repeated(args: Sequence[str], options: set[str]) -> list[str]:
    """Writes ``--data a b`` as ``--data a --data b``."""
    written: list[str] = []
    option, values = "", 0
    for position, word in enumerate(args):
        if word == "--":
            return [*written, *args[position:]]
        if word.startswith("-") and word != "-":
            option, values = (word if word in options else ""), 0
        elif option:
            values += 1
            if values > 1:
                written.append(option)
        written.append(word)
    return written


def load(name: str) -> Any:
    function = getattr(importlib.import_module(f"mpwds.cli.{COMMANDS[name].module}"), name)
    if isinstance(function, typer.Typer):  # a command with commands of its own
        for each in function.registered_commands:
            each.cls = _Command
        return typer.main.get_command(function)
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    paragraphs = inspect.cleandoc(function.__doc__ or COMMANDS[name].help).split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    app.command(name, cls=_Command, help=text)(_with_plain_options(function))
    return typer.main.get_command(app)


def _with_plain_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command as typer takes it: for a dataclass of options, each of its fields is a parameter."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type, list[str]]] = {}
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        of_group = [parameter]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            of_group = list(inspect.signature(kind).parameters.values())
            groups[name] = kind, [each.name for each in of_group]
            hints.update(get_type_hints(kind, include_extras=True))
        parameters += (each.replace(annotation=hints[each.name], kind=each.KEYWORD_ONLY) for each in of_group)

    @functools.wraps(command)
    def run(**values: Any) -> Any:
        for name, (kind, names) in groups.items():
            values[name] = kind(**{each: values.pop(each) for each in names})
        return command(**values)

    run.__annotations__ = {each.name: each.annotation for each in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")]
Version = Annotated[bool, typer.Option("--version", help="Print the version and exit.")]


def _app() -> typer.Typer:
    app = typer.Typer(
        cls=_Commands, invoke_without_command=True, pretty_exceptions_enable=False, rich_markup_mode="rich"
    )

    @app.callback()
    def mpwds(ctx: typer.Context, version: Version = False, debug: Debug = False) -> int | None:
        """Feeds deep-learning training from sharded datasets."""
        if version:
            from mpwds.names import find

            print(f"mpwds {find('__version__')}")
            raise typer.Exit
        if ctx.invoked_subcommand is None:
            with contextlib.redirect_stdout(sys.stderr):  # the help prints itself
                print(ctx.get_help())
            return 2
        return None

    return app
