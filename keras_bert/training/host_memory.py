"""Memory of the host, from Linux: available to this process, resident, and its peak.

Files of /proc and of control groups in; bytes out, None where the system does not say.
"""

from collections.abc import Iterator
from pathlib import Path

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def available(proc: Path = _PROC, groups: Path = _GROUPS) -> int | None:
    """Returns what this process may still take of the machine and within its groups' limits.

    Args:
        proc: where the system lists its memory.
        groups: where it lists control groups (version 2), a folder each.

    Returns:
        The bytes.
    """
    machine = _kilobytes(proc / "meminfo", "MemAvailable:")
    return None if machine is None else min([machine, *_left_in_groups(proc, groups)])


def resident(proc: Path = _PROC) -> int | None:
    """Returns what this process has.

    Args:
        proc: where the system lists it.

    Returns:
        The bytes.
    """
    return _kilobytes(proc / "self/status", "VmRSS:")


def peak_resident(proc: Path = _PROC) -> int | None:
    """Returns the most that this process has had since it began.

    Args:
        proc: where the system lists it.

    Returns:
        The bytes.
    """
    return _kilobytes(proc / "self/status", "VmHWM:")


def _left_in_groups(proc: Path, groups: Path) -> Iterator[int]:
    """Yields the rest of each limit on this process: its group's, and those around it."""
    own = [line[4:] for line in _lines(proc / "self/cgroup") if line.startswith("0::/")]
    for name in own:
        for part in (Path(name), *Path(name).parents):
            limit = _figure(groups / part / "memory.max")  # None for "max", which is no limit.
            taken = _figure(groups / part / "memory.current")
            if limit is not None and taken is not None:
                # Files that were read are held until something else wants the memory.
                files = _figure(groups / part / "memory.stat", "inactive_file") or 0
                yield max(0, limit - taken + files)


def _kilobytes(file: Path, name: str) -> int | None:
    figure = _figure(file, name)
    return None if figure is None else figure * 1024


def _figure(file: Path, name: str = "") -> int | None:
    """Reads the number behind a name at the start of a line."""
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
