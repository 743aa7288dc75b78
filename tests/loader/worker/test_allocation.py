"""A worker's malloc keeps what a batch leaves free for the next one."""

import platform
import resource
from collections.abc import Iterator

import numpy as np
import pytest

from mpwds import MultiLoader
from mpwds.loader.worker.worker import keep_freed_memory

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about glibc's malloc")

PAGES_OF_A_ROUND = 32 * 600_000 // 4096


def page_faults_of_rounds() -> Iterator[int]:
    """Makes 32 arrays of 600 kB in each of 8 rounds, frees them, and yields how many pages were mapped."""
    for _ in range(8):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        rows = [np.ones(150_000, np.float32) for _ in range(32)]
        del rows
        yield resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.fixture
def malloc_not_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("malloc_not_set_up")
@pytest.mark.parametrize("start_method", ["spawn", "forkserver", "fork"])
def test_what_a_batch_left_free_is_not_mapped_anew_for_the_next(start_method: str) -> None:
    with MultiLoader(page_faults_of_rounds, workers=1, start_method=start_method) as loader:
        faults = list(loader)
    assert faults[-1] < PAGES_OF_A_ROUND / 10


@pytest.mark.usefixtures("malloc_not_set_up")
def test_malloc_that_the_user_has_set_up_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    with MultiLoader(page_faults_of_rounds, workers=1) as loader:
        faults = list(loader)
    assert faults[-1] > PAGES_OF_A_ROUND / 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_MMAP_THRESHOLD_", "131072"),
        ("MALLOC_TOP_PAD_", "0"),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072"),
    ],
)
@pytest.mark.usefixtures("malloc_not_set_up")
def test_each_way_to_set_malloc_up_counts(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert not keep_freed_memory()
