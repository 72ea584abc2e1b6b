"""Messages that wait until their log can have a file open."""

from __future__ import annotations

import pytest

from penstock.hot.message_group import MessageGroup
from penstock.node.subscriptions.ingest_backlog import IngestBacklog
from tests.groups import group_of


class _Logs:
    """Logs of which one breaks, once it has taken a group in part."""

    def __init__(self) -> None:
        self.have_room = False
        self.broken: int | None = None
        self.stored: list[int] = []
        self.arrived: list[int] = []

    def store(self, sid: int, group: MessageGroup, arrived_us: int, must: bool) -> bool:
        if not (self.have_room or must):
            return False
        self.stored.append(sid)
        self.arrived.append(arrived_us)
        if sid == self.broken:
            raise ZeroDivisionError
        return True


def _some() -> MessageGroup:
    return group_of([(b"a", None, None, b"1")])


def test_what_was_stored_in_part_is_not_stored_again() -> None:
    logs = _Logs()
    arrivals = IngestBacklog()
    arrivals.add([(1, _some()), (2, _some()), (3, _some())], logs.store, 7)
    logs.have_room, logs.broken = True, 2
    with pytest.raises(ZeroDivisionError):
        arrivals.go_on(logs.store)
    arrivals.go_on(logs.store, must=True)
    assert logs.stored == [1, 2, 3]
    assert (len(arrivals), arrivals.size_bytes) == (0, 0)


def test_what_finds_no_room_keeps_its_place() -> None:
    logs = _Logs()
    arrivals = IngestBacklog()
    arrivals.add([(1, _some()), (2, _some())], logs.store, 7)
    arrivals.go_on(logs.store)
    arrivals.add([(1, _some())], logs.store, 9)
    assert len(arrivals) == 3
    logs.have_room = True
    arrivals.go_on(logs.store)
    assert (logs.stored, logs.arrived) == ([1, 2, 1], [7, 7, 9])
    assert arrivals.size_bytes == 0


def test_a_partition_whose_log_is_read_delays_no_other() -> None:
    """Those of one partition keep their order, and the bytes of a read count until the last of its groups is stored."""
    backlog, reading, stored = IngestBacklog(), {1, 2}, list[tuple[int, int]]()

    def store(sid: int, group: MessageGroup, arrived_us: int, must: bool) -> bool:
        if sid in reading and not must:
            return False
        stored.append((sid, arrived_us))
        return True

    backlog.add([(1, _some()), (2, _some())], store, 1)
    backlog.add([(1, _some()), (3, _some())], store, 2)
    backlog.add([(2, _some())], store, 3)
    size_bytes = len(_some().data)
    assert (stored, len(backlog), backlog.size_bytes) == ([(3, 2)], 4, 3 * size_bytes)
    reading.remove(2)
    backlog.go_on(store)
    assert stored[1:] == [(2, 1), (2, 3)]
    assert (len(backlog), backlog.size_bytes, backlog.waits(1), backlog.waits(2)) == (2, 2 * size_bytes, True, False)
    backlog.go_on(store, must=True)
    assert stored[3:] == [(1, 1), (1, 2)]
    assert (len(backlog), backlog.size_bytes) == (0, 0)
