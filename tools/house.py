"""Prints the counts that docs/design.md keeps: sizes, import circles, and what a batch passes on its way.

Imports for type checkers alone and imports in functions count too.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "mpwds"

# The program of the README, without training.
PROGRAM = """
import os, sys, threading
import numpy as np
import mpwds

def record(path):
    seen = set()
    def note(code):
        if code.co_filename not in seen:
            seen.add(code.co_filename)
            with open(path, "a") as file:
                file.write(code.co_filename + "\\n")
    def called(frame, event, argument):
        if event == "call":
            note(frame.f_code)
    frame = sys._getframe(1)
    while frame is not None:
        note(frame.f_code)
        frame = frame.f_back
    sys.setprofile(called)

def transposed(image, started=[]):
    if not started:
        started.append(record(sys.argv[1] + ".worker"))
    return image.transpose(2, 0, 1)

os.chdir(sys.argv[1])
with mpwds.ShardWriter("digits-train-%03d.tar", maxcount=500, verbose=0) as shards:
    for number in range(4000):
        shards.write({"__key__": f"{number:06}", "png": np.full((8, 8, 3), number % 251, np.uint8), "cls": 1})
dataset = (
    mpwds.WebDataset("digits-train-{000..007}.tar", shardshuffle=True, seed=0)
    .shuffle(1000)
    .decode("rgb8")
    .to_tuple("png", "cls")
    .map_tuple(transposed, None)
    .batched(64)
)
with mpwds.MultiLoader(dataset, workers=2) as loader:
    for number, (images, labels) in enumerate(loader):
        if number == 0:
            names = [name for name in sys.modules if name.partition(".")[0] == "mpwds"]
            files = [getattr(sys.modules[name], "__file__", None) for name in names]
            with open(sys.argv[1] + ".imported", "w") as file:
                file.writelines(f"{name}\\n" for name in files if name)
            record(sys.argv[1] + ".trainer")
sys.setprofile(None)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the files too")
    shown = parser.parse_args().list
    _tell("package", package())
    _tell("loader/", package("loader"))
    _tell("import mpwds.loader.multi_loader", imported_with("mpwds.loader.multi_loader"), shown)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        subprocess.run([sys.executable, "-c", PROGRAM, str(work)], check=True)
        _tell("imported by the README's program", _recorded(folder, "work.imported"), shown)
        _tell("on a batch's way", _recorded(folder, "work.trainer", "work.worker"), shown)
    _tell("imported by exactly one other", imported_once(), shown)
    circles = import_circles()
    print(f"{'import circles':<36} {len(circles):4}")
    for circle in circles:
        print(f"    {' '.join(name.removeprefix('mpwds.') for name in circle)}")


def package(folder: str = ".") -> list[Path]:
    """The package's files, or those of one of its folders."""
    return sorted((PACKAGE / folder).rglob("*.py"))


def lines_of(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def imported_with(module: str) -> list[Path]:
    """The files that importing a module executes."""
    files = _files()
    imports = {name: set(_at_import(path, name, files)) for name, path in files.items()}
    return [files[name] for name in _closure(module, imports)]


def imported_once() -> list[Path]:
    """The files that exactly one other file imports."""
    importers = Counter(target for name, targets in _imports().items() for target in targets - {name})
    files = _files()
    return [files[name] for name, count in importers.items() if count == 1]


def import_circles() -> list[list[str]]:
    """Groups of modules that import each other, however indirectly."""
    imports = _imports()
    reached = {name: _reachable(name, imports) for name in imports}
    circles: list[list[str]] = []
    for name in imports:
        if name in reached[name] and not any(name in circle for circle in circles):
            circles.append(sorted(other for other in reached[name] if name in reached[other]))
    return circles


def _tell(what: str, paths: Iterable[Path], shown: bool = False) -> None:
    paths = sorted(paths)
    print(f"{what:<36} {len(paths):4} files {lines_of(paths):7,} lines")
    for path in paths if shown else ():
        print(f"    {path.relative_to(PACKAGE)}")


def _files() -> dict[str, Path]:
    return {_module_of(path): path for path in package()}


def _imports() -> dict[str, set[str]]:
    files = _files()
    return {name: set(_imported_by(path, name, files)) for name, path in files.items()}


def _module_of(path: Path) -> str:
    parts = ("mpwds", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported_by(path: Path, module: str, known: Iterable[str]) -> Iterator[str]:
    return _names(ast.walk(ast.parse(path.read_text())), module, known)


def _at_import(path: Path, module: str, known: Iterable[str]) -> Iterator[str]:
    """What importing the module imports: not what stands in functions or is for type checkers."""
    return _names(ast.parse(path.read_text()).body, module, known)


def _names(nodes: Iterable[ast.AST], module: str, known: Iterable[str]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [name if name in known else node.module for name in inner]
        else:
            continue
        yield from (name for name in found if name in known and name != module)


def _closure(start: str, imports: dict[str, set[str]]) -> set[str]:
    found, waiting = set(), [start]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += imports[name]
            parent = name.rpartition(".")[0]
            waiting += [parent] if parent else []
    return found


def _reachable(start: str, imports: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(imports[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += imports[name]
    return found


def _recorded(folder: str, *names: str) -> set[Path]:
    lines = {line for name in names for line in (Path(folder) / name).read_text().splitlines()}
    return {path for path in map(Path, lines) if path.is_relative_to(PACKAGE)}


if __name__ == "__main__":
    main()
