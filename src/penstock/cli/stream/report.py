"""Prints tables of streams and their problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.base.config import Intake, Retain
from penstock.base.units import format_bytes, format_duration_us, format_offsets
from penstock.cli.stream import replicas
from penstock.cli.stream.replicas import UNKNOWN
from penstock.cli.terminal.failure import printable
from penstock.cli.terminal.output import cell, count_text, counted, cut, short_time_text, table, time_text, width_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from penstock.doctor.gaps import Cause
    from penstock.messages import GapInfo, LiveRowsInfo, PartitionInfo, StreamInfo

_GAPS_SHOWN_MAX = 10
_TROUBLED_SHOWN_MAX = 10  # partitions
_PARTITIONS_SHOWN_MAX = 16  # partitions of one stream, each in several lines
_GAPS_MEAN = "times with possibly no subscription; messages published then may not be stored, acked ones are"
_WIDE = 120  # characters: from this width on, offsets and full times are shown
_RANGES_CHARS_MAX = 30  # most characters for the offsets of several partitions, in a line of `_WIDE`
_TEXT_CHARS_MIN, _SUBJECT_CHARS_MIN = 10, 14
_TEXTS = ("stream", "subject")
_LEFT_OUT_FIRST = ("last message", "size", "subject", "messages")
_DROPPED_TEXTS = {
    "refused": " (a check failed: of the size, the headers, the schema or a limit of the stream)",
    "unmet_expectation": " (of the last sequence or message id: another publisher was first)",
    "other_stream": " (Nats-Expected-Stream names another one)",
    "reserved_subject": " (of NATS or of Penstock itself)",
    "consumer_control": " (heartbeats and flow control of JetStream, which are no messages)",
}
_STATE_STYLES = {"online": "green", **dict.fromkeys(("paused", "read-only", "sealed"), "yellow")}  # intended states


def with_subjects(info: StreamInfo) -> dict[str, Any]:
    """Return a stream for JSON, with all that it stores in `subjects`."""
    return {"subjects": info.subjects, **msgspec.to_builtins(info)}


def with_live(info: StreamInfo, live: Sequence[LiveRowsInfo] | None) -> dict[str, Any]:
    """Return the same with the counted messages of each partition, in order, in `live`."""
    return {**with_subjects(info), "live": msgspec.to_builtins(live)}


def pairs(values: Mapping[str, str]) -> Table:
    """Return a table of two columns, name and value; a long value, such as a path, is wrapped."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in values.items():
        made.add_row(cell(name, "bold"), cell(value))
    return made


def _count_or_unknown(info: StreamInfo) -> str:
    return UNKNOWN if info.messages is None else count_text(info.messages)


def state_text(info: StreamInfo) -> str:
    """Return the distinct states of a stream's partitions."""
    states = list(dict.fromkeys(str(part.state).replace("_", " ") for part in info.partitions))
    if states == ["online"] and info.intake != Intake.OPEN:
        return intake_text(info)
    return ", ".join(states) if states else "unknown"


def intake_text(info: StreamInfo) -> str:
    """Return `open`, `paused`, `read-only` or `sealed`."""
    return info.intake.replace("_", "-")


def moving_text(info: StreamInfo) -> str:
    """Return the earlier partition counts, and the partitions whose keys have not all moved to the added ones."""
    text = ", then ".join(map(str, info.counts))
    if not info.is_moving:
        return text
    marked = {one.partition for one in info.key_marks if one.partitions == info.counts[-1]}
    missing = ", ".join(str(number) for number in range(info.counts[-2]) if number not in marked)
    return f"{text}; partition {missing} has not handed over its keys yet"


def offsets_text(part: PartitionInfo) -> str:
    """Return the range of committed offsets of a partition, as text."""
    if part.committed_end is None:
        return UNKNOWN
    if part.committed_end == part.log_start:
        return f"none (next is {part.committed_end})"
    return f"{part.log_start} to {part.committed_end - 1}"


def _empty_text(info: StreamInfo) -> str | None:
    """Return the text for a stream none of whose partitions ever had a message; None for any other."""
    if all(part.committed_end == 0 for part in info.partitions):
        each = " in each partition" if len(info.partitions) > 1 else ""
        return f"none (next is 0{each})"
    return None


def _ranges_text(info: StreamInfo) -> str:
    """Return each partition's offsets if they fit into the line, else the count; `stream show` has them all."""
    if (together := _empty_text(info)) is not None:
        return together
    text = ", ".join(offsets_text(part) for part in info.partitions)
    return text if len(info.partitions) == 1 or len(text) <= _RANGES_CHARS_MAX else f"{len(info.partitions)} partitions"


def stream_table(infos: Sequence[StreamInfo], *, width: int) -> Table:
    """Return a table with one line per stream in at most `width` characters; narrow ones have fewer columns."""
    wide = width >= _WIDE
    rows = [_row(info, wide=wide) for info in infos]
    names = list(rows[0])
    chars = {title: max(len(title), *(width_of(row[title]) for row in rows)) for title in names}
    for title in _LEFT_OUT_FIRST:
        if _left(chars, width) >= _TEXT_CHARS_MIN * (1 + ("subject" in chars)):
            break
        del chars[title]
    # Share the remaining width between names and subjects.
    left = max(_TEXT_CHARS_MIN * (1 + ("subject" in chars)), _left(chars, width))
    # A name of usual length is not truncated, so that it can be copied.
    name_chars_max = left
    if "subject" in chars:
        name_chars_max = max(_TEXT_CHARS_MIN, left // 2, min(replicas.NAME_CHARS_MAX, left - _SUBJECT_CHARS_MIN))
    name_chars = min(chars["stream"], name_chars_max)
    made = table(*chars, right=("messages", "size"))
    for row in rows:
        row |= {"stream": cut(row["stream"], name_chars), "subject": cut(row["subject"], left - name_chars)}
        styles = {"stream": "bold", "state": _STATE_STYLES.get(row["state"], "bold red")}
        made.add_row(*(cell(row[title], styles.get(title, "")) for title in chars))
    return made


def _left(chars: Mapping[str, int], width: int) -> int:
    """Return the characters left for name and subject, if the other columns have theirs; two separate columns."""
    return width - sum(count for title, count in chars.items() if title not in _TEXTS) - 2 * (len(chars) - 1)


def _row(info: StreamInfo, *, wide: bool) -> dict[str, str]:
    last = max((part.last_timestamp_us for part in info.partitions if part.last_timestamp_us is not None), default=None)
    return {
        "stream": printable(info.name),
        "subject": printable(", ".join(info.subjects)),
        "messages": _count_or_unknown(info),
        "size": UNKNOWN if info.size_bytes is None else format_bytes(info.size_bytes),
        **({"first to last": _ranges_text(info)} if wide else {}),
        "last message": time_text(last) if wide else short_time_text(last),
        "state": state_text(info),
    }


def stream_pairs(
    info: StreamInfo, *, is_clustered: bool = True, live: Sequence[LiveRowsInfo] | None = None
) -> dict[str, str]:
    """Return names and texts about a stream, with `is_clustered` also its replicas; some of many partitions only.

    `live`: the counted messages of each partition.
    """
    shown = {
        "stream": info.name,
        "subject": ", ".join(info.subjects),
        "id": str(info.stream_id),
        "created": time_text(info.created_us),
        **({"made by": info.owner} if info.owner else {}),
        "state": state_text(info),
        **({} if info.intake == Intake.OPEN else {"intake": f"{intake_text(info)} since {time_text(info.intake_us)}"}),
        **({"partitions were": moving_text(info)} if info.counts else {}),
        "messages kept": _count_or_unknown(info) if live is None else _kept_text(live),
    }
    if (empty := _empty_text(info)) is not None:
        shown["offsets"] = empty
    told: set[str] = set()  # addresses
    for part in replicas.some_of(info.partitions, replicas.is_well, _PARTITIONS_SHOWN_MAX):
        prefix = "" if len(info.partitions) == 1 else f"partition {part.partition} "
        is_unknown = part.committed_end is None
        size = f"{format_bytes(part.size_bytes)} in {counted(part.segment_count, 'segment file')}"
        if empty is None:
            shown[f"{prefix}offsets"] = offsets_text(part)
            shown[f"{prefix}last message"] = UNKNOWN if is_unknown else time_text(part.last_timestamp_us) or "-"
        shown |= {
            f"{prefix}size": UNKNOWN if is_unknown else size,
            f"{prefix}leader epoch": str(part.leader_epoch),
        }
        if is_clustered:
            shown |= replicas.partition_pairs(part, prefix, told)
        if (
            not part.dedup_ids
            and info.config.dedup_window_ms is not None
            and not (is_unknown or info.config.is_internal)
        ):
            shown[f"{prefix}message ids"] = "none read yet"
        if part.dedup_ids:
            forgotten = f", {count_text(part.dedup_ids_forgotten)} forgotten early" if part.dedup_ids_forgotten else ""
            shown[f"{prefix}message ids"] = count_text(part.dedup_ids) + forgotten
        if (archived := _archived_text(info, part)) is not None:
            shown[f"{prefix}archived up to"] = archived
        if part.producers:
            shown[f"{prefix}producers"] = count_text(part.producers)
        if part.to_erase_reason:
            shown[f"{prefix}to be erased"] = f"{counted(part.to_erase, 'message')}: {part.to_erase_reason}"
        if part.log_end is not None and part.committed_end is not None and part.log_end != part.committed_end:
            shown[f"{prefix}not committed yet"] = count_text(part.log_end - part.committed_end)
    if more := replicas.more_text(info.partitions, replicas.is_well, _PARTITIONS_SHOWN_MAX, "partition"):
        shown["partitions"] = f"{count_text(len(info.partitions))}: {more}; --json has them"
    return shown


def _kept_text(live: Sequence[LiveRowsInfo]) -> str:
    """Return the number of messages, and how many between the first and the last are deleted."""
    rows, deleted = sum(one.rows for one in live), sum(one.deleted for one in live)
    return count_text(rows) + (f", {count_text(deleted)} deleted between them" if deleted else "")


def _archived_text(info: StreamInfo, part: PartitionInfo) -> str | None:
    """Return the offset up to which all archives have the messages; None if no archive matters or has reported."""
    if part.archived_end is None:
        waits = info.config.retain is Retain.UNTIL_ARCHIVED and part.committed_end is not None
        return "no archive has reported yet: nothing is deleted" if waits else None
    each = ", ".join(f"{printable(name)} {count_text(end)}" for name, end in sorted(part.archives.items()))
    return f"{count_text(part.archived_end)} ({each or 'no archive has reported on this partition'})"


def gap_text(gap: GapInfo) -> str:
    """Return a gap's start, duration and reason as text."""
    start = time_text(gap.start_us)
    if gap.end_us is None:
        return f"{start} until now: {gap.reason}"
    return f"{start} for {format_duration_us(gap.end_us - gap.start_us)}: {gap.reason}"


def print_gaps(console: Console, title: str, gaps: tuple[GapInfo, ...]) -> None:
    """Print the latest gaps, if any."""
    if not gaps:
        return
    console.print()
    console.print(cell(f"{title}: {_GAPS_MEAN}", "yellow"))
    for gap in gaps[-_GAPS_SHOWN_MAX:]:
        console.print(cell(f"  {gap_text(gap)}"))
    if len(gaps) > _GAPS_SHOWN_MAX:
        console.print(cell(f"  and {len(gaps) - _GAPS_SHOWN_MAX} earlier ones (see --json)"))


def print_causes(console: Console, causes: Sequence[Cause]) -> None:
    """Print the latest gaps of several streams with their partitions, if any."""
    from penstock.doctor.findings import listed

    if not causes:
        return
    console.print()
    console.print(cell(f"Gaps: {_GAPS_MEAN}", "yellow"))
    for cause in causes[-_GAPS_SHOWN_MAX:]:
        console.print(cell(f"  {gap_text(cause.gap)} ({listed(cause.where)})"))
    if len(causes) > _GAPS_SHOWN_MAX:
        console.print(cell(f"  and {len(causes) - _GAPS_SHOWN_MAX} earlier ones (see --json)"))


def print_troubles(console: Console, infos: Sequence[StreamInfo]) -> None:
    """Print the problems of some partitions, the worst first, and the count of those not shown."""
    found = [(info, part) for info in infos for part in info.partitions if _has_trouble(part)]
    found.sort(key=lambda one: _severity(one[1]))
    for info, part in found[:_TROUBLED_SHOWN_MAX]:
        print_trouble(console, info, part)
    if (more := len(found) - _TROUBLED_SHOWN_MAX) > 0:
        console.print()
        console.print(cell(f"and {counted(more, 'more partition')} in trouble (see --json)", "yellow"))


def _severity(part: PartitionInfo) -> int:
    """Return 0 for corruption, 1 for a current failure, 2 for past problems."""
    if part.damage:
        return 0
    return 1 if part.state_reason or any(one.state for one in part.followers) else 2


def _has_trouble(part: PartitionInfo) -> bool:
    from penstock.messages.streams import NO_TROUBLE

    is_dropping = any(count for reason, count in part.dropped.items() if reason not in NO_TROUBLE)
    return bool(
        part.state_reason or part.damage or part.gaps or is_dropping or any(one.state for one in part.followers)
    )


def print_trouble(console: Console, info: StreamInfo, part: PartitionInfo) -> None:
    """Print corruption, gaps and dropped messages of a partition, if any."""
    from penstock.messages import PartitionHealth

    which = info.name if len(info.partitions) == 1 else f"{info.name}, partition {part.partition},"
    where_from = which.rstrip(",")
    if part.state_reason:
        console.print()
        # The reason then already says that there is no leader.
        is_state = "" if part.state == PartitionHealth.NO_LEADER else f" is {str(part.state).replace('_', ' ')}"
        console.print(cell(f"Stream {which if is_state else where_from}{is_state}: {part.state_reason}", "yellow"))
    for one in part.followers:
        if one.state:
            state = str(one.state).replace("_", " ")
            why = f": {one.state_reason}" if one.state_reason else ""
            console.print()
            console.print(cell(f"Stream {where_from} on broker {one.broker_id} is {state}{why}", "yellow"))
    if part.damage:
        console.print()
        console.print(cell(f"Damage in stream {where_from}: nothing was deleted", "bold red"))
        for damage in part.damage:
            lost = ""
            if damage.base_offset is not None:
                lost = f"; offsets that cannot be read: {format_offsets(damage.base_offset, damage.end_offset)}"
            where = f"{damage.file} at byte {damage.position}"
            console.print(cell(f"  {where}: expected {damage.expected}, found {damage.found}{lost}"))
    print_gaps(console, f"Gaps of stream {where_from}", part.gaps)
    dropped = {reason: count for reason, count in part.dropped.items() if count}
    if dropped:
        console.print()
        console.print(cell(f"Not stored by stream {which} since the broker started", "yellow"))
        for reason, count in dropped.items():
            console.print(cell(f"  {count_text(count)}: {reason}{_DROPPED_TEXTS.get(reason, '')}"))
