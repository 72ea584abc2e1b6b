"""A disk that fills up in no time, and gets room again when told to."""

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
    """A folder with little room: a tmpfs, or without the right to mount one a limit on the size of every file."""

    def __init__(self, folder: Path, *, is_mounted: bool) -> None:
        self.folder = folder
        self.is_mounted = is_mounted
        self._ballast = folder / "ballast"
        if is_mounted:
            self.fill()

    def fill(self) -> None:
        """Take the room that `make_room` gave."""
        if self.is_mounted:
            self._ballast.write_bytes(bytes(_BALLAST_BYTES))

    def fill_up(self, file: Path) -> None:
        """Take all the room there is."""
        with file.open("wb", buffering=0) as rest, contextlib.suppress(OSError):
            while True:
                rest.write(bytes(4096))

    def make_room(self, broker: BrokerProcess) -> None:
        """Room for what could not be written before."""
        if self.is_mounted:
            self._ballast.unlink()
        else:
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def limit(self) -> None:
        """Before the broker is started, in its process."""
        if not self.is_mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (_BALLAST_BYTES, resource.RLIM_INFINITY))


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """One of the two; a mount is undone."""
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
