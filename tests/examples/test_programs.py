"""Programs written for torch's DataLoader print the same with the import changed, losses to the last bit."""

import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
TORCH, OURS = (
    "from torch.utils.data import DataLoader, ",
    "from mpwds import DataLoader\nfrom torch.utils.data import ",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    sys.path.insert(0, str(PROGRAMS))
    try:
        import make_data
    finally:
        sys.path.remove(str(PROGRAMS))
    make_data.photographs(folder, per_class=24, size=72)
    make_data.tokens(folder, documents=400, mean_length=40)
    make_data.vectors(folder, rows=101, width=8)
    return folder


@pytest.mark.parametrize(
    ("program", "ranks", "lines"),
    [("image_folder", 1, 14), ("token_packing", 1, 88), ("ddp", 2, 6)],
)
def test_a_program_prints_the_same_with_the_import_changed(run, data, tmp_path, program, ranks, lines):
    script = PROGRAMS / f"{program}.py"
    text = script.read_text()
    assert text.count(TORCH) == 1
    changed = tmp_path / f"{program}.py"
    changed.write_text(text.replace(TORCH, OURS))
    expected = without_times(run(script, data, ranks=ranks))
    assert without_times(run(changed, data, ranks=ranks)) == expected
    assert len(expected) == lines


def without_times(lines):
    return [line for line in lines if not line.startswith("seconds ")]
