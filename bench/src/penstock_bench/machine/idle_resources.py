"""Resources of an idle process, as Linux counts them: memory, open files, connections, threads, CPU."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from penstock_bench.machine.processes import cpu_seconds

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Held(msgspec.Struct, frozen=True):
    """The resources of one process at one time."""

    resident_bytes: int
    files: int  # on a file system, such as open segments
    sockets: int
    threads: int
    cpu_seconds: float


def held(process_id: int) -> Held:
    """Return the current resources. Raise OperationalError or OSError if the process has ended."""
    folder = Path(f"/proc/{process_id}")
    targets = [_target(path) for path in (folder / "fd").iterdir()]
    return Held(
        resident_bytes=int((folder / "statm").read_text().split()[1]) * _PAGE_BYTES,
        files=sum(target.startswith("/") and not target.startswith("/dev/") for target in targets),
        sockets=sum(target.startswith("socket:") for target in targets),
        threads=len(list((folder / "task").iterdir())),
        cpu_seconds=cpu_seconds(f"process {process_id}", process_id),
    )


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except FileNotFoundError:
        return ""  # closed since it was listed
