"""Reads the available memory of this process and machine from Linux.

The sources are /proc and control groups (version 2). Results are in bytes, or None if unknown.
"""

from collections.abc import Iterator
from pathlib import Path

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def available(proc: Path = _PROC, groups: Path = _GROUPS) -> int | None:
    """Returns the bytes that this process can still allocate; None if unknown.

    They are limited by the free memory of the machine, and by the cgroups of the process.
    """
    machine = _number(proc / "meminfo", "MemAvailable:")
    return None if machine is None else min([machine * 1024, *_available_in_groups(proc, groups)])


def _available_in_groups(proc: Path, groups: Path) -> Iterator[int]:
    """Yields the bytes left below each memory limit: of this process's cgroup and its parents."""
    own = [line[4:] for line in _lines(proc / "self/cgroup") if line.startswith("0::/")]
    for name in own:
        for part in (Path(name), *Path(name).parents):
            limit = _number(groups / part / "memory.max")  # None for "max", that is, no limit.
            taken = _number(groups / part / "memory.current")
            if limit is not None and taken is not None:
                # The kernel frees cached files when memory is needed.
                files = _number(groups / part / "memory.stat", "inactive_file") or 0
                yield max(0, limit - taken + files)


def _number(file: Path, name: str = "") -> int | None:
    """Returns the number after `name` in the first line that starts with both; None without one."""
    for line in _lines(file):
        words = line.removeprefix(name).split()
        if line.startswith(name) and words and words[0].isdecimal():
            return int(words[0])
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
