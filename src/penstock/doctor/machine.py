"""Checks of a broker's machine: disk, file system, limits. Run on that machine, with access to the data directory.

Reads /proc and file system statistics (Linux); opens nothing for writing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.base.ids import BrokerId
from penstock.base.limits import OPEN_FILES_ADVISED
from penstock.base.units import format_bytes, format_duration_us
from penstock.doctor.findings import Finding, fail, ok, unknown, warn
from penstock.messages import StatusResponse

_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US
_FULL_US_FAIL = _DAY_US
_FULL_US_WARN = 7 * _DAY_US
_FREE_SHARE_FAIL = 0.03
_FREE_SHARE_WARN = 0.10
_RATE_US_MIN = _HOUR_US  # no rate is computed from a shorter time
_MEMORY_SHARE_MAX = 0.5  # for messages in flight, of the broker's memory
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs", "fuse.s3fs", "afs"})
_VOLATILE = frozenset({"tmpfs", "ramfs"})
_LAYERED = frozenset({"overlay", "aufs"})
_IDENTITY_BYTES_MAX = 64 * 1024


class Limits(NamedTuple):
    """Limits of a process and its machine; None: unknown."""

    open_files: int | None
    memory_bytes: int | None
    swapped_bytes: int | None


class Mount(NamedTuple):
    """The file system of a directory."""

    kind: str
    at: str


def judge_machine(
    data_dir: Path, statuses: Mapping[BrokerId, StatusResponse], root: Path = Path("/")
) -> Iterator[Finding]:
    """Run all checks; `statuses` by broker id. `root` is the parent of /proc and /sys."""
    where = str(data_dir)
    try:
        broker_id = _whose(data_dir)
        space = os.statvfs(data_dir)
    except (OSError, ValueError) as error:
        text = getattr(error, "strerror", None) or str(error)
        yield unknown("disk", f"{where}: {text}", "name the data directory of a broker, on its own machine")
        return
    name = f"broker {broker_id}, {where}"
    status = statuses.get(broker_id)
    free, size = space.f_bavail * space.f_frsize, max(1, space.f_blocks * space.f_frsize)
    yield disk_space(name, free, size, None if status is None else _bytes_each_us(status))
    if (mount := mount_of(data_dir.resolve(), root / "proc/self/mountinfo")) is not None:
        yield file_system(name, mount)
    process = _process(data_dir)
    if process is None or not (root / f"proc/{process}").is_dir():
        yield unknown("limits", f"{name}: its process does not run here", "run `penstock doctor` on its machine")
        return
    in_flight_max = None if status is None else status.in_flight_bytes_max
    yield from judge_limits(name, limits_of(process, root), in_flight_max)


def _whose(data_dir: Path) -> BrokerId:
    with (data_dir / "penstock.json").open("rb") as opened:
        try:
            return BrokerId(int(msgspec.json.decode(opened.read(_IDENTITY_BYTES_MAX)).get("broker_id", 1)))
        except (msgspec.DecodeError, AttributeError, TypeError):
            raise ValueError("penstock.json cannot be read") from None


def _process(data_dir: Path) -> int | None:
    try:
        return int((data_dir / "LOCK").read_text())
    except (OSError, ValueError):
        return None


def _bytes_each_us(status: StatusResponse) -> float | None:
    """Return the rate of incoming bytes per µs since the broker's start; None if it started recently."""
    uptime_us = status.uptime_ms * 1_000
    return status.counters.get("bytes_in", 0) / uptime_us if uptime_us >= _RATE_US_MIN else None


def disk_space(name: str, free: int, size: int, bytes_each_us: float | None) -> Finding:
    """Check free disk space, and when it will be used up if nothing is deleted."""
    share = free / size
    text = f"{name}: {format_bytes(free)} of {format_bytes(size)} free ({share:.0%})"
    left_us = None
    if bytes_each_us:
        left_us = int(free / bytes_each_us)
        each_day = format_bytes(int(bytes_each_us * _DAY_US))
        text += f"; with {each_day} a day, as since its start, that is {_days(left_us)}, without what retention deletes"
    advice = "add disk, or let streams keep less: docs/how-to/retention.md"
    if share < _FREE_SHARE_FAIL or (left_us is not None and left_us < _FULL_US_FAIL):
        return fail("disk", text, advice)
    if share < _FREE_SHARE_WARN or (left_us is not None and left_us < _FULL_US_WARN):
        return warn("disk", text, advice)
    return ok("disk", text)


def _days(left_us: int) -> str:
    years = left_us // (365 * _DAY_US)
    return f"more than {years} years" if years >= 2 else format_duration_us(left_us // 1_000_000 * 1_000_000)


def mount_of(path: Path, mounts: Path) -> Mount | None:
    """Return the mount that contains the path, from the kernel's list; None if unknown."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    found: Mount | None = None
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds:
            continue
        at = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        # The last of several mounts at the same place is on top.
        if path.is_relative_to(at) and (found is None or len(at) >= len(found.at)):
            found = Mount(kinds[0], at)
    return found


def file_system(name: str, mount: Mount) -> Finding:
    """Check that the file system is on a disk of this machine."""
    text = f"{name}: {mount.kind}, mounted at {mount.at}"
    if mount.kind in _VOLATILE:
        return fail("file system", f"{text}: in memory, gone with the power", "use a disk")
    if mount.kind in _LAYERED:
        return warn("file system", f"{text}: of a container, gone with it", "use a volume")
    if mount.kind in _NETWORK or mount.kind.startswith("fuse"):
        advice = "use a local disk, or a block device: locks, syncs and full disks behave otherwise here"
        return warn("file system", f"{text}: not a disk of this machine", advice)
    return ok("file system", text)


def limits_of(process: int, root: Path) -> Limits:
    """Return limits of a process on Linux."""
    folder = root / "proc" / str(process)
    limits = _text(folder / "limits")
    status = _text(folder / "status")
    open_files = re.search(r"^Max open files\s+(\d+)", limits, re.MULTILINE)
    swapped = re.search(r"^VmSwap:\s+(\d+) kB", status, re.MULTILINE)
    return Limits(
        None if open_files is None else int(open_files[1]),
        _memory(process, root),
        None if swapped is None else int(swapped[1]) * 1_024,
    )


def _memory(process: int, root: Path) -> int | None:
    """Return the memory limit: the machine's memory, or the least of the control groups' limits."""
    total = re.search(r"^MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    found = [] if total is None else [int(total[1]) * 1_024]
    group = re.search(r"^0::(/.*)$", _text(root / f"proc/{process}/cgroup"), re.MULTILINE)
    if group is not None:
        folder = root / "sys/fs/cgroup" / group[1].lstrip("/")
        while folder.is_relative_to(root / "sys/fs/cgroup"):
            limit = _text(folder / "memory.max").strip()
            found += [int(limit)] if limit.isdigit() else []
            folder = folder.parent
    return min(found, default=None)


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""


def judge_limits(name: str, limits: Limits, in_flight_bytes_max: int | None) -> Sequence[Finding]:
    """Check that the process has enough resources for its settings."""
    found = []
    if limits.open_files is not None and limits.open_files < OPEN_FILES_ADVISED:
        text = f"{name}: may open {limits.open_files} files"
        found.append(warn("limits", text, f"LimitNOFILE, or ulimit -n: {OPEN_FILES_ADVISED} or more"))
    memory = limits.memory_bytes
    if memory is not None and in_flight_bytes_max is not None and in_flight_bytes_max > memory * _MEMORY_SHARE_MAX:
        text = f"{name}: {format_bytes(in_flight_bytes_max)} may be in flight, of {format_bytes(memory)} of memory"
        found.append(warn("limits", text, "lower `broker_in_flight_bytes`, or give it more memory"))
    if limits.swapped_bytes:
        text = f"{name}: {format_bytes(limits.swapped_bytes)} of it are swapped out"
        found.append(warn("limits", text, "more memory, or no swap: acks wait for what is swapped out"))
    if not found:
        told = ["" if limits.open_files is None else f"{limits.open_files} open files"]
        told.append("" if memory is None else f"{format_bytes(memory)} of memory")
        found.append(ok("limits", f"{name}: {', '.join(filter(None, told))}"))
    return found
