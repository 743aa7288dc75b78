"""The directive ``api``: documents names of ``mpwds``, which finds them where they are defined."""

from __future__ import annotations

import inspect
import re
import sys

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import mpwds
from mpwds.names import HOMES
from mpwds.pipeline.filter import Filter
from mpwds.pipeline.fluent import Fluent
from mpwds.pipeline.stream import Origin

# What loaders ask of pipelines, and the stages as methods, which have a page of their own.
NOT_SHOWN = {*dir(Filter), *dir(Origin), *dir(Fluent), "map_style"}


class Api(SphinxDirective):
    """Each word of the content is a name of ``mpwds``: a class with its methods, or a function."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        for name in " ".join(self.content).split():
            value = getattr(mpwds, name)
            is_class = inspect.isclass(value) and (value.__name__ == name or value.__name__ in HOMES)
            lines.append(f".. auto{'class' if is_class else 'function'}:: mpwds.{name}")
            if is_class:
                lines.append(f"   :members: {', '.join(shown_members(value))}")
            lines.append("")
        return self.parse_text_to_nodes(StringList(lines, "api"))


def shown_members(cls: type) -> list[str]:
    """The documented methods and properties of a class, without those that another public class gives it."""
    names = [name for name in dir(cls) if not name.startswith("_") and name not in NOT_SHOWN]
    homes = {name: next((base for base in cls.__mro__ if name in vars(base)), object) for name in names}
    ours = [name for name in names if homes[name].__module__.startswith("mpwds.")]
    own = [name for name in ours if homes[name] is cls or homes[name].__name__ not in HOMES]
    return [name for name in own if getattr(cls, name).__doc__]


def link_pages(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Docstrings name pages by their files; here these become links."""
    lines[:] = [re.sub(r"(?:``)?docs/([\w/-]+)\.md(?:``)?", r":doc:`/\1`", line) for line in lines]


def show_values(
    app: Sphinx,
    what: str,
    name: str,
    value: object,
    options: object,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """A default that another module names, ``wire.LOST_S``, is shown as its value."""
    module = sys.modules.get(getattr(value, "__module__", ""))
    known = vars(module) if module is not None else {}
    shown = re.sub(
        r"(?<==)([a-z_]+)\.([A-Z_]+)\b",
        lambda found: repr(getattr(known[found[1]], found[2])),
        signature or "",
    )
    return shown or signature, returned


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("api", Api)
    app.connect("autodoc-process-docstring", link_pages)
    app.connect("autodoc-process-signature", show_values)
    return {"parallel_read_safe": True}
