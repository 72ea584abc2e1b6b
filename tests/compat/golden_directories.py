"""Data directories that brokers of earlier versions have left, in golden/."""

from __future__ import annotations

from pathlib import Path

from penstock.vfs.memory import MemoryVfs

_GOLDEN = Path(__file__).parent / "golden"


def left_by(name: str) -> MemoryVfs:
    """A disk with what that broker has left."""
    vfs = MemoryVfs()
    folder = _GOLDEN / name
    for path in folder.rglob("*"):
        if path.is_file():
            own_name = str(path.relative_to(folder))
            file = vfs.open(own_name, create=True)
            file.write_at(0, path.read_bytes())
            file.sync()
            file.close()
            vfs.sync_dir(own_name.rpartition("/")[0])
    return vfs
