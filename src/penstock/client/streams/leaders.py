"""Complete stream information with what only partition leaders, and some replicas, know.

Rules: every broker knows the leader of each partition. Only the leader knows the partition's offsets and the progress
of the followers; an observer (read replica) itself knows its staleness, and a replica itself knows why it is not in
sync. All leaders are asked concurrently, then all observers and out-of-sync replicas, each for at most LEADERS_ASK_S;
fields of those that do not answer stay None. Faults that the broker asked first reported of its own copy are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from penstock.base import limits
from penstock.base.ids import BrokerId, PartitionKey, StreamId
from penstock.client.link.link import Link
from penstock.messages import (
    FollowerInfo,
    GapInfo,
    MetadataRequest,
    PartitionHealth,
    PartitionInfo,
    StreamInfo,
    joined,
)


async def told_by_leaders(link: Link, streams: Sequence[StreamInfo], timeout_s: float) -> list[StreamInfo]:
    """Return `streams`, in order, completed with the answers of the leaders. At most one page of metadata.

    Gaps (times without a subscription) are known to whichever broker led then, so all replicas are asked for them.
    """
    names: dict[str, dict[str, None]] = {}
    gaps: dict[str, dict[str, None]] = {}
    for info in streams:
        for part in info.partitions:
            if _is_missed(part) and (address := link.address_of_leader(part)):
                names.setdefault(address, {})[info.name] = None
            for one in part.replicas if len(part.replicas) > 1 else ():
                if link.view.is_live(one) and (where := link.view.address_of(one)) is not None:
                    gaps.setdefault(where, {})[info.name] = None
    asked = {one: {**names.get(one, {}), **gaps.get(one, {})} for one in (*names, *gaps)}
    answers = await _asked(link, asked, timeout_s)
    told = _of_leaders(info for at, infos in answers.items() for info in infos if info.name in names.get(at, {}))
    known = _gaps_of((*streams, *(info for infos in answers.values() for info in infos)))
    completed = [_completed(info, told, known) for info in streams]
    return await _told_by_followers(link, completed, timeout_s)


def _gaps_of(streams: Iterable[StreamInfo]) -> dict[PartitionKey, set[GapInfo]]:
    """Merge the gaps of each partition from all answers."""
    found: dict[PartitionKey, set[GapInfo]] = {}
    for info in streams:
        for part in info.partitions:
            found.setdefault(PartitionKey(info.stream_id, part.partition), set()).update(part.gaps)
    return found


async def _asked(link: Link, names: dict[str, dict[str, None]], timeout_s: float) -> dict[str, tuple[StreamInfo, ...]]:
    """Return the streams as the brokers at these addresses report them; brokers that do not answer are left out."""
    requests = {address: MetadataRequest(names=tuple(found)) for address, found in names.items()}
    wait_s = min(timeout_s, limits.LEADERS_ASK_S)
    answers = await asyncio.gather(*(link.ask_at(*one, wait_s) for one in requests.items()))
    return {one: answer.streams for one, answer in zip(requests, answers, strict=True) if answer is not None}


def _asked_themselves(part: PartitionInfo) -> list[BrokerId]:
    """Return the brokers to ask about their own replica: the observers, and replicas out of sync."""
    return [*part.observers, *(one for one in part.replicas if one not in part.isr and one != part.leader_id)]


async def _told_by_followers(link: Link, streams: list[StreamInfo], timeout_s: float) -> list[StreamInfo]:
    """Complete the followers with what observers and out-of-sync replicas report of themselves."""
    names: dict[str, dict[str, None]] = {}
    for info in streams:
        for part in info.partitions:
            for one in _asked_themselves(part):
                if (address := link.view.address_of(one)) is not None:
                    names.setdefault(address, {})[info.name] = None
    if not names:
        return streams
    told: dict[tuple[str, PartitionKey], PartitionInfo] = {}
    for address, infos in (await _asked(link, names, timeout_s)).items():
        for info in infos:
            for part in info.partitions:
                told[address, PartitionKey(info.stream_id, part.partition)] = part

    def followed(info: StreamInfo, part: PartitionInfo) -> PartitionInfo:
        key = PartitionKey(info.stream_id, part.partition)
        themselves = _asked_themselves(part)
        followers = [
            _as_it_says(one, told.get((link.view.address_of(one.broker_id) or "", key)), part)
            if one.broker_id in themselves
            else one
            for one in part.followers
        ]
        return msgspec.structs.replace(part, followers=tuple(followers))

    return [
        msgspec.structs.replace(info, partitions=tuple(followed(info, part) for part in info.partitions))
        for info in streams
    ]


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
