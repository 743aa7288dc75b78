"""Writes the stubs of peers' modules (`mpwds/filters.pyi`, ...) from the table in `mpwds/peers.py`."""

from pathlib import Path

from mpwds import peers

for module in peers.PEERS:
    if "." not in module:
        (Path(__file__).parents[1] / "mpwds" / f"{module}.pyi").write_text(peers.stub(module))
