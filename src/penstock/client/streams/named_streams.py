"""Streams by name: resolve a name to its current stream, and complete a stream with what only its leaders know.

Rules: requests about a stream's data carry its id. If the name means another stream by now, a request for the known
stream is repeated for the new one. A `StreamInfo` from the caller means that very stream, and nothing is repeated.
Every broker knows the leader of each partition. Only the leader knows the partition's offsets and the progress of the
followers; an observer (read replica) itself knows its staleness, and a replica itself knows why it is not in sync. All
leaders are asked concurrently, then all observers and out-of-sync replicas, each for at most LEADERS_ASK_S; fields of
those that do not answer stay None. Faults that the broker asked first reported of its own copy are kept.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from penstock.base import limits
from penstock.base.errors import ErrorCode
from penstock.base.ids import BrokerId, PartitionKey, StreamId
from penstock.base.subjects import subject_mistake
from penstock.client.checks import seconds_of
from penstock.client.errors import StreamChanged, StreamNotFound
from penstock.client.link.link import Link
from penstock.client.streams.routing import Routes
from penstock.client.values import StreamName
from penstock.messages import (
    FindStreamsRequest,
    FindStreamsResponse,
    FollowerInfo,
    GapInfo,
    MetadataRequest,
    MetadataResponse,
    PartitionHealth,
    PartitionInfo,
    StreamInfo,
    StreamList,
    joined,
)

T = TypeVar("T")


class NamedStreams:
    """Resolves names to streams, and completes what brokers return of streams. `timeout` is in seconds."""

    def __init__(self, link: Link) -> None:
        self.routes = Routes()
        self._link = link
        self._known: dict[str, StreamInfo] = {}
        self._named_s: dict[str, float] = {}  # when each was looked up

    async def all(self, timeout: float, at: str | None = None) -> StreamList:
        """Return all streams, ordered by name, completed by their leaders. `at`: ask exactly that broker for them."""
        found = StreamList()
        clock = asyncio.get_running_loop()
        deadline_s = clock.time() + seconds_of(timeout)
        after: str | None = None
        while True:
            request, left_s = MetadataRequest(after=after), deadline_s - clock.time()
            if at is None:
                answer, _ = await self._link.call(request, MetadataResponse, timeout_s=left_s)
            else:
                answer, _ = await self._link.call_at(at, request, MetadataResponse, timeout_s=left_s)
            found += await self._told_by_leaders(answer.streams, deadline_s - clock.time())
            if answer.next_after is None or not answer.streams:
                return found
            after = answer.next_after

    async def completed(self, info: StreamInfo, timeout: float) -> StreamInfo:
        """Remember a stream that a broker just returned, and return it completed by its leaders."""
        self._known[info.name] = info
        return (await self._told_by_leaders([info], timeout))[0]

    def forget(self, name: str) -> None:
        """Look the stream up again when it is used next."""
        self._known.pop(name, None)

    async def named(self, name: str, timeout: float) -> StreamInfo:
        """Return one stream as any broker knows it now. StreamNotFound."""
        answer, _ = await self._link.call(MetadataRequest(names=(name,)), MetadataResponse, timeout_s=timeout)
        for info in answer.streams:
            if info.name == name:
                self._known[name] = info
                self._named_s[name] = asyncio.get_running_loop().time()
                self.routes.note(info)
                return info
        self._known.pop(name, None)
        raise StreamNotFound(ErrorCode.STREAM_NOT_FOUND, f"there is no stream {name!r}", stream=name)

    async def storing(self, subject: str, timeout: float) -> StreamList:
        """Return the streams that store this subject (no wildcards). ValueError: an invalid subject."""
        if (mistake := subject_mistake(subject)) is not None:
            raise ValueError(mistake)
        answer, _ = await self._link.call(FindStreamsRequest(subject=subject), FindStreamsResponse, timeout_s=timeout)
        return StreamList(answer.streams)

    async def info(
        self, stream: StreamName, timeout: float, partition: int = 0, *, age_s_max: float = math.inf
    ) -> StreamInfo:
        """Return a stream as known, perhaps from a while ago; ask again if it may have gained that partition since.

        `age_s_max`: ask again also if it was looked up that many seconds ago.
        """
        if isinstance(stream, StreamInfo):
            if self._known.get(stream.name) is not stream:  # else it was learned when it was looked up
                self._link.learn(stream)
            return stream
        known = self._known.get(stream)
        is_enough = known is not None and partition < max(1, len(known.partitions))
        if is_enough and age_s_max < math.inf:
            is_enough = asyncio.get_running_loop().time() - self._named_s.get(stream, -math.inf) < age_s_max
        return known if known is not None and is_enough else await self.named(stream, timeout)

    async def now(self, stream: StreamName, timeout: float) -> StreamInfo:
        """Return a stream as any broker knows it now; a `StreamInfo` is returned unchanged."""
        info = stream if isinstance(stream, StreamInfo) else await self.named(stream, timeout)
        self._link.learn(info)
        return info

    def known(self, info: StreamInfo) -> StreamInfo:
        """Return the stream last seen under that name, else `info`."""
        return self._known.get(info.name, info)

    async def with_id(self, stream: StreamName, timeout: float, call: Callable[[StreamId], Awaitable[T]]) -> T:
        """Call `call` with the stream's id; call it again if the name means another stream by now."""
        info = await self.info(stream, timeout)
        try:
            return await call(info.stream_id)
        except StreamChanged:
            if isinstance(stream, StreamInfo):
                raise
        # The name means another stream by now, or none.
        return await call((await self.named(info.name, timeout)).stream_id)

    async def _told_by_leaders(self, streams: Sequence[StreamInfo], timeout_s: float) -> list[StreamInfo]:
        """Return `streams`, in order, completed with the answers of the leaders. At most one page of metadata.

        Gaps (times without a subscription) are known to whichever broker led then, so all replicas are asked for them.
        """
        names: dict[str, dict[str, None]] = {}
        gaps: dict[str, dict[str, None]] = {}
        for info in streams:
            for part in info.partitions:
                if _is_missed(part) and (address := self._link.address_of_leader(part)):
                    names.setdefault(address, {})[info.name] = None
                for one in part.replicas if len(part.replicas) > 1 else ():
                    if self._link.view.is_live(one) and (where := self._link.view.address_of(one)) is not None:
                        gaps.setdefault(where, {})[info.name] = None
        asked = {one: {**names.get(one, {}), **gaps.get(one, {})} for one in (*names, *gaps)}
        answers = await self._asked(asked, timeout_s)
        told = _of_leaders(info for at, infos in answers.items() for info in infos if info.name in names.get(at, {}))
        known = _gaps_of((*streams, *(info for infos in answers.values() for info in infos)))
        completed = [_completed(info, told, known) for info in streams]
        return await self._told_by_followers(completed, timeout_s)

    async def _asked(self, names: dict[str, dict[str, None]], timeout_s: float) -> dict[str, tuple[StreamInfo, ...]]:
        """Return the streams as the brokers at these addresses report them; brokers that do not answer are left out."""
        requests = {address: MetadataRequest(names=tuple(found)) for address, found in names.items()}
        wait_s = min(timeout_s, limits.LEADERS_ASK_S)
        answers = await asyncio.gather(*(self._link.ask_at(*one, wait_s) for one in requests.items()))
        return {one: answer.streams for one, answer in zip(requests, answers, strict=True) if answer is not None}

    async def _told_by_followers(self, streams: list[StreamInfo], timeout_s: float) -> list[StreamInfo]:
        """Complete the followers with what observers and out-of-sync replicas report of themselves."""
        names: dict[str, dict[str, None]] = {}
        for info in streams:
            for part in info.partitions:
                for one in _asked_themselves(part):
                    if (address := self._link.view.address_of(one)) is not None:
                        names.setdefault(address, {})[info.name] = None
        if not names:
            return streams
        told: dict[tuple[str, PartitionKey], PartitionInfo] = {}
        for address, infos in (await self._asked(names, timeout_s)).items():
            for info in infos:
                for part in info.partitions:
                    told[address, PartitionKey(info.stream_id, part.partition)] = part

        def followed(info: StreamInfo, part: PartitionInfo) -> PartitionInfo:
            key = PartitionKey(info.stream_id, part.partition)
            themselves = _asked_themselves(part)
            followers = [
                _as_it_says(one, told.get((self._link.view.address_of(one.broker_id) or "", key)), part)
                if one.broker_id in themselves
                else one
                for one in part.followers
            ]
            return msgspec.structs.replace(part, followers=tuple(followers))

        return [
            msgspec.structs.replace(info, partitions=tuple(followed(info, part) for part in info.partitions))
            for info in streams
        ]


def _gaps_of(streams: Iterable[StreamInfo]) -> dict[PartitionKey, set[GapInfo]]:
    """Merge the gaps of each partition from all answers."""
    found: dict[PartitionKey, set[GapInfo]] = {}
    for info in streams:
        for part in info.partitions:
            found.setdefault(PartitionKey(info.stream_id, part.partition), set()).update(part.gaps)
    return found


def _asked_themselves(part: PartitionInfo) -> list[BrokerId]:
    """Return the brokers to ask about their own replica: the observers, and replicas out of sync."""
    return [*part.observers, *(one for one in part.replicas if one not in part.isr and one != part.leader_id)]


def _as_it_says(follower: FollowerInfo, own: PartitionInfo | None, part: PartitionInfo) -> FollowerInfo:
    if own is None:
        return follower
    behind_us = own.behind_us if follower.broker_id in part.observers else follower.behind_us
    if own.state == PartitionHealth.ONLINE:
        return msgspec.structs.replace(follower, behind_us=behind_us)
    return msgspec.structs.replace(follower, behind_us=behind_us, state=own.state, state_reason=own.state_reason)


def _is_missed(part: PartitionInfo) -> bool:
    return part.committed_end is None or (len(part.replicas) + len(part.observers) > 1 and not part.followers)


def _of_leaders(streams: Iterable[StreamInfo]) -> dict[PartitionKey, PartitionInfo]:
    """Return the leaders' reports by partition. A broker also reports its other replicas; those have less weight."""
    told: dict[PartitionKey, PartitionInfo] = {}
    for info in streams:
        for part in info.partitions:
            key = PartitionKey(StreamId(info.stream_id), part.partition)
            if part.committed_end is not None and not (key in told and _is_missed(part)):
                told[key] = part
    return told


def _completed(
    info: StreamInfo, told: dict[PartitionKey, PartitionInfo], gaps: dict[PartitionKey, set[GapInfo]]
) -> StreamInfo:
    parts = []
    for part in info.partitions:
        key = PartitionKey(info.stream_id, part.partition)
        leaders = told.get(key) if _is_missed(part) else None
        whole = part if leaders is None else _merged(part, leaders)
        parts.append(msgspec.structs.replace(whole, gaps=joined(gaps[key])))
    return msgspec.structs.replace(info, partitions=tuple(parts))


def _merged(own: PartitionInfo, leaders: PartitionInfo) -> PartitionInfo:
    is_well = own.state == PartitionHealth.ONLINE
    return msgspec.structs.replace(
        leaders,
        state=leaders.state if is_well else own.state,
        state_reason=leaders.state_reason if is_well else own.state_reason,
        damage=tuple(dict.fromkeys((*own.damage, *leaders.damage))),
    )
