"""Appends every command of ``mpwds``, with its options, to the page ``reference/commands``."""

from __future__ import annotations

import re

import typer
from sphinx.application import Sphinx
from typer.cli import get_docs_for_click

from mpwds.cli.app import COMMANDS, load

PAGE = "reference/commands"


def command_in_markdown(name: str) -> str:
    command = load(name)
    context = typer.Context(command, info_name=f"mpwds {name}")
    text = get_docs_for_click(obj=command, ctx=context, name=f"mpwds {name}")
    text = re.sub("^#", "##", text, flags=re.MULTILINE)
    parts = text.split("`")  # every second one is code
    parts[::2] = [re.sub(r"(?<!\S)(--?\w[\w-]*)", r"`\1`", prose) for prose in parts[::2]]
    return "`".join(parts)


def append_commands(app: Sphinx, docname: str, content: list[str]) -> None:
    if docname == PAGE:
        content[0] += "\n\n".join(map(command_in_markdown, COMMANDS))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", append_commands)
    return {"parallel_read_safe": True}
