"""A small disk that tests fill, and free again."""

from __future__ import annotations

import contextlib
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.broker_process import BrokerProcess

DISK_BYTES = 6 << 20
_BALLAST_BYTES = 3 << 20


class SmallDisk:
    """A folder with little space: a tmpfs, or, without permission to mount, a limit on the size of each file."""

    def __init__(self, folder: Path, *, is_mounted: bool) -> None:
        self.folder = folder
        self.is_mounted = is_mounted
        self._ballast = folder / "ballast"
        if is_mounted:
            self.fill()

    def fill(self) -> None:
        """Use the space that `make_room` freed."""
        if self.is_mounted:
            self._ballast.write_bytes(bytes(_BALLAST_BYTES))

    def fill_up(self, file: Path) -> None:
        """Use all remaining space."""
        with file.open("wb", buffering=0) as rest, contextlib.suppress(OSError):
            while True:
                rest.write(bytes(4096))

    def make_room(self, broker: BrokerProcess) -> None:
        """Free space, so that failed writes can be repeated."""
        if self.is_mounted:
            self._ballast.unlink()
        else:
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def limit(self) -> None:
        """Set the limit in the broker's process; for `before_exec`."""
        if not self.is_mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (_BALLAST_BYTES, resource.RLIM_INFINITY))


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """Create a small disk within the block."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "penstock-test", str(folder)]
    try:
        is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    try:
        yield SmallDisk(folder, is_mounted=is_mounted)
    finally:
        if is_mounted:
            subprocess.run(["umount", str(folder)], check=True, capture_output=True)
