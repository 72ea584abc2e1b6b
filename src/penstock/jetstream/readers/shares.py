"""Shares of the consumers that one broker has: no user takes all of them with the streams that it has created."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.base import limits
from penstock.base.fair_shares import FairShares
from penstock.base.ids import StreamId
from penstock.jetstream.errors import consumer_refusal
from penstock.jetstream.partition_streams import real_ids
from penstock.jetstream.readers.feed import Feed
from penstock.metadata.image import ClusterImage, owner_of


def check_share(image: ClusterImage, stream_id: int, feeds: Iterable[Feed], total: int) -> None:
    """Raise ApiError (10026) if one more consumer does not fit, or not into the share of the stream's owner.

    `total`: consumers of this broker, with those that are being created. Streams of administrators, and of no user, may
    have all that are left.
    """
    if total >= limits.READERS_MAX:
        raise consumer_refusal(10026, "maximum consumers limit reached")
    sharer = _sharer(image, stream_id)
    if not sharer or total < limits.READERS_MAX // 2:
        return  # no user has more than half: as much is free
    mine = sum(len(one.readers) + one.opening for one in feeds if _sharer(image, one.stream_id) == sharer)
    shares = FairShares([(sharer, mine), ("", max(0, total - mine))])
    if not shares.fits(sharer, 1, limits.READERS_MAX):
        text = f"of consumers at this broker {shares.refused(sharer, limits.READERS_MAX)}; delete some first"
        raise consumer_refusal(10026, f"maximum consumers limit reached: {text}")


def _sharer(image: ClusterImage, stream_id: int) -> str:
    """Return the user whose share the consumers of a stream are taken from; empty: no user's."""
    state = image.streams.get(StreamId(real_ids(stream_id)[0]))
    owner = None if state is None else owner_of(state, image.users)
    return "" if owner is None or owner.is_admin else owner.name
