"""What a start makes of folders in a data directory."""

from __future__ import annotations

import pytest

from penstock.base.errors import CorruptionError
from penstock.metadata.image import ClusterImage
from penstock.node.data_dir.folders import LogFolders, check_folders
from penstock.node.step import Outbox
from penstock.vfs.memory import MemoryVfs

KEPT = ".nfs0000000000a1b2c300000001"


def test_what_nfs_keeps_is_passed_over_and_stays() -> None:
    vfs, outbox = MemoryVfs(), Outbox()
    vfs.open(f"streams/{KEPT}", create=True).close()
    check_folders(vfs, 0)
    LogFolders(vfs, outbox).tidy(ClusterImage(index=9), ())
    assert vfs.list("streams") == [KEPT]
    assert vfs.list("quarantine") == []
    assert outbox.take().notices == []


def test_what_is_left_of_a_removed_stream_goes_once_nfs_keeps_nothing_there() -> None:
    vfs, outbox = MemoryVfs(), Outbox()
    vfs.open(f"streams/00000004-gone/0/{KEPT}", create=True).close()
    LogFolders(vfs, outbox).tidy(ClusterImage(index=9), ())
    assert vfs.list("streams/00000004-gone/0") == [KEPT]
    vfs.remove(f"streams/00000004-gone/0/{KEPT}")  # as NFS does
    LogFolders(vfs, outbox).tidy(ClusterImage(index=3), ())
    assert vfs.list("streams") == ["00000004-gone/"]  # it may be that of a stream that is still to come
    LogFolders(vfs, outbox).tidy(ClusterImage(index=9), ())
    assert (vfs.list("streams"), vfs.list("quarantine")) == ([], [])
    assert outbox.take().notices == []


def test_what_is_of_no_stream_is_moved_with_all_that_it_holds() -> None:
    vfs, outbox = MemoryVfs(), Outbox()
    for path in (f"00000004-gone/0/{KEPT}", "00000004-gone/0/x", "notes"):
        vfs.open(f"streams/{path}", create=True).close()
    with pytest.raises(CorruptionError):
        check_folders(vfs, 3)
    LogFolders(vfs, outbox).tidy(ClusterImage(index=9), ())
    assert vfs.list("quarantine/00000004-gone/0") == [KEPT, "x"]
    assert vfs.list("quarantine") == ["00000004-gone/", "notes"]
    assert all("belongs to no stream" in notice for notice in outbox.take().notices)
