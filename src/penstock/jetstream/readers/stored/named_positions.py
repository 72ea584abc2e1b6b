"""Positions of the consumer groups and archives that a stream names as its consumers (`interest_of`).

Rules: a group or an archive takes no acks, and holds nothing: what is before its committed offset is settled, all else
is needed. One whose position is not known yet needs everything. A position counts as far as the log agrees with it: by
the leader epoch in which it was committed, as an unclean election may have put other messages there.

A group's offset is asked of its coordinator, which may be another broker; an archive's end stands in the metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.base.errors import RemoteError
from penstock.base.ids import PartitionId, PartitionKey
from penstock.groups.rows import OFFSETS_STREAM
from penstock.hot.keyhash import partition_of
from penstock.messages import FetchOffsetsRequest, FetchOffsetsResponse, Response
from penstock.node.quorum.metadata_forwarding import THE_BROKER

if TYPE_CHECKING:
    from penstock.jetstream.gateway import Gateway
    from penstock.metadata.image import StreamState


class NamedClaim:
    """Claim of a group or an archive on the rows of a stream: all from its position on."""

    __slots__ = ("next_offset",)

    def __init__(self) -> None:
        self.next_offset = 0

    def holds(self, offset: int) -> bool:
        return False

    def held(self, begin: int, end: int) -> Sequence[int]:
        return ()


class NamedPositions:
    """The groups and archives that one stream names, in one leadership of its partition."""

    def __init__(self, gateway: Gateway, key: PartitionKey) -> None:
        self._gateway, self._key = gateway, key
        self.claims: dict[str, NamedClaim] = {}
        self._asked: set[str] = set()  # not answered yet

    def ask(self, state: StreamState) -> None:
        """Learn the positions anew; those of groups come later."""
        for name, claim in self.claims.items():
            kind, _, bare = name.partition(":")
            if kind == "archive":
                found = [one for one in state.archived_at(self._key.partition) if one.archive == bare]
                claim.next_offset = max((self._agreed(one.end_offset, one.leader_epoch) for one in found), default=0)
            elif name not in self._asked:
                self._ask_group(name, bare)

    def _ask_group(self, name: str, group: str) -> None:
        node = self._gateway.node
        stream_id = node.image.names.get(OFFSETS_STREAM)
        offsets = None if stream_id is None else node.image.streams.get(stream_id)
        if stream_id is None or offsets is None:
            return  # no group has committed anything yet
        number = partition_of(group.encode(), len(offsets.partitions))
        request = FetchOffsetsRequest(
            stream_id=stream_id, partition=PartitionId(number), group=group, of_stream_id=self._key.stream_id
        )
        leader = offsets.partitions[number].leader
        if leader is None:
            return
        self._asked.add(name)
        heard = partial(self._heard, name)
        if leader == node.broker_id:
            self._gateway.ask(request, node.now, heard, who=THE_BROKER)
        else:
            node.ask_peer(leader, request, heard)

    def _heard(self, name: str, response: Response | RemoteError, _: object = None) -> None:
        self._asked.discard(name)
        claim = self.claims.get(name)
        if claim is None or not isinstance(response, FetchOffsetsResponse):
            return  # it is asked again
        found = [one for one in response.offsets if one.partition == self._key.partition]
        claim.next_offset = max((self._agreed(one.offset, one.leader_epoch) for one in found), default=0)

    def _agreed(self, offset: int, leader_epoch: int | None) -> int:
        return self._gateway.node.agreed_end(self._key, offset, leader_epoch)
