"""Which broker comes to vote on the metadata next.

Rules: voters are spread over racks: the next one is of a rack with the fewest. No rack gets so many that the others
have no majority without it, if the brokers that are there can be chosen so: then it is waited for those that can vote.
Where they cannot, as on one machine, or two, an odd number of voters matters more than where they stand.

Theory: several brokers of one machine are lost together. Of five voters, three on one machine would be lost with it,
and with them the cluster, although brokers elsewhere could have voted in their place.
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
    """One of `ready`, which are learners with (nearly) the whole log; None: none of them now.

    `learners` are those that are there; `wanted` is how many shall vote.
    """

    def rack(broker_id: BrokerId) -> Hashable:
        broker = image.brokers.get(broker_id)
        return broker_id if broker is None else rack_of(broker)

    voting = Counter(map(rack, voters))
    most = (wanted - 1) // 2  # of one rack, so that the others are a majority
    members = Counter(map(rack, (*voters, *learners)))
    can_be_safe = sum(min(count, most) for count in members.values()) >= wanted
    allowed = [one for one in ready if not can_be_safe or voting[rack(one)] < most]
    return min(allowed, key=lambda one: (voting[rack(one)], one), default=None)
