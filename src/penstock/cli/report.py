"""Streams and brokers as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.base.units import format_bytes, format_duration_us
from penstock.cli.output import cell, count_text, table, time_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from penstock.messages import GapInfo, PartitionInfo, StreamInfo

_GAPS_SHOWN_MAX = 10


def pairs(values: Mapping[str, str]) -> Table:
    """Two columns: name and value."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    for name, value in values.items():
        made.add_row(cell(name, "bold"), cell(value))
    return made


def message_count(info: StreamInfo) -> int:
    """Messages kept and committed."""
    return sum(part.committed_end - part.log_start for part in info.partitions)


def state_text(info: StreamInfo) -> str:
    """The states of a stream's partitions, each once."""
    states = list(dict.fromkeys(str(part.state) for part in info.partitions))
    return ", ".join(states) if states else "unknown"


def offsets_text(part: PartitionInfo) -> str:
    """Which offsets a partition holds."""
    if part.committed_end == part.log_start:
        return f"none (next is {part.committed_end})"
    return f"{part.log_start} to {part.committed_end - 1}"


def stream_table(infos: Iterable[StreamInfo]) -> Table:
    """One line a stream."""
    names = ("stream", "subject", "messages", "size", "offsets", "last message", "state")
    made = table(*names, right=("messages", "size"))
    for info in infos:
        state = state_text(info)
        last = [part.last_timestamp_us for part in info.partitions if part.last_timestamp_us is not None]
        made.add_row(
            cell(info.name, "bold"),
            cell(info.subject),
            cell(count_text(message_count(info))),
            cell(format_bytes(sum(part.size_bytes for part in info.partitions))),
            cell(", ".join(offsets_text(part) for part in info.partitions)),
            cell(time_text(max(last, default=None))),
            cell(state, "green" if state == "online" else "bold red"),
        )
    return made


def stream_pairs(info: StreamInfo) -> dict[str, str]:
    """What a stream is and holds."""
    shown = {
        "stream": info.name,
        "subject": info.subject,
        "id": str(info.stream_id),
        "created": time_text(info.created_us),
        "state": state_text(info),
        "messages": count_text(message_count(info)),
    }
    for part in info.partitions:
        prefix = "" if len(info.partitions) == 1 else f"partition {part.partition} "
        shown |= {
            f"{prefix}offsets": offsets_text(part),
            f"{prefix}first message": time_text(part.first_timestamp_us) or "-",
            f"{prefix}last message": time_text(part.last_timestamp_us) or "-",
            f"{prefix}size": f"{format_bytes(part.size_bytes)} in {part.segment_count} segment files",
            f"{prefix}leader epoch": str(part.leader_epoch),
        }
        if part.log_end != part.committed_end:
            shown[f"{prefix}not committed yet"] = count_text(part.log_end - part.committed_end)
    return shown


def gap_text(gap: GapInfo) -> str:
    """When a gap was, how long, and why."""
    start = time_text(gap.start_us)
    if gap.end_us is None:
        return f"{start} until now: {gap.reason}"
    return f"{start} for {format_duration_us(gap.end_us - gap.start_us)}: {gap.reason}"


def print_gaps(console: Console, title: str, gaps: tuple[GapInfo, ...]) -> None:
    """The latest gaps; nothing where there are none."""
    if not gaps:
        return
    console.print()
    console.print(cell(f"{title}: what was published then may not be stored; what was acked is", "yellow"))
    for gap in gaps[-_GAPS_SHOWN_MAX:]:
        console.print(cell(f"  {gap_text(gap)}"))
    if len(gaps) > _GAPS_SHOWN_MAX:
        console.print(cell(f"  and {len(gaps) - _GAPS_SHOWN_MAX} earlier ones (see --json)"))


def print_trouble(console: Console, info: StreamInfo, part: PartitionInfo) -> None:
    """Damage, gaps and dropped messages of one partition; nothing where all is well."""
    if part.state_reason:
        console.print()
        console.print(cell(f"Stream {info.name} is {part.state}: {part.state_reason}", "yellow"))
    if part.damage:
        console.print()
        console.print(cell(f"Damage in stream {info.name}: nothing was deleted", "bold red"))
        for damage in part.damage:
            lost = ""
            if damage.base_offset is not None:
                end = "?" if damage.end_offset is None else str(damage.end_offset - 1)
                lost = f"; offsets {damage.base_offset} to {end} cannot be read"
            where = f"{damage.file} at byte {damage.position}"
            console.print(cell(f"  {where}: expected {damage.expected}, found {damage.found}{lost}"))
    print_gaps(console, f"Gaps of stream {info.name}", part.gaps)
    dropped = {reason: count for reason, count in part.dropped.items() if count}
    if dropped:
        console.print()
        console.print(cell(f"Not stored by stream {info.name} since the broker started", "yellow"))
        for reason, count in dropped.items():
            console.print(cell(f"  {count_text(count)}: {reason}"))
