"""The list of gaps: a file that cannot be read stops no broker, and is not overwritten."""

from __future__ import annotations

import errno
from pathlib import Path

from penstock.node.gaps import GAPS_PATH, Gaps
from penstock.vfs.faulty import Fault, FaultyVfs, Kind
from penstock.vfs.memory import MemoryVfs
from penstock.vfs.real import RealVfs
from tests.unit.node.harness import Broker


def test_a_folder_in_place_of_the_list_is_moved_aside(tmp_path: Path) -> None:
    (tmp_path / GAPS_PATH / "notes").mkdir(parents=True)
    gaps = Gaps(RealVfs(tmp_path))
    note = gaps.load(stream_ids=(), last_sign_of_life_us=1, now_us=2)
    assert note == (
        f"cannot read {GAPS_PATH} (Is a directory): earlier gaps are not shown; it was moved to {GAPS_PATH}.unread-1"
    )
    gaps.save().run()
    assert (tmp_path / GAPS_PATH).read_bytes().count(b"\n") == 1
    assert (tmp_path / f"{GAPS_PATH}.unread-1" / "notes").is_dir()


def test_a_list_that_the_disk_cannot_read_is_kept_and_the_broker_starts() -> None:
    broker = Broker().start()
    broker.stop()
    content = broker.memory.open(GAPS_PATH).read_at(0, 10_000)
    broker.memory.open(f"{GAPS_PATH}.unread-1", create=True)
    broker.memory.sync_dir("")
    again = broker.crash()
    again.vfs.plan = lambda operation: (
        Fault(errno.EIO) if operation.kind is Kind.READ and operation.path == GAPS_PATH else None
    )
    again.start()
    assert f"it was moved to {GAPS_PATH}.unread-2" in again.notices[0]
    assert again.memory.open(f"{GAPS_PATH}.unread-2").read_at(0, 10_000) == content


def test_a_list_that_can_be_neither_read_nor_moved_is_told_of() -> None:
    vfs = FaultyVfs(MemoryVfs())
    vfs.open(GAPS_PATH, create=True)
    vfs.plan = lambda operation: Fault(errno.EACCES) if operation.path == GAPS_PATH else None
    note = Gaps(vfs).load(stream_ids=(), last_sign_of_life_us=0, now_us=2)
    assert note is not None
    assert note.endswith("new ones cannot be kept (Permission denied)")
