"""Tables of brokers and replicas: leaders, in-sync replicas, lag of followers.

Rules: only the leader knows its followers' lag; it is shown as unknown if the leader does not answer. A table has at
most SHOWN_MAX lines: unhealthy partitions first, then others while there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from penstock.base.units import format_bytes
from penstock.cli.terminal.output import cell, count_text, counted, cut, table

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from penstock.doctor.cluster_state import ClusterState, Rates
    from penstock.messages import PartitionInfo, StatusResponse, StreamInfo

T = TypeVar("T")

NAME_CHARS_MAX = 30
SHOWN_MAX = 32
"""Most lines of a table, about the height of a terminal."""
UNKNOWN = "?"  # only the leader knows, and it did not answer


def broker_table(
    state: StatusResponse, seen: ClusterState | None = None, rates: Mapping[int, Rates] | None = None
) -> Table:
    """Return a table with one line per broker of the cluster.

    `seen`: what the brokers themselves answered; then columns in which all are the same are left out. `rates`: see
    `ClusterState.rates_since`.
    """
    from penstock.doctor.verdict import session_text

    answers = {} if seen is None else {one.broker_id: one for one in seen.answers}
    is_short = seen is not None
    has_racks = not is_short or any(one.rack for one in state.brokers)
    has_versions = not is_short or len({one.broker_version for one in state.brokers}) > 1
    has_addresses = rates is None  # with the rates there is no room for them
    names = ["broker", *["address"] * has_addresses, *["rack"] * has_racks, *["version"] * has_versions, "state"]
    names += [*["NATS", "disk free"] * is_short, *([] if rates is None else _RATES)]
    made = table(*names, right=("broker", "disk free", *_RATES))
    for one in state.brokers:
        answer = answers.get(int(one.broker_id))
        is_leader = one.broker_id == state.metadata_leader
        is_cut_off = one.is_live and one.is_reachable is False
        text = ("live" if one.is_live else "away") + ("" if one.votes else ", no vote")
        if is_cut_off:
            # Only a metadata leader knows if it is live.
            text = "not reachable from here" if state.metadata_leader is None else f"{text}, not reachable from here"
        text = f"{text}, metadata leader" if is_leader else text
        is_mute = answer is not None and answer.status is None
        told = [session_text(one), "no answer" if is_mute and not is_cut_off and one.is_live else ""]
        text = ", ".join(filter(None, (text, *told)))
        style = "green" if one.is_live and not is_cut_off and not any(told) else "bold red"
        texts = [*[one.address] * has_addresses, *[one.rack or "-"] * has_racks, *[one.broker_version] * has_versions]
        status = None if answer is None else answer.status
        rate = None if rates is None else rates.get(int(one.broker_id))
        made.add_row(
            cell(str(one.broker_id), "bold"),
            *map(cell, texts),
            cell(text, style),
            *(_own_cells(status, has_share=has_addresses) if is_short else ()),
            *(() if rates is None else map(cell, _rate_texts(rate))),
        )
    return made


_RATES = ("in/s", "bytes in/s", "bytes out/s")


def _own_cells(status: StatusResponse | None, *, has_share: bool) -> tuple[Text, Text]:
    """Return what a broker says of its connection to NATS and its disk."""
    if status is None:
        return cell("?"), cell("?")
    nats = cell("yes", "green") if status.nats.state == "connected" else cell("no", "bold red")
    disk = disk_text(status, is_short=True)
    return nats, cell(disk if has_share else disk.partition(",")[0], "bold red" if status.disk_is_full else "")


def disk_text(status: StatusResponse, *, is_short: bool = False) -> str:
    """Return the free space of a broker's disk."""
    if not status.disk_answers:
        return "no answer"
    full = "full: " if status.disk_is_full else ""
    free, size = status.disk_free_bytes, status.disk_size_bytes
    if free is None or not size:
        return f"{full}{UNKNOWN}"
    share = f"{free * 100 // size} %"
    if is_short:
        return f"{full}{format_bytes(free)}, {share}"
    return f"{full}{format_bytes(free)} of {format_bytes(size)} free, {share}"


def _rate_texts(rate: Rates | None) -> tuple[str, str, str]:
    if rate is None:
        return UNKNOWN, UNKNOWN, UNKNOWN
    bytes_in, bytes_out = format_bytes(int(rate.bytes_in)), format_bytes(int(rate.bytes_out))
    return f"{rate.messages_in:,.0f}", bytes_in, bytes_out


def replica_table(infos: Sequence[StreamInfo], unreachable: frozenset[int] = frozenset()) -> Table:
    """Return a table with one line per partition: leader, leader epoch, replicas, ISR, lag of followers.

    `unreachable`: brokers that cannot be reached and so may no longer lead. Partitions may be left out; see `left_out`.
    """
    are_observed = any(part.observers for info in infos for part in info.partitions)
    names = ("stream", "partition", "leader", "epoch", "replicas", "in sync", *(["observers"] * are_observed), "behind")
    made = table(*names, right=("partition", "epoch"))
    for info, part in some_of(_each(infos), lambda row: is_well(row[1], unreachable), SHOWN_MAX):
        is_gone = part.leader_id in unreachable
        is_whole = part.leader_id is not None and not is_gone and len(part.isr) == len(part.replicas)
        made.add_row(
            cell(cut(info.name, NAME_CHARS_MAX), "bold"),
            cell(str(part.partition)),
            cell(f"{part.leader_id}, not reachable" if is_gone else leader_text(part), "bold red" if is_gone else ""),
            cell(str(part.leader_epoch)),
            cell(ids_text(part.replicas)),
            cell(ids_text(part.isr), "green" if is_whole else "yellow"),
            *([cell(observers_text(part))] * are_observed),
            cell(behind_text(part)),
        )
    return made


def left_out(infos: Sequence[StreamInfo], unreachable: frozenset[int] = frozenset()) -> str:
    """Return how many partitions, and unhealthy ones, `replica_table` leaves out, as text; empty if none."""
    text = more_text(_each(infos), lambda row: is_well(row[1], unreachable), SHOWN_MAX, "partition")
    return text and f"{text}; --json has them"


def is_well(part: PartitionInfo, unreachable: frozenset[int] = frozenset()) -> bool:
    """True if the partition is online, led and uncorrupted, and all its replicas are in sync."""
    is_led = part.leader_id is not None or not part.replicas  # a broker without a cluster has neither
    are_in_sync = len(part.isr) == len(part.replicas) and not any(one.state for one in part.followers)
    is_known = part.committed_end is not None and behind_text(part) != UNKNOWN
    return (
        part.state == "online"
        and is_led
        and part.leader_id not in unreachable
        and are_in_sync
        and is_known
        and not part.damage
        and not any(one.is_impeded for one in part.followers)
    )


def _each(infos: Sequence[StreamInfo]) -> list[tuple[StreamInfo, PartitionInfo]]:
    return [(info, part) for info in infos for part in info.partitions]


def some_of(items: Sequence[T], is_good: Callable[[T], bool], most: int) -> list[T]:
    """Return at most `most` items in their order: those that are not good, then others while there is room."""
    if len(items) <= most:
        return list(items)
    worst_first = sorted(range(len(items)), key=lambda number: is_good(items[number]))
    return [items[number] for number in sorted(worst_first[:most])]


def more_text(items: Sequence[T], is_good: Callable[[T], bool], most: int, noun: str) -> str:
    """Return how many items, and how many that are not good, `some_of` leaves out, as text; empty if none."""
    if len(items) <= most:
        return ""
    bad = max(0, sum(not is_good(item) for item in items) - most)
    return (
        f"… and {counted(len(items) - most, f'more {noun}')}, {count_text(bad) if bad else 'none'} of them in trouble"
    )


def silent_leaders(infos: Sequence[StreamInfo]) -> str:
    """Return a line with the leaders that did not answer; empty if all did."""
    silent = {
        part.leader_id
        for info in infos
        for part in info.partitions
        if part.leader_id is not None and (part.committed_end is None or behind_text(part) == UNKNOWN)
    }
    if not silent:
        return ""
    who = f"broker{'s' if len(silent) > 1 else ''} {ids_text(sorted(silent))}"
    return f"no answer from {who}: values that only the leader knows are shown as {UNKNOWN}"


def leader_text(part: PartitionInfo) -> str:
    """Return the partition's leader as text."""
    return "nobody" if part.leader_id is None else str(part.leader_id)


def ids_text(ids: Sequence[int]) -> str:
    """Return broker ids in the given order, separated by commas."""
    return ",".join(map(str, ids)) or "-"


def observers_text(part: PartitionInfo) -> str:
    """Return the partition's observers (read replicas), each with its reported maximum staleness."""
    told = {one.broker_id: one.behind_us for one in part.followers}
    texts = []
    for one in part.observers:
        behind_us = told.get(one)
        texts.append(f"{one} ({UNKNOWN})" if behind_us is None else f"{one} ({behind_us / 1e6:.1f} s)")
    return ", ".join(texts) or "-"


def behind_text(part: PartitionInfo) -> str:
    """Return the lag in messages of each follower and observer that is behind the leader."""
    if not part.followers:
        return UNKNOWN if len(part.replicas) + len(part.observers) > 1 else "-"
    late = [
        f"{one.broker_id}: {'unknown' if one.lag is None else count_text(one.lag)}"
        + (", its disk takes nothing" if one.is_impeded else "")
        for one in part.followers
        if one.lag != 0 or one.is_impeded
    ]
    return ", ".join(late) or "nobody"


def partition_pairs(part: PartitionInfo, prefix: str, told: set[str]) -> dict[str, str]:
    """Return names and texts about a partition's replicas. An address in `told` is left out, another one is added."""
    leader = "nobody" if part.leader_id is None else f"broker {part.leader_id}"
    if part.leader_id is not None and part.leader not in told:
        told.add(part.leader)
        leader += f" at {part.leader}"
    shown = {
        f"{prefix}leader": leader,
        f"{prefix}on brokers": ids_text(part.replicas),
        f"{prefix}in sync": ids_text(part.isr),
        f"{prefix}behind": behind_text(part),
    }
    if part.observers:
        shown[f"{prefix}observed by"] = observers_text(part)
    if part.eligible:
        shown[f"{prefix}may lead too"] = f"{ids_text(part.eligible)}, until messages are acked again"
    return shown
