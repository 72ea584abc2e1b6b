"""Checks of the streams: leaders, replicas, corruption, gaps, clocks, and configs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.base.config import Acks, Durability, Intake, Storage, SuspendDeletion
from penstock.base.ids import BrokerId
from penstock.base.subjects import AUDIT_STREAM
from penstock.base.units import format_duration_us, utc_text
from penstock.doctor.findings import Finding, bounded, fail, listed, ok, unknown, warn
from penstock.doctor.gaps import causes, events, label
from penstock.groups.rows import OFFSETS_STREAM
from penstock.messages import BrokerInfo, GapInfo, PartitionHealth, PartitionInfo, StreamInfo
from penstock.messages.streams import NATS_NOT_CONNECTED
from penstock.schemas.rows import SCHEMAS_STREAM

_RECENT_GAP_US = 24 * 3_600_000_000  # older ones are history
_REPLICAS_USUAL = 3
_AHEAD_US_MAX = 60_000_000  # tolerated skew: a minute ahead is soon caught up with

Part = tuple[str, PartitionInfo, StreamInfo]


def judge_streams(
    infos: Sequence[StreamInfo], brokers: Sequence[BrokerInfo], now_us: int, *, is_led: bool = True
) -> Iterator[Finding]:
    """Run all checks. `is_led`: there is a metadata leader; without one, no broker knows leaders and replicas."""
    parts = [(label(info, part.partition), part, info) for info in infos for part in info.partitions]
    if is_led or not parts:
        yield from _led(parts)
        yield from _replicated(parts)
    else:
        yield fail("partitions", f"without a metadata leader none of {len(parts)} is led", _METADATA_FIRST)
        yield unknown("replicas", "without a metadata leader it is not known which are in sync", _METADATA_FIRST)
    yield from _damaged(parts)
    yield from _gaps(infos, now_us, is_led=is_led or not parts)
    yield from _times(infos, now_us)
    yield from _configs(infos, brokers)


def _led(parts: Sequence[Part]) -> Iterator[Finding]:
    check = "partitions"

    def wrong() -> Iterator[Finding]:
        for name, part, _ in parts:
            if part.state == PartitionHealth.NO_LEADER or part.leader_id is None:
                yield fail(check, f"{name} has no leader: {part.state_reason}", "start the broker that it waits for")
            elif part.state != PartitionHealth.ONLINE:
                state = str(part.state).replace("_", " ")
                yield fail(check, f"{name} is {state}: {part.state_reason}", _advice(part.state, part.state_reason))

    closed = {info.name: info.intake.replace("_", "-") for _, _, info in parts if info.intake != Intake.OPEN}
    those = "; ".join(f"{name} is {intake}" for name, intake in closed.items())
    well = f"all {len(parts)} are led, and take messages but where that was stopped: {those}" if closed else ""
    yield from bounded(wrong(), ok(check, well or f"all {len(parts)} are led and take messages"))


_METADATA_FIRST = "see `metadata`"
_LOOK = "`penstock status` and the broker's log say more"
_ADVICE: dict[str, str] = {
    PartitionHealth.STARTING: "its leader's NATS user may lack a permission: docs/how-to/nats-permissions.md",
    PartitionHealth.IMPEDED: "make room on the broker's disk",
    PartitionHealth.FENCED: "look at the broker's disk, then restart it",
    PartitionHealth.READ_ONLY: "docs/how-to/repair.md",
}


def _advice(state: str, reason: str) -> str:
    return "see `NATS`" if reason == NATS_NOT_CONNECTED else _ADVICE.get(state, _LOOK)


def _replicated(parts: Sequence[Part]) -> Iterator[Finding]:
    check = "replicas"

    def wrong() -> Iterator[Finding]:
        for name, part, info in parts:
            missing = [broker_id for broker_id in part.replicas if broker_id not in part.isr]
            enough = info.config.min_isr or 1
            if len(part.isr) < enough:
                text = f"{name} takes nothing: {len(part.isr)} in sync, and an ack needs {enough}"
                yield fail(check, text, f"bring back broker {listed(missing)}")
            elif missing:
                text = f"{name} has {len(part.isr)} of {len(part.replicas)} copies in sync"
                yield warn(check, text, f"look at broker {listed(missing)}: away, or slow")
            for follower in part.followers:
                if follower.state:
                    state = follower.state.replace("_", " ")
                    why = f": {follower.state_reason}" if follower.state_reason else ""
                    text = f"the copy of {name} on broker {follower.broker_id} is {state}{why}"
                    yield fail(check, text, _advice(follower.state, follower.state_reason))
                elif follower.is_impeded:
                    text = f"the copy of {name} on broker {follower.broker_id} takes nothing"
                    yield fail(check, text, "its disk is full, or has failed")

    yield from bounded(wrong(), ok(check, "every partition has all its copies in sync"))


def _damaged(parts: Sequence[Part]) -> Iterator[Finding]:
    check = "damage"

    def wrong() -> Iterator[Finding]:
        for name, part, _ in parts:
            for damage in part.damage:
                place = f"{damage.file} at byte {damage.position}"
                text = f"{name}: {place}: expected {damage.expected}, found {damage.found}"
                yield fail(check, text, "docs/how-to/repair.md; `penstock verify` checks all copies")

    yield from bounded(wrong(), ok(check, "none is known; `penstock verify` checks every byte"))


def _gaps(infos: Sequence[StreamInfo], now_us: int, *, is_led: bool) -> Iterator[Finding]:
    check = "gaps"

    def wrong() -> Iterator[Finding]:
        for event in reversed(events(causes(infos))):
            if (end_us := event.end_us) is None:
                for gap, places in event.causes:
                    if gap.end_us is None:
                        since = format_duration_us(max(1_000_000, now_us - gap.start_us))
                        where = listed(places)
                        yield fail(check, f"{where}: no broker subscribes, since {since} ({gap.reason})", _GAP)
            elif end_us > now_us - _RECENT_GAP_US:
                ago = format_duration_us(max(1_000_000, now_us - end_us) // 1_000_000 * 1_000_000)
                each = [
                    f"{listed(places)}: no broker subscribed for {_lasted(gap)}, {ago} ago ({gap.reason})"
                    if number == 0
                    else f"{listed(places)}: for {_lasted(gap)} ({gap.reason})"
                    for number, (gap, places) in enumerate(event.causes)
                ]
                told = f"a planned restart: {'; '.join(each)}" if event.is_planned else "; ".join(each)
                yield warn(check, told, _PLANNED_GAP if event.is_planned else _GAP)

    well = ok(check, "none in the last 24 hours")
    if not is_led:  # the gap that lasts is known once there is a leader again
        well = unknown(check, "without a metadata leader it is not known who subscribes", _METADATA_FIRST)
    yield from bounded(wrong(), well)


def _lasted(gap: GapInfo) -> str:
    assert gap.end_us is not None
    return format_duration_us(max(1_000, gap.end_us - gap.start_us))


_PLANNED_GAP = "a stream with one replica is away while its broker restarts: publishers must send again what got no ack"
_GAP = "what was published then was never acked: publishers must send again what got no ack"


def _times(infos: Sequence[StreamInfo], now_us: int) -> Iterator[Finding]:
    """Find messages dated in the future: the clock of a broker was ahead, and is not any more."""
    check = "message times"

    def wrong() -> Iterator[Finding]:
        for info in infos:
            last_us = max((part.last_timestamp_us or 0 for part in info.partitions), default=0)
            if last_us - now_us > _AHEAD_US_MAX:
                ahead = format_duration_us((last_us - now_us) // 1_000_000 * 1_000_000)
                text = (
                    f"{info.name}: its last message is dated {utc_text(last_us)}, {ahead} ahead of the broker's clock"
                )
                yield warn(check, text, "until then no message id, TTL or max_age expires: docs/how-to/clock-ahead.md")

    yield from bounded(wrong(), ok(check, "no message is dated in the future"))


def _configs(infos: Sequence[StreamInfo], brokers: Sequence[BrokerInfo]) -> Iterator[Finding]:
    check = "configs"
    racks = {one.broker_id: one.rack or f"broker {one.broker_id}" for one in brokers}

    def wrong() -> Iterator[Finding]:
        for info in infos:
            smells = _internal(info, len(brokers)) if info.config.is_internal else _smells(info, len(brokers))
            yield from (warn(check, f"{info.name}: {found}", advice) for found, advice in smells)
            if (rack := _one_rack(info, racks)) is not None:
                yield warn(check, f"{info.name}: all copies are on {rack}", _ELSEWHERE)

    yield from bounded(wrong(), ok(check, "no stream promises less than it could"))


_ELSEWHERE = "set `rack` of brokers, or add some elsewhere"


_KEPT = {
    OFFSETS_STREAM: ("where consumer groups are", "a group whose copies are lost begins anew"),
    SCHEMAS_STREAM: ("the schemas of streams", "typed readers find no schema any more where they are lost"),
    AUDIT_STREAM: ("who did what", "what was done is not told any more where they are lost"),
}
_SOON = "it gets more by itself once all brokers are of this version and those that hold it are in sync"


def _internal(info: StreamInfo, brokers: int) -> Iterator[tuple[str, str]]:
    wanted = min(brokers, _REPLICAS_USUAL)
    fewest = min((len(part.replicas) for part in info.partitions), default=wanted)
    if info.name in _KEPT and fewest < wanted:
        what, loss = _KEPT[info.name]
        copies = "1 copy" if fewest == 1 else f"{fewest} copies"
        yield f"{copies} of {what}, of {wanted} that {brokers} brokers could hold", f"{_SOON}; {loss}"


def _smells(info: StreamInfo, brokers: int) -> Iterator[tuple[str, str]]:
    config = info.config
    replicas = max((len(part.replicas) for part in info.partitions), default=1)
    if config.storage is Storage.MEMORY:
        yield "it is in memory: gone when its broker stops", "meant? else make a stream with storage `file`"
    elif config.durability is Durability.OS and replicas == 1:
        yield "durability `os` with one copy: a power loss takes what was acked", "`--durability auto`"
    if replicas == 1 and brokers > 1 and config.storage is Storage.FILE:
        text = f"one copy, though there are {brokers} brokers: it is away whenever its broker is"
        yield text, "make another stream with `--replicas 3`, or more"
    if replicas > 1 and config.min_isr == replicas:
        yield f"all {replicas} copies are needed for an ack: it stops with any broker", "lower `min_isr`"
    if replicas > 2 and config.min_isr == 1:
        yield "an ack needs one copy only (min_isr 1): the loss of that one loses it", "raise `min_isr` to 2"
    if config.allow_unclean_election:
        yield "a copy that lacks acked messages may lead (allow_unclean_election)", "turn it off again, unless meant"
    if config.acks is Acks.NEVER:
        yield "it acks nothing: publishers cannot know what is stored", "`--acks reply`, unless meant"
    if config.is_deletion_suspended:
        text, switch = "deletion is suspended", f"`penstock stream alter {config.name} --suspend-deletion no`"
        if config.suspend_deletion is SuspendDeletion.COPYING:
            yield f"{text}: a copy, restore or import into it is not complete", f"run that again, or {switch}"
        else:
            yield f"{text}: its limits and compaction delete nothing", switch


def _one_rack(info: StreamInfo, racks: Mapping[BrokerId, str]) -> str | None:
    """Return the rack that holds all replicas of some partition, if there are several replicas and several racks."""
    if len(set(racks.values())) < 2:
        return None
    for part in info.partitions:
        held = {racks.get(broker_id) for broker_id in part.replicas}
        if len(part.replicas) > 1 and len(held) == 1 and (rack := held.pop()) is not None:
            return f"rack {rack}"
    return None
