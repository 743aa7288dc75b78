"""The directive ``report``: shows what a benchmark printed in the last report, so no page has older figures.

Its argument is the benchmark's name. ``:from:`` and ``:to:`` are how the first line begins, and the first one
that is left out; by default all lines are shown. Lines about goals of the project are only in the report.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

REPORT = Path(__file__).parents[1] / "proof" / "report.json"


class Report(SphinxDirective):
    required_arguments = 1
    option_spec: ClassVar = {"from": directives.unchanged_required, "to": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(REPORT))
        run = json.loads(REPORT.read_text())[self.arguments[0]]
        lines = run["output"].strip("\n").splitlines()
        first = self._place("from", lines, 0)
        last = first + self._place("to", lines[first:], len(lines) - first)
        shown = (line for line in lines[first:last] if not line.lstrip().startswith("goal:"))
        text = "\n".join(shown).strip("\n")
        block = nodes.literal_block(text, text, language="text")
        command = f"`{run['command']}`, {run['date']}, {run['machine']}: [report](/proof/report.md)."
        return [block, *self.parse_text_to_nodes(StringList([command], "report"))]

    def _place(self, option: str, lines: list[str], default: int) -> int:
        """The number of the first line that begins as an option says."""
        if option not in self.options:
            return default
        found = [number for number, line in enumerate(lines) if line.startswith(self.options[option])]
        if not found:
            raise self.error(f"no line of {self.arguments[0]} begins with {self.options[option]!r}")
        return found[0]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("report", Report)
    return {"parallel_read_safe": True}
