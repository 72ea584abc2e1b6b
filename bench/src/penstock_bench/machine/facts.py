"""Facts of the machine and software on which the figures were measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import msgspec

from penstock import __version__
from penstock.broker.nats.server import find_nats_server
from penstock.hot import way

MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_PACKAGES = ("pyarrow", "nats-py", "crc32c", "msgspec", "confluent-kafka", "grpcio", "hdrhistogram")
_TIMEOUT_S = 10.0


class Machine(msgspec.Struct, frozen=True):
    """Facts of one run. `load_average` is that of the minute before it began: 0 is an idle machine."""

    cpu: str
    cores: int  # available to this process
    memory_bytes: int
    kernel: str
    file_system: str  # of the folder of the logs
    python: str
    penstock: str
    hot_path: str  # "compiled" or "plain Python"
    nats_server: str
    packages: dict[str, str]
    load_average: float


def machine(folder: Path) -> Machine:
    """Collect the facts; `folder` is that of the logs."""
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        file_system=file_system(folder),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        penstock=__version__,
        hot_path=way(),
        nats_server=_nats_server(),
        packages=_packages(),
        load_average=round(os.getloadavg()[0], 2),
    )


def file_system(folder: Path) -> str:
    """Return the file system type of `folder`, such as ext4; empty if unknown (not Linux)."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    resolved = folder.resolve()
    best, found = -1, ""
    for line in mounts:
        left, _, right = line.partition(" - ")
        point = Path(left.split(" ")[4].encode().decode("unicode_escape"))
        if (resolved == point or point in resolved.parents) and len(point.parts) >= best:
            best, found = len(point.parts), right.split(" ")[0]
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _nats_server() -> str:
    said = subprocess.run([find_nats_server(), "-v"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    return said.stdout.strip().rpartition(" ")[2]


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that is not installed
    return found
