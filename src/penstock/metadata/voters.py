"""Choice of the next voter on the metadata.

Rules: voters are spread over racks: the next one is of a rack with the fewest. No rack gets so many that the others
have no majority without it, if the present brokers allow that: then it waits for brokers that can vote. If they do not,
as on one or two machines, an odd number of voters matters more than their racks.

Theory: brokers of one machine fail together. If three of five voters run on one machine, its loss stops the cluster,
although brokers elsewhere could have voted in their place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable

from penstock.base.ids import BrokerId
from penstock.metadata.image import ClusterImage
from penstock.metadata.placement import rack_of


def next_voter(
    image: ClusterImage,
    voters: Collection[BrokerId],
    learners: Collection[BrokerId],
    ready: Collection[BrokerId],
    wanted: int,
) -> BrokerId | None:
    """Return one of `ready` (learners with nearly the whole log), or None if none should become a voter now.

    `learners` are the present ones; `wanted` is the intended number of voters.
    """

    def rack(broker_id: BrokerId) -> Hashable:
        broker = image.brokers.get(broker_id)
        return broker_id if broker is None else rack_of(broker)

    voting = Counter(map(rack, voters))
    most = (wanted - 1) // 2  # limit per rack, so that the others are a majority
    members = Counter(map(rack, (*voters, *learners)))
    can_be_safe = sum(min(count, most) for count in members.values()) >= wanted
    allowed = [one for one in ready if not can_be_safe or voting[rack(one)] < most]
    return min(allowed, key=lambda one: (voting[rack(one)], one), default=None)
