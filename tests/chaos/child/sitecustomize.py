"""Imported by a broker that a chaos run starts with this folder on its path: its disk, its clock, a planted mistake.

| variable       | effect                                                                             |
|----------------|------------------------------------------------------------------------------------|
| CHAOS_UNSYNCED | what it does to its data directory can be undone as far as it is not synced        |
| CHAOS_CLOCK    | its wall clock is off by as many nanoseconds as this file of eight bytes says      |
| CHAOS_MUTANT   | it has this mistake of `tests.sim.mutants.mutants`                                      |
| CHAOS_NO_SYNC  | its syncs of segments return at once, and nothing is on the disk: a disk that lies |
"""

import mmap
import os
import struct
import time

if os.environ.get("CHAOS_MUTANT"):
    from tests.sim.mutants import mutants

    mutants.install(os.environ["CHAOS_MUTANT"])

if os.environ.get("CHAOS_UNSYNCED"):
    from tests.chaos import unsynced

    unsynced.install()
    if os.environ.get("CHAOS_NO_SYNC"):
        _sync = unsynced.UnsyncedFile.sync

        def _lying_sync(self: unsynced.UnsyncedFile) -> None:
            if not self.path.endswith(".arrows"):
                _sync(self)

        unsynced.UnsyncedFile.sync = _lying_sync  # type: ignore[method-assign]

if os.environ.get("CHAOS_CLOCK"):
    with open(os.environ["CHAOS_CLOCK"], "rb") as _file:
        _off = mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)
    _time_ns = time.time_ns

    def _moved_time_ns() -> int:
        moved: int = struct.unpack_from("<q", _off)[0]
        return _time_ns() + moved

    time.time_ns = _moved_time_ns
