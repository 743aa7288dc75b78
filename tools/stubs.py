"""Writes the stubs for type checkers by `names.py`: `mpwds/__init__.pyi`, and those of peers' modules."""

from __future__ import annotations

from pathlib import Path

import mpwds
from mpwds import names


def stub(module: str) -> str:
    """The file that tells type checkers the names of a module."""
    lines = sorted(f"from {home} import {name} as {name}\n" for name, home in names.homes_of(module).items())
    return "".join(lines) + ("\nenforce_security: bool\n" if module == "utils" else "")


def stubs() -> dict[str, str]:
    """The text of each stub, by the module's name."""
    by_name = {name: stub(name) for name in names.PEERS if "." not in name}
    modules = dict.fromkeys(("cluster", "compat", *names.MODULES, *by_name), "mpwds")
    homes = sorted((home, name) for name, home in {**modules, **names.HOMES}.items())
    lines = [
        '"""The public names: `tools/stubs.py` writes this file from `names.py`, which finds them."""\n',
        *(f"from {home} import {name} as {name}" for home, name in homes),
        "\n__all__ = [",
        *(f'    "{name}",' for name in mpwds.__all__),
        "]\n\n__version__: str\n",
    ]
    return {"__init__": "\n".join(lines), **by_name}


if __name__ == "__main__":
    for module, text in stubs().items():
        (Path(__file__).parents[1] / "mpwds" / f"{module}.pyi").write_text(text)
