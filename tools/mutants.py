"""Breaks the package in one random place at a time, and tells which breaks no test notices.

    make mutants ARGS="loader/engine storage/tar --count 20 --seed 1"

A mutant is a change that cosmic-ray makes: another comparison or number, a condition negated, a loop that
never runs, an exception that is not caught. The tests of the same room run first, then the whole quick suite.
Each survivor is printed as a diff: write the test of the behaviour that it breaks, or see why it breaks none.
The work happens in a copy, so the checkout stays as it is.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.testing import run_tests
from cosmic_ray.work_item import MutationSpec, TestOutcome

ROOT = Path(__file__).parents[1]
COPIED = ("mpwds", "tests", "docs", "tools", "pyproject.toml", "README.md", "Makefile", "CHANGELOG.md")
ROOM_TIMEOUT_S, SUITE_TIMEOUT_S = 900, 3600
# Annotations hold most `|`, and nobody runs them.
LEFT_OUT = "core/ReplaceBinaryOperator_BitOr"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rooms", nargs="*", default=["."], help="folders or files below mpwds/")
    parser.add_argument("--count", type=int, default=20, help="mutants (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="determines which (default: 0)")
    parser.add_argument("--room-only", action="store_true", help="run the tests of the same room alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mpwds-mutants-") as folder:
        _copy_to(folder)
        files = [file for room in options.rooms for file in _files(Path("mpwds", room))]
        if not files:
            sys.exit(f"mutants: no Python files below mpwds/ in {', '.join(options.rooms)} ")
        found = [mutation for file in files for mutation in _mutations(file)]
        chosen = random.Random(options.seed).sample(found, min(options.count, len(found)))
        for tests in {_tests_of(mutation.module_path) for mutation in chosen}:
            if run_tests(_command(tests), ROOM_TIMEOUT_S)[0] != TestOutcome.SURVIVED:
                sys.exit(f"mutants: {tests} fails without a mutant: run it, and mend that first")
        survivors = [mutation for mutation in chosen if _survives(mutation, options.room_only)]
    noticed = len(chosen) - len(survivors)
    print(f"{noticed} of {len(chosen)} of {len(found):,} mutants noticed, {len(files)} files")


def _copy_to(folder: str) -> None:
    for name in COPIED:
        source, target = ROOT / name, Path(folder, name)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = folder  # before the editable install, also in processes that tests start


def _files(room: Path) -> list[Path]:
    return [room] if room.suffix == ".py" else sorted(room.rglob("*.py"))


def _mutations(file: Path) -> Iterator[MutationSpec]:
    nodes = list(ast_nodes(get_ast_from_path(file)))
    for name in operator_names():
        operator = get_operator(name)
        if name.startswith(LEFT_OUT) or operator.arguments():
            continue
        positions = (position for node in nodes for position in operator().mutation_positions(node))
        for occurrence, (start, end) in enumerate(positions):
            yield MutationSpec(file, name, occurrence, start, end)


def _survives(mutation: MutationSpec, room_only: bool) -> bool:
    where = f"{mutation.module_path}:{mutation.start_pos[0]} {mutation.operator_name.removeprefix('core/')}"
    suites = [(_tests_of(mutation.module_path), ROOM_TIMEOUT_S)]
    if not room_only:
        suites.append((Path("tests"), SUITE_TIMEOUT_S))
    for tests, timeout_s in suites:
        result = mutate_and_test([mutation], _command(tests), timeout_s)
        if result.test_outcome != TestOutcome.SURVIVED:
            print(f"noticed by {tests}: {where}", flush=True)
            return False
    print(f"SURVIVED: {where}\n{result.diff}\n", flush=True)
    return True


def _command(tests: Path) -> str:
    return f"{sys.executable} -m pytest -x -q -n 3 --dist worksteal -m 'not slow' -p no:cacheprovider {tests}"


def _tests_of(module: Path) -> Path:
    """The folder or file of tests that mirrors a module, or the nearest above it."""
    below = module.relative_to("mpwds")
    for folder in below.parents:
        mirror = Path("tests", folder)
        for tests in (mirror / f"test_{below.stem}.py", mirror, mirror.parent / f"test_{folder.name}.py"):
            if tests.exists():
                return tests
    return Path("tests")


if __name__ == "__main__":
    main()
