"""What this process' control groups (a container's, a job's) may still take of the machine's memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class _Files(NamedTuple):
    """Where a group tells its limit, what it has taken, and how much of that is page cache."""

    limit: str
    taken: str
    cache: tuple[str, ...]


_VERSION_1 = _Files(
    "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
)
_VERSION_2 = _Files("memory.max", "memory.current", ("inactive_file", "active_file"))


def memory_left() -> int | None:
    """Bytes that this process' control group and all those around it may still take.

    Returns:
        The lowest of their answers; ``None`` if none of them has a limit.
    """
    answers = (_left(folder, files) for folder, files in _groups())
    return min((left for left in answers if left is not None), default=None)


def _groups() -> Iterator[tuple[Path, _Files]]:
    """This process' group and those around it, as far as they can be seen from in here."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            mount, files = Path("/sys/fs/cgroup"), _VERSION_2
        elif "memory" in controllers.split(","):
            mount, files = Path("/sys/fs/cgroup/memory"), _VERSION_1
        else:
            continue
        # In a container the mount may be its own group, and the path one that only those outside know.
        folder = mount / group.lstrip("/")
        for around in (folder, *folder.parents):
            yield around, files
            if around == mount:
                break


def _left(group: Path, files: _Files) -> int | None:
    try:
        limit = int((group / files.limit).read_text())
        taken = int((group / files.taken).read_text())
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        cache = sum(int(counts[name]) for name in files.cache)
    except (OSError, ValueError, KeyError):  # no such group here, or one without a limit
        return None
    return max(0, limit - taken + cache)
