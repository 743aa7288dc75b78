"""Available memory: the tightest limit of the control groups counts, in either version of them."""

from pathlib import Path

import pytest

from mpwds.sharedmem import segment


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Writes files of a system that is made up."""

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    monkeypatch.setattr(segment, "Path", lambda path: Path(f"{tmp_path}{path}"))
    write("proc/meminfo", "MemTotal: 99 kB\nMemAvailable:  8000 kB\n")
    return write


def group(system, folder, limit, taken=700_000):
    system(f"sys/fs/cgroup/{folder}/memory.max", f"{limit}\n")
    system(f"sys/fs/cgroup/{folder}/memory.current", f"{taken}\n")
    system(f"sys/fs/cgroup/{folder}/memory.stat", "anon 5\ninactive_file 50000\nactive_file 10000\n")


def old_group(system, folder, limit, taken=700_000):
    system(f"sys/fs/cgroup/memory/{folder}/memory.limit_in_bytes", f"{limit}\n")
    system(f"sys/fs/cgroup/memory/{folder}/memory.usage_in_bytes", f"{taken}\n")
    text = "inactive_file 1\ntotal_inactive_file 50000\ntotal_active_file 10000\n"
    system(f"sys/fs/cgroup/memory/{folder}/memory.stat", text)


def test_a_group_may_take_what_its_limit_leaves_and_its_page_cache(system):
    system("proc/self/cgroup", "0::/job\n")
    group(system, "job", 1_000_000)
    assert segment.groups_have_left() == segment.available_nbytes() == 360_000


def test_a_group_without_a_limit_is_bounded_by_those_around_it(system):
    system("proc/self/cgroup", "0::/slice/job/step\n")
    group(system, "slice", 900_000)
    group(system, "slice/job", 1_000_000)
    group(system, "slice/job/step", "max")
    assert segment.groups_have_left() == 260_000


def test_groups_of_the_first_version_count_too(system):
    system("proc/self/cgroup", "9:pids:/job\n4:cpu,memory:/job\n0::/\n")
    old_group(system, "job", 1_000_000)
    assert segment.groups_have_left() == 360_000


def test_in_a_container_the_mounted_group_counts_whatever_it_is_called_outside(system):
    system("proc/self/cgroup", "4:memory:/docker/0123\n")
    old_group(system, "", 800_000)
    assert segment.groups_have_left() == 160_000


def test_a_group_that_has_taken_more_than_it_may_has_nothing_left(system):
    system("proc/self/cgroup", "0::/job\n")
    group(system, "job", 1000)
    assert segment.groups_have_left() == 0


def test_where_there_are_no_limits_the_machine_counts(system):
    system("proc/self/cgroup", "0::/\n")
    assert segment.groups_have_left() is None
    assert segment.available_nbytes() == 8_000 * 1024
