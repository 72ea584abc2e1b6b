"""The verdict on a cluster: healthy, degraded, down or unknown, and why.

Rules: a pure function of what the brokers answered. Each problem is told once, where it is: what a broker does to all
partitions is one reason with their number. Reasons are in the order of their weight; those of DOWN come first.

| verdict    | means                                                                                                  |
|------------|--------------------------------------------------------------------------------------------------------|
| `healthy`  | nothing is wrong, as far as the brokers know                                                           |
| `degraded` | messages are stored and read, but something is missing, or some partitions store none                  |
| `unknown`  | nothing can be said, since this program may not ask: no login, a wrong one, or no right `monitor`      |
| `down`     | no message is stored: no broker answers, there is no metadata leader, no broker has NATS, or no        |
|            | partition of users' streams stores: it has no leader, its leader is away, has a full or hanging disk   |
|            | or stores nothing in it, or too few replicas are in sync                                               |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from typing import ClassVar

import msgspec

from penstock.base import limits
from penstock.base.config import Storage
from penstock.base.units import counted, format_bytes
from penstock.doctor.cluster_state import NO_ANSWER_IN_TIME, BrokerAnswer, ClusterState
from penstock.doctor.findings import listed
from penstock.doctor.gaps import label
from penstock.messages import BrokerInfo, PartitionHealth, PartitionInfo, StatusResponse, StreamInfo

_STORES_NOTHING = frozenset(
    {
        PartitionHealth.READ_ONLY,
        PartitionHealth.FENCED,
        PartitionHealth.IMPEDED,
        PartitionHealth.NO_LEADER,
        PartitionHealth.FAILED,
    }
)

SILENT_MS = 2 * limits.HEARTBEAT_MS
"""A live broker is said to be silent from here on: it has missed a heartbeat."""

SILENT_SINCE = ", silent for "
"""Before the times in the reason about a silent broker, which change all the time."""

DISK_FREE_SHARE_MIN = 0.05
"""A disk with less free space is reported; the alert for Prometheus comes at twice as much."""


class Health(StrEnum):
    """The verdict."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    DOWN = "down"
    UNKNOWN = "unknown"


class Kind(StrEnum):
    """Subject of a reason, for programs."""

    NO_ANSWER = "no_answer"  # no broker answers
    NO_METADATA_LEADER = "no_metadata_leader"
    BROKER_AWAY = "broker_away"
    BROKER_UNSEEN = "broker_unseen"  # the other brokers say that it is live, and this program cannot reach it
    BROKER_NOT_JOINED = "broker_not_joined"
    BROKER_CUT_OFF = "broker_cut_off"  # other brokers do not reach it
    NATS_AWAY = "nats_away"
    DISK_FULL = "disk_full"
    DISK_HANGS = "disk_hangs"
    DISK_FILLS = "disk_fills"
    OVERLOAD = "overload"  # it does not read from NATS
    NO_LEADER = "no_leader"
    PARTITION_STATE = "partition_state"  # starting, impeded, fenced, read-only, failed
    MIN_ISR = "min_isr"  # too few replicas in sync for acks
    REPLICAS_MISSING = "replicas_missing"
    OBSERVERS_MISSING = "observers_missing"
    DAMAGE = "damage"
    UNKNOWN = "unknown"  # could not be asked


READY = frozenset(Kind) - {
    *(Kind.BROKER_UNSEEN, Kind.DISK_FILLS, Kind.REPLICAS_MISSING, Kind.OBSERVERS_MISSING, Kind.DAMAGE)
}
"""Kinds without which a cluster is ready: all brokers are there, and all partitions store messages."""

_KEPT_OUT = frozenset(
    {Kind.DISK_FULL, Kind.DISK_HANGS, Kind.NO_LEADER, Kind.PARTITION_STATE, Kind.MIN_ISR, Kind.BROKER_AWAY}
)
"""Kinds that are DOWN if no partition stores messages."""

IN_SYNC = READY | {Kind.REPLICAS_MISSING, Kind.OBSERVERS_MISSING}
"""Kinds without which also all replicas are in sync."""


class Reason(msgspec.Struct, frozen=True):
    """One problem."""

    health: Health
    kind: Kind
    text: str
    advice: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """The verdict and its reasons, the worst first."""

    SAID_MAX: ClassVar = 3
    """Most reasons in the line of the verdict."""

    health: Health
    reasons: tuple[Reason, ...] = ()

    @property
    def left_out(self) -> tuple[Reason, ...]:
        """The reasons that the line of the verdict leaves out."""
        return self.reasons[self.SAID_MAX :]

    def __str__(self) -> str:
        said = [one.text for one in self.reasons[: self.SAID_MAX]]
        if self.left_out:
            said.append(f"and {len(self.left_out)} more")
        return f"{self.health}: {'; '.join(said)}" if said else str(self.health)


def judge(state: ClusterState, streams: Collection[str] | None = None) -> Verdict:
    """Return the verdict on the cluster; with `streams`, of the streams only these count."""
    infos = [one for one in state.streams if streams is None or one.name in streams]
    reasons = list(_reasons(state, infos))
    if _none_stores(state, infos):
        reasons = [
            msgspec.structs.replace(one, health=Health.DOWN) if one.kind in _KEPT_OUT else one for one in reasons
        ]
    found = sorted(reasons, key=lambda one: one.health is not Health.DOWN)
    return Verdict(found[0].health if found else Health.HEALTHY, tuple(found))


def _none_stores(state: ClusterState, infos: Collection[StreamInfo]) -> bool:
    """True if there are partitions of users' streams, and none can store a message."""
    if state.best is None:
        return False
    gone = _gone(state, state.best)
    stuck = gone | {int(one.broker_id) for one in state.statuses if one.disk_is_full or not one.disk_answers}
    stores = [
        part.leader_id is not None
        and int(part.leader_id) not in (gone if info.config.storage is Storage.MEMORY else stuck)
        and part.state not in _STORES_NOTHING
        and len(part.isr) >= (info.config.min_isr or 1)
        for info in infos
        if not info.config.is_internal
        for part in info.partitions
    ]
    return bool(stores) and not any(stores)


def unjudged(text: str, advice: str = "") -> Verdict:
    """Return the verdict on a cluster that could not be asked, and why."""
    return Verdict(Health.UNKNOWN, (Reason(Health.UNKNOWN, Kind.UNKNOWN, text, advice),))


def _down(kind: Kind, text: str, advice: str = "") -> Reason:
    return Reason(Health.DOWN, kind, text, advice)


def _degraded(kind: Kind, text: str, advice: str = "") -> Reason:
    return Reason(Health.DEGRADED, kind, text, advice)


def _reasons(state: ClusterState, infos: Collection[StreamInfo]) -> Iterator[Reason]:
    best = state.best
    if best is None:
        each = ", ".join(f"{one.address} ({one.failure})" for one in state.answers)
        advice = "start a broker with `penstock serve`, or say where one is with --server HOST:PORT or PENSTOCK_SERVER"
        yield _down(Kind.NO_ANSWER, f"no broker answers at {each}", advice)
        return
    yield from _metadata(state, best)
    yield from _brokers(state, best)
    yield from _nats(state.statuses)
    yield from _disks(state.statuses)
    if state.streams_failure:
        yield _degraded(Kind.UNKNOWN, f"the streams are not known: {state.streams_failure}")
    if best.metadata_leader is None and best.voters > 1:
        return  # that no partition is led, and replicas are away, follows from it
    gone = _gone(state, best)
    without_nats = frozenset(int(one.broker_id) for one in state.statuses if one.nats.state != "connected")
    yield from _partitions(infos, gone, without_nats)
    yield from _replicas(infos, gone)


# Brokers


def _metadata(state: ClusterState, best: StatusResponse) -> Iterator[Reason]:
    if best.metadata_leader is not None or (best.voters <= 1 and not best.waits_for):
        return
    if not best.voters:
        text = f"broker {best.broker_id} has joined no cluster yet: {best.waits_for}"
        yield _down(Kind.NO_METADATA_LEADER, f"{text}{_whys(best)}", "docs/how-to/no-leader.md")
        return
    unanswered = {one.broker_id: one.failure for one in state.answers if one.status is None}
    # Of a broker that hangs the others notice only later that it is away.
    present = max(1, best.voters - sum(broker_id is not None for broker_id in unanswered))
    reachable = min(present, max(one.voters_reachable for one in state.statuses))
    reasons = {int(one.broker_id): one.reason for one in best.peer_failures} | unanswered
    each = ", ".join(f"broker {broker_id}: {reasons[broker_id]}" for broker_id in sorted(filter(None, reasons)))
    text = f"no metadata leader: {reachable} of {best.voters} voters reachable{f' ({each})' if each else ''}"
    advice = "start the brokers that are away: most voters must be there (docs/how-to/no-leader.md)"
    yield _down(Kind.NO_METADATA_LEADER, text, advice)


def _whys(status: StatusResponse) -> str:
    each = ", ".join(f"broker {one.broker_id}: {one.reason}" for one in status.peer_failures)
    return f" ({each})" if each else ""


def _brokers(state: ClusterState, best: StatusResponse) -> Iterator[Reason]:
    answers = {one.broker_id: one for one in state.answers}
    reasons = {int(one.broker_id): one.reason for one in best.peer_failures}
    for one in best.brokers:
        if best.metadata_leader is None and one.votes and best.voters > 1:
            continue  # told with the metadata leader that is missing
        yield from _broker(one, answers.get(int(one.broker_id)), best, reasons.get(int(one.broker_id), ""))
    members = {int(one.broker_id) for one in best.brokers}
    strangers = 0
    for answer in state.answers:
        if answer.broker_id in members or answer.status is best:
            continue
        if best.metadata_leader is None:
            continue  # none can join: told there
        if answer.broker_id is None:
            text = f"no broker answers at {answer.address} ({answer.failure})"
            yield _degraded(Kind.BROKER_UNSEEN, text, "leave it out of --server, or start the broker there")
            continue
        strangers += 1
        if answer.status is not None:
            why = answer.status.waits_for or reasons.get(int(answer.status.broker_id), "") or "it is not registered"
            why += _whys(answer.status)
        else:
            why = f"it does not answer: {_reason(answer, reasons)}"
        text = f"broker {answer.broker_id} at {answer.address} has not joined: {why}"
        yield _degraded(Kind.BROKER_NOT_JOINED, text, "docs/how-to/broker-does-not-start.md")
    unregistered = best.voters - sum(one.votes for one in best.brokers) - strangers
    if best.metadata_leader is not None and unregistered > 0:
        text = (
            f"{counted(unregistered, 'voter')} of {best.voters} {'has' if unregistered == 1 else 'have'} not joined yet"
        )
        yield _degraded(Kind.BROKER_NOT_JOINED, text)


def _reason(answer: BrokerAnswer, reasons: dict[int, str]) -> str:
    """Return why a broker does not answer: what the other brokers say if they say more than this program knows."""
    told = reasons.get(answer.broker_id or 0, "").removeprefix("no connection: ")
    return answer.failure if not told or told.lower() == answer.failure.lower() else f"{answer.failure}; {told}"


def _broker(one: BrokerInfo, answer: BrokerAnswer | None, best: StatusResponse, told: str) -> Iterator[Reason]:
    name, advice = f"broker {one.broker_id}", "start it with its data directory, or replace it"
    if answer is not None and answer.failure == NO_ANSWER_IN_TIME:
        advice = "it hangs, or the network drops what is sent: look at its log, then restart it"
    status = None if answer is None else answer.status
    if status is None:
        why = f" ({answer.failure})" if answer is not None and answer.failure else ""
        if not one.is_live and best.metadata_leader is not None:
            yield _degraded(Kind.BROKER_AWAY, f"{name} is away{why}", advice)
        elif best.metadata_leader is None or one.is_reachable is False or _is_silent(one):
            yield _degraded(Kind.BROKER_AWAY, f"{name} does not answer{why}{_session(one)}", advice)
        else:
            text = f"{name} is live, and cannot be reached from here{why}"
            yield _degraded(Kind.BROKER_UNSEEN, text, "check its `advertise`, the network and firewalls")
    elif best.metadata_leader is None:
        return  # none can join: told there
    elif status.waits_for:
        yield _degraded(Kind.BROKER_NOT_JOINED, f"{name} is not ready: {status.waits_for}{_whys(status)}")
    elif not one.is_live:
        yield _degraded(Kind.BROKER_NOT_JOINED, f"{name} answers, and is not live{f': {told}' if told else ''}")
    elif one.is_reachable is False:
        text = f"broker {best.broker_id} does not reach {name}: {told or 'no connection'}{_session(one)}"
        yield _degraded(Kind.BROKER_CUT_OFF, text, "check the network between the brokers")
    elif _is_silent(one):
        yield _degraded(
            Kind.BROKER_CUT_OFF, f"{name} sends no heartbeats{_session(one)}", "look at its log and its load"
        )


def _is_silent(one: BrokerInfo) -> bool:
    return one.is_live and one.silent_ms is not None and one.silent_ms >= SILENT_MS


def _session(one: BrokerInfo) -> str:
    """Return when the session of a silent broker ends: until then others do not lead what it leads."""
    if not _is_silent(one) or one.silent_ms is None:
        return ""
    left_ms = max(0, limits.SESSION_MS - one.silent_ms)
    return f"{SILENT_SINCE}{one.silent_ms / 1_000:.1f} s; its session ends in {left_ms / 1_000:.1f} s"


def session_text(one: BrokerInfo) -> str:
    """Return `silent for 2.1 s` for a live broker that the metadata leader has not heard of lately, else ``."""
    return f"silent for {(one.silent_ms or 0) / 1_000:.1f} s" if _is_silent(one) else ""


def _nats(statuses: Collection[StatusResponse]) -> Iterator[Reason]:
    without = [one for one in statuses if one.nats.state != "connected"]
    if not without:
        return
    why = without[0].nats.last_error or "no connection yet"
    advice = "check nats-server, and the settings `nats` and `nats_…` of the brokers"
    if len(without) == len(statuses):
        who = f"broker {without[0].broker_id} is not" if len(statuses) == 1 else "no broker is"
        yield _down(Kind.NATS_AWAY, f"{who} connected to NATS: {why}", advice)
        return
    ids = listed(one.broker_id for one in without)
    yield _degraded(Kind.NATS_AWAY, f"broker {ids} is not connected to NATS: {why}", advice)


def _disks(statuses: Iterable[StatusResponse]) -> Iterator[Reason]:
    for one in statuses:
        disk, free, size = f"the disk of broker {one.broker_id}", one.disk_free_bytes, one.disk_size_bytes
        left = "" if free is None or not size else f" ({format_bytes(free)} of {format_bytes(size)} free)"
        if not one.disk_answers:
            yield _degraded(Kind.DISK_HANGS, f"{disk} does not answer", "look at the disk and the kernel's log")
        elif one.disk_is_full:
            yield _degraded(Kind.DISK_FULL, f"{disk} is full{left}: it stores nothing", "make room on it")
        elif free is not None and size and free < size * DISK_FREE_SHARE_MIN:
            yield _degraded(Kind.DISK_FILLS, f"{disk} is nearly full{left}", "make room on it")
        if one.nats.reading_paused:
            text = f"broker {one.broker_id} does not read from NATS: {format_bytes(one.in_flight_bytes)} wait"
            yield _degraded(Kind.OVERLOAD, text, "its disk or its followers are too slow for what is published")


def _gone(state: ClusterState, best: StatusResponse) -> frozenset[int]:
    """Return the brokers that cannot lead: away, or not reachable from anywhere."""
    answered = {int(one.broker_id) for one in state.statuses}
    return frozenset(
        int(one.broker_id)
        for one in best.brokers
        if int(one.broker_id) not in answered and (not one.is_live or one.is_reachable is False)
    )


# Partitions

_Named = tuple[str, PartitionInfo]


def _partitions(infos: Collection[StreamInfo], gone: frozenset[int], without_nats: frozenset[int]) -> Iterator[Reason]:
    parts: list[_Named] = [(label(info, part.partition), part) for info in infos for part in info.partitions]
    without: list[_Named] = []
    by_state: dict[str, list[_Named]] = defaultdict(list)
    for name, part in parts:
        if (
            (part.leader_id is None and part.replicas)
            or part.leader_id in gone
            or part.state == PartitionHealth.NO_LEADER
        ):
            without.append((name, part))
        elif part.state == PartitionHealth.STARTING and part.leader_id in without_nats:
            continue  # it is not subscribed, which is told of its broker
        elif part.state != PartitionHealth.ONLINE:
            by_state[part.state].append((name, part))
    if without:
        why = next((part.state_reason for _, part in without if part.state_reason), "")
        text = f"{_some(without, parts)} {_have(without)} no leader{f': {why}' if why else ''}"
        reason = _down if len(without) == len(parts) else _degraded
        yield reason(Kind.NO_LEADER, text, "docs/how-to/no-leader.md")
    for state, some in by_state.items():
        why = next((part.state_reason for _, part in some if part.state_reason), "")
        text = f"{_some(some, parts)} {_are(some)} {state.replace('_', ' ')}{f': {why}' if why else ''}"
        yield _degraded(Kind.PARTITION_STATE, text, "`penstock stream show` and the broker's log say more")
    if damaged := [(name, part) for name, part in parts if part.damage and part.state != PartitionHealth.READ_ONLY]:
        yield _degraded(Kind.DAMAGE, f"{_some(damaged, parts)} {_have(damaged)} corruption", "docs/how-to/repair.md")


def _replicas(infos: Collection[StreamInfo], gone: frozenset[int]) -> Iterator[Reason]:
    parts: list[_Named] = []
    few: list[_Named] = []
    missing: dict[int, list[_Named]] = defaultdict(list)  # by broker
    trouble: dict[int, str] = {}
    unobserved: list[str] = []
    for info in infos:
        for part in info.partitions:
            named = (label(info, part.partition), part)
            parts.append(named)
            if len(part.isr) < (info.config.min_isr or 1) and part.leader_id is not None:
                few.append(named)
            for one in part.replicas:
                if one not in part.isr or int(one) in gone:
                    missing[int(one)].append(named)
            for follower in part.followers:
                if follower.broker_id in part.observers:
                    continue
                if follower.state or follower.is_impeded:
                    state = (follower.state or "impeded").replace("_", " ")
                    why = follower.state_reason or ("its disk takes nothing" if follower.is_impeded else "")
                    trouble.setdefault(int(follower.broker_id), f"{state}{f': {why}' if why else ''}")
                    if follower.broker_id in part.isr and int(follower.broker_id) not in gone:
                        missing[int(follower.broker_id)].append(named)
            told = {one.broker_id for one in part.followers if one.behind_us is not None}
            absent = info.config.observers - len(part.observers)
            lost = [one for one in part.observers if one not in told or int(one) in gone]
            if absent > 0 or lost:
                unobserved.append(named[0])
    if few:
        text = f"{_some(few, parts)} {'acks' if len(few) == 1 else 'ack'} nothing: fewer replicas in sync than min_isr"
        yield _degraded(Kind.MIN_ISR, text, "bring back the brokers that are away")
    for broker_id, some in sorted(missing.items()):
        if some:
            why = f" ({trouble[broker_id]})" if broker_id in trouble else ""
            text = (
                f"{_some(some, parts)} {'lacks' if len(some) == 1 else 'lack'} the replica on broker {broker_id}{why}"
            )
            yield _degraded(Kind.REPLICAS_MISSING, text)
    if unobserved:
        text = f"{counted(len(unobserved), 'partition')} ({listed(unobserved)})"
        verb = "lacks" if len(unobserved) == 1 else "lack"
        yield _degraded(Kind.OBSERVERS_MISSING, f"{text} {verb} an observer", "docs/how-to/read-replicas.md")


def _some(some: Collection[_Named], parts: Collection[_Named]) -> str:
    """Return `orders/1`, `2 of 14 partitions (orders/0, orders/1)`, or `all 14 partitions`."""
    if len(some) == 1:
        return f"partition {next(iter(some))[0]}"
    if len(some) == len(parts):
        return f"all {len(parts)} partitions"
    return f"{len(some)} of {len(parts)} partitions ({listed(name for name, _ in some)})"


def _have(some: Collection[_Named]) -> str:
    return "has" if len(some) == 1 else "have"


def _are(some: Collection[_Named]) -> str:
    return "is" if len(some) == 1 else "are"
