"""A follower without room for new marks: it gets rows that its leader has erased because of them."""

from __future__ import annotations

import errno

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset
from penstock.messages import FetchRequest
from penstock.vfs.faulty import FileFault, FileOperation, FileOperationKind, Plan, no_faults
from tests.unit.node.harness import Broker
from tests.unit.node.members import formed
from tests.unit.node.test_survey_marks import TABLE, filled, partition, stored, with_stream


def no_room(*names: str) -> Plan:
    """No room for more rows in logs that have one of these names in their folder's."""

    def plan(one: FileOperation) -> FileFault | None:
        is_row = one.kind is FileOperationKind.WRITE and one.path.endswith(".arrows")
        return FileFault(errno.ENOSPC) if is_row and any(name in one.path for name in names) else None

    return plan


def shows(broker: Broker) -> set[int] | None:
    """Offsets that readers of a broker are shown; None: it refuses them for now."""
    try:
        broker.node._replicas.companions.check_readable(partition(broker))
    except RemoteError:
        return None
    return {row.offset for row in broker.read("prices")}


def test_a_follower_that_has_no_room_for_marks_shows_no_row_that_its_leader_has_erased() -> None:
    brokers = filled(with_stream(formed(), **TABLE))
    brokers.run(20_000)
    leader = brokers.led("prices")
    (follower, *_) = [one for one in brokers.members.values() if one is not leader]
    follower.vfs.plan = no_room("prices", "__marks-")
    brokers.run(20_000)
    filled(brokers)
    brokers.run(120_000)
    assert partition(follower).log.log_end < partition(leader).log.log_end == 82
    erased = set(range(41, 82)) - stored(leader)
    assert erased
    follower.vfs.plan = no_room("__marks-")
    for _ in range(100):
        brokers.run(50)
        assert not (shows(follower) or set()) & erased
    assert partition(follower).committed_end == 82
    fetch = FetchRequest(stream_id=partition(follower).key.stream_id, offset=Offset(0))
    assert follower.refusal(fetch).code == ErrorCode.NOT_YET
    follower.vfs.plan = no_faults
    brokers.run(60_000)
    assert shows(follower) == shows(leader) == stored(leader)
