"""What only leaders know, put together from what each of them says of a whole stream."""

from __future__ import annotations

from itertools import permutations

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.ids import BrokerId, LeaderEpoch, Offset, PartitionId, PartitionKey, StreamId
from penstock.client.streams.named_streams import _as_it_says, _asked_themselves, _of_leaders
from penstock.messages import FollowerInfo, PartitionInfo, StreamInfo

LEADERS = (4, 3)  # of partition 0 and 1; both have both


def said_by(broker_id: int) -> StreamInfo:
    parts = []
    for number, leader in enumerate(LEADERS):
        follower = next(one for one in LEADERS if one != leader)
        parts.append(
            PartitionInfo(
                partition=PartitionId(number),
                leader_id=BrokerId(leader),
                leader_epoch=LeaderEpoch(1),
                committed_end=Offset(10 if leader == broker_id else 9),
                replicas=tuple(map(BrokerId, LEADERS)),
                followers=(FollowerInfo(broker_id=BrokerId(follower), lag=0),) if leader == broker_id else (),
            )
        )
    config = StreamConfig(name="s", subject="s.>", partitions=2)
    return StreamInfo(stream_id=StreamId(7), config=config, partitions=tuple(parts))


def test_who_leads_one_partition_does_not_speak_for_the_leader_of_another() -> None:
    for order in permutations(LEADERS):
        told = _of_leaders(map(said_by, order))
        for number in range(2):
            part = told[PartitionKey(StreamId(7), PartitionId(number))]
            assert part.committed_end == 10
            assert len(part.followers) == 1


def test_a_copy_is_better_than_nothing() -> None:
    told = _of_leaders([said_by(4)])
    assert told[PartitionKey(StreamId(7), PartitionId(1))].committed_end == 9


def test_a_replica_that_is_not_in_sync_tells_what_is_wrong_with_it() -> None:
    part = said_by(4).partitions[0]
    (follower,) = part.followers
    assert _as_it_says(follower, None, part) == follower
    assert _as_it_says(follower, said_by(3).partitions[0], part) == follower
    own = msgspec.structs.replace(said_by(3).partitions[0], state="read_only", state_reason="why", behind_us=5)
    told = _as_it_says(follower, own, part)
    assert (told.state, told.state_reason, told.lag, told.behind_us) == ("read_only", "why", 0, None)
    observed = msgspec.structs.replace(part, observers=(BrokerId(3),))
    assert _as_it_says(follower, own, observed).behind_us == 5


def test_who_is_in_sync_or_leads_is_not_asked() -> None:
    part = msgspec.structs.replace(said_by(4).partitions[0], isr=(BrokerId(4),), observers=(BrokerId(9),))
    assert _asked_themselves(part) == [9, 3]
    assert _asked_themselves(msgspec.structs.replace(part, isr=(BrokerId(3),))) == [9]
