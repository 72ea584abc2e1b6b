"""What only leaders know of streams, and observers of themselves, put beside what the broker said that was asked.

Rules: any broker knows who leads a partition; what it holds is told by its leader, and how far the followers are by
nobody else; how stale an observer may be, it knows itself. All leaders are asked at once, then all observers, and none
is waited for longer than LEADERS_ASK_S: of one that does not answer, what is not known stays None. What is wrong with
the copy of the broker that was asked is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from operator import attrgetter

import msgspec

from penstock.base import limits
from penstock.base.ids import PartitionKey, StreamId
from penstock.client.link import Link
from penstock.messages import MetadataRequest, PartitionHealth, PartitionInfo, StreamInfo


async def told_by_leaders(link: Link, streams: Sequence[StreamInfo], timeout_s: float) -> list[StreamInfo]:
    """`streams`, in their order, with what the leaders of their partitions say. At most a page of metadata."""
    names: dict[str, dict[str, None]] = {}
    for info in streams:
        for part in info.partitions:
            if _is_missed(part) and (address := link.address_of_leader(part)):
                names.setdefault(address, {})[info.name] = None
    told = _of_leaders(info for infos in (await _asked(link, names, timeout_s)).values() for info in infos)
    return await _told_by_observers(link, [_completed(info, told) for info in streams], timeout_s)


async def _asked(link: Link, names: dict[str, dict[str, None]], timeout_s: float) -> dict[str, tuple[StreamInfo, ...]]:
    """What the brokers at these addresses say of these streams; who does not answer is left out."""
    requests = {address: MetadataRequest(names=tuple(found)) for address, found in names.items()}
    wait_s = min(timeout_s, limits.LEADERS_ASK_S)
    answers = await asyncio.gather(*(link.ask_at(*one, wait_s) for one in requests.items()))
    return {one: answer.streams for one, answer in zip(requests, answers, strict=True) if answer is not None}


async def _told_by_observers(link: Link, streams: list[StreamInfo], timeout_s: float) -> list[StreamInfo]:
    """With what observers say of themselves, where there are any."""
    names: dict[str, dict[str, None]] = {}
    for info in streams:
        for part in info.partitions:
            for one in part.observers:
                if (address := link.view.address_of(one)) is not None:
                    names.setdefault(address, {})[info.name] = None
    if not names:
        return streams
    behind_us: dict[tuple[str, PartitionKey], int | None] = {}
    for address, infos in (await _asked(link, names, timeout_s)).items():
        for info in infos:
            for part in info.partitions:
                behind_us[address, PartitionKey(info.stream_id, part.partition)] = part.behind_us

    def observed(info: StreamInfo, part: PartitionInfo) -> PartitionInfo:
        key = PartitionKey(info.stream_id, part.partition)
        followers = [
            msgspec.structs.replace(one, behind_us=behind_us.get((link.view.address_of(one.broker_id) or "", key)))
            if one.broker_id in part.observers
            else one
            for one in part.followers
        ]
        return msgspec.structs.replace(part, followers=tuple(followers))

    return [
        msgspec.structs.replace(info, partitions=tuple(observed(info, part) for part in info.partitions))
        for info in streams
    ]


def _is_missed(part: PartitionInfo) -> bool:
    return part.committed_end is None or (len(part.replicas) + len(part.observers) > 1 and not part.followers)


def _of_leaders(streams: Iterable[StreamInfo]) -> dict[PartitionKey, PartitionInfo]:
    """By partition. Who leads one of a stream tells of its copies of the others, too, which count for less."""
    told: dict[PartitionKey, PartitionInfo] = {}
    for info in streams:
        for part in info.partitions:
            key = PartitionKey(StreamId(info.stream_id), part.partition)
            if part.committed_end is not None and not (key in told and _is_missed(part)):
                told[key] = part
    return told


def _completed(info: StreamInfo, told: dict[PartitionKey, PartitionInfo]) -> StreamInfo:
    parts = []
    for part in info.partitions:
        leaders = told.get(PartitionKey(info.stream_id, part.partition)) if _is_missed(part) else None
        parts.append(part if leaders is None else _merged(part, leaders))
    return msgspec.structs.replace(info, partitions=tuple(parts))


def _merged(own: PartitionInfo, leaders: PartitionInfo) -> PartitionInfo:
    is_well = own.state == PartitionHealth.ONLINE
    return msgspec.structs.replace(
        leaders,
        state=leaders.state if is_well else own.state,
        state_reason=leaders.state_reason if is_well else own.state_reason,
        damage=tuple(dict.fromkeys((*own.damage, *leaders.damage))),
        gaps=tuple(sorted({*own.gaps, *leaders.gaps}, key=attrgetter("start_us"))),
    )
