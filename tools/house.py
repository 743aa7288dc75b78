"""Prints how large and how tangled the package is, beside the goals: a table for docs/design.md.

Imports for type checkers alone and imports in functions count too. A call is one of a Python function of the
package. The rows from "one importer" to "odd words" are places to look at, not verdicts; `--list "odd words"`
prints them.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
SAMPLES = 3000  # in each of two shards

GOALS = {
    "one importer": 25,
    "class names used twice": 8,
    "asked by getattr": 40,
    "private of another": 5,
    "silent rooms": 0,
    "docstrings that are noun clauses": 30,
    "odd words": 20,
}

COUNTING = """
import json, sys, threading, time
import mpwds
package = mpwds.__file__.removesuffix("__init__.py")
calls = []
def called(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(package):
        calls.append(frame.f_code.co_filename)
def modules():
    own = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "mpwds"}
    return [name for name, module in own.items() if hasattr(module, "__file__")]
"""

# The worker counts what it calls for each of 20 batches, then the trainer what it calls for each of 40.
LOADING = """
samples = []
each = []
def counted(sample):
    samples.append(len(calls))
    if len(samples) == 320:
        sys.setprofile(called)
    if len(samples) == 960:
        sys.setprofile(None)
        ends = samples[320::32]
        batches = sorted(end - start for start, end in zip(ends, ends[1:]))
        with open("worker.json", "w") as file:
            json.dump({"calls": batches[len(batches) // 2], "modules": modules()}, file)
    return sample
urls = "shard-{0..1}.tar"
dataset = mpwds.WebDataset(urls, shardshuffle=2, seed=0).shuffle(100).decode().map(counted).batched(32)
with mpwds.MultiLoader(dataset, workers=1) as loader:
    batches = iter(loader)
    for _ in range(40):
        batch = next(batches)
        time.sleep(0.02)
        calls.clear()
        sys.setprofile(called)
        batch = next(batches)
        sys.setprofile(None)
        each.append((len(calls), len(set(calls))))
    worker = json.load(open("worker.json"))
    del batch, batches
worker["modules"] += modules()
print(json.dumps([min(each), worker]))
"""

INDEXED = """
mpwds.IndexedDataset("shard-{0..1}.tar")
print(json.dumps(modules()))
"""

# The difference between two shards and one is free of what each run costs.
SHUFFLING = """
from mpwds.cli.main import main
counts = []
for number, urls in enumerate(["shard-0.tar", "shard-{0..1}.tar"]):
    sys.argv = ["mpwds", "shuffle", urls, f"shuffled{number}-%d.tar"]
    calls.clear()
    threading.setprofile(called)
    sys.setprofile(called)
    try:
        main()
    except SystemExit as end:
        assert not end.code
    sys.setprofile(None)
    threading.setprofile(None)
    counts.append(len(calls))
print(json.dumps(counts[1] - counts[0]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", metavar="ROW", choices=GOALS, help="print the places that a row counts")
    listed = parser.parse_args().list
    if listed:
        print(*census()[listed], sep="\n")
        return
    print(f"| {'`python tools/house.py`':<76} | {'now':>15} | {'goal':>12} |\n| --- | --- | --- |")
    for row, now, goal in rows():
        print(f"| {row:<76} | {now:>15} | {goal:>12} |")


def rows() -> Iterator[tuple[str, str, str]]:
    """The table's rows: what is counted, the figure, and its goal."""
    files = package()
    found = census()
    yield "package: lines / files", f"{_lines(files.values()):,} / {len(files)}", "45,000 / 220"
    yield "of these code", f"{len(found['code']):,}", "31,000"
    yield "import lines", f"{len(found['imports']):,}", "2,600"
    with tempfile.TemporaryDirectory() as folder:
        for shard in range(2):
            _write_shard(Path(folder, f"shard-{shard}.tar"))
        (calls, passed), worker = _run(LOADING, folder)
        imported = [files[name] for name in set(worker["modules"])]
        indexed = _run(INDEXED, folder)
        shuffling = _run(SHUFFLING, folder) / SAMPLES
    yield (
        "a program's imports, trainer and worker: lines / files",
        f"{_lines(imported):,} / {len(imported)}",
        "12,500 / 70",
    )
    yield "trainer, one next() of a small batch that is there: calls / files", f"{calls} / {passed}", "25 / 8"
    yield "worker, a batch of 32 samples: calls", f"{worker['calls']}", "550"
    of_mds = sum(".mds" in name for name in indexed)
    yield 'IndexedDataset("{0..1}.tar"): modules / of MDS', f"{len(indexed)} / {of_mds}", "40 / 0"
    yield "mpwds shuffle: calls a sample", f"{shuffling:.0f}", "15"
    for row, goal in GOALS.items():
        yield row, str(len(found[row])), str(goal)
    circles = f"{len(import_circles())} / {len(import_circles(of_folders=True))}"
    yield "circles between files / between folders", circles, "0 / 0"
    yield "tests: lines", f"{_lines((ROOT / 'tests').rglob('*.py')):,}", "42,000"


def package() -> dict[str, Path]:
    """The package's modules and their files."""
    paths = sorted((ROOT / "mpwds").rglob("*.py"))
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


def import_circles(of_folders: bool = False) -> list[list[str]]:
    """Groups of modules, or of folders, that import each other, however indirectly."""
    files = package()
    imports: dict[str, set[str]] = defaultdict(set)
    for name, path in files.items():
        for target in _imported(ast.parse(path.read_text()), files):
            pair = [module if not of_folders else _folder(module, files) for module in (name, target)]
            imports[pair[0]] |= {pair[1]} - {pair[0]}
    reached = {name: _reachable(name, imports) for name in list(imports)}
    circles = {
        tuple(sorted(other for other in found if name in reached.get(other, ())))
        for name, found in reached.items()
    }
    return [list(circle) for circle in sorted(circles) if circle]


def census() -> dict[str, list[str]]:
    """The places that each row of ``GOALS`` counts, and the lines of code and of imports."""
    files = package()
    found: dict[str, list[str]] = {row: [] for row in (*GOALS, "code", "imports")}
    classes: dict[str, list[str]] = defaultdict(list)
    importers: dict[str, set[str]] = defaultdict(set)
    for module, path in files.items():
        text, where = path.read_text(), str(path.relative_to(ROOT))
        tree = ast.parse(text)
        code = {line for token in _tokens(text) for line in range(token.start[0], token.end[0] + 1)}
        for node in ast.walk(tree):
            docstring = _docstring(node)
            if docstring is not None:
                code -= set(_span(docstring))
                if re.match(r"\s*(What|Whether|Where|How|Why|Who|Whoever)\b", str(docstring.value)):
                    found["docstrings that are noun clauses"].append(f"{where}:{docstring.lineno}")
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                found["imports"] += [where for _ in _span(node)]
            elif isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{where}:{node.lineno}")
            elif isinstance(node, ast.Call) and _asks_by_name(node):
                found["asked by getattr"].append(f"{where}:{node.lineno} {ast.unparse(node)}")
            elif isinstance(node, ast.Attribute) and _is_private_of_another(node, text):
                found["private of another"].append(f"{where}:{node.lineno} {ast.unparse(node)}")
        for name in _imported(tree, files) - {module}:
            importers[name].add(module)
        found["code"] += [where] * len(code)
        for number, line in enumerate(text.splitlines(), 1):
            found["odd words"] += [
                f"{where}:{number} {word}"
                for word in ("behind", "anew", "whoever")
                if re.search(rf"\b{word}\b", line)
            ]
        if path.name == "__init__.py" and text.count("\n") < 3 and module != "mpwds":
            found["silent rooms"].append(where)
    found["class names used twice"] = [
        f"{name}: {places}" for name, places in classes.items() if len(places) > 1
    ]
    found["one importer"] = [
        f"{name} by {next(iter(by))}"
        for name, by in importers.items()
        if len(by) == 1 and files[name].name != "__init__.py"
    ]
    return found


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    blank = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    return (
        token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in blank
    )


def _docstring(node: ast.AST) -> ast.Constant | None:
    """The docstring of a module, class or function."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
        first = node.body[0]
        if (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ):
            return first.value
    return None


def _span(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _asks_by_name(call: ast.Call) -> bool:
    """True for ``getattr(object, "name")`` and ``hasattr``."""
    asks = isinstance(call.func, ast.Name) and call.func.id in ("getattr", "hasattr")
    return asks and isinstance(call.args[1], ast.Constant)


def _is_private_of_another(node: ast.Attribute, text: str) -> bool:
    """True for ``other._name``, unless the file itself defines ``_name``."""
    name = node.attr
    of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    here = f"self.{name}" in text or f"def {name}" in text or f"{name}:" in text
    return name.startswith("_") and not name.startswith("__") and not of_self and not here


def _imported(tree: ast.AST, known: Iterable[str]) -> set[str]:
    """The package's modules that a module imports; a folder counts if a name of it is taken."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner | ({node.module} if inner - set(known) else set())
    return found & set(known)


def _folder(module: str, files: dict[str, Path]) -> str:
    """The folder of a module; the package's own modules are each a folder."""
    parent = module.rpartition(".")[0]
    return module if files[module].name == "__init__.py" or parent == "mpwds" else parent


def _reachable(start: str, imports: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(imports[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += imports.get(name, ())
    return found


def _lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def _write_shard(path: Path) -> None:
    npy = io.BytesIO()
    np.save(npy, np.zeros(16, np.float32))
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as shard:
        for number in range(SAMPLES):
            for extension, data in (("cls", b"7"), ("npy", npy.getvalue())):
                member = tarfile.TarInfo(f"{path.stem}-{number:05}.{extension}")
                member.size = len(data)
                shard.addfile(member, io.BytesIO(data))


def _run(program: str, folder: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", COUNTING + program], cwd=folder, check=True, stdout=subprocess.PIPE
    )
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
