"""Output of `penstock verify`: a table with problems below it, or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.base.units import format_bytes, format_offsets
from penstock.cli.terminal import output

if TYPE_CHECKING:
    from penstock.ops.verify.results import DamagedPlace, Differing, Verified, VerifiedReplica

_SHOWN_MAX = 50  # most corrupt places, and most differences, to print; --json has all


def show(done: Verified, *, as_json: bool) -> None:
    """Print the table and all problems, or JSON."""
    replicas, found = done
    if as_json:
        for one in replicas:
            output.print_json(_json_row(one, found))
        return
    console = output.console()
    made = output.table(
        "stream", "replica", "offsets", "rows", "bytes", "compared", "verdict", right=("rows", "bytes")
    )  # fmt: skip
    for one in replicas:
        style = "green" if one.verdict == "sound" else "bold red"
        made.add_row(
            output.cell(f"{one.stream}/{one.partition}", "bold"),
            output.cell(one.replica),
            output.cell(format_offsets(one.log_start, one.log_end)),
            output.cell(output.count_text(one.rows)),
            output.cell(format_bytes(one.size_bytes)),
            output.cell("-" if one.compared_end is None else format_offsets(one.compared_from or 0, one.compared_end)),
            output.cell(one.verdict, style),
        )
    console.print(made)
    _print_all(console, [line for one in replicas for line in _damage_lines(one)], "bold red")
    _print_all(console, [_difference_line(one) for one in found if not one.legal], "bold red")
    _print_all(console, _notes(replicas, found), "dim")


def _json_row(one: VerifiedReplica, found: Sequence[Differing]) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(one)
    row["verdict"] = one.verdict
    of_partition = (each for each in found if (each.stream, each.partition) == (one.stream, one.partition))
    of_it = [each for each in of_partition if one.replica in (*each.replicas, *each.others)]
    row["differences"] = msgspec.to_builtins(of_it)
    return row


def _print_all(console: Any, lines: list[str], style: str) -> None:
    for line in lines[:_SHOWN_MAX]:
        console.print(output.cell(line, style))
    if len(lines) > _SHOWN_MAX:
        console.print(output.cell(f"and {len(lines) - _SHOWN_MAX} more; --json has all", style))


def _damage_lines(one: VerifiedReplica) -> list[str]:
    lines = []
    if one.not_verified is not None:
        lines.append(f"{one.stream}/{one.partition} on {one.replica} was not verified: {one.not_verified}")
    for place in one.damage:
        lost = "no row is lost with it"
        if place.base_offset is not None:
            lost = f"lost: {format_offsets(place.base_offset, place.end_offset)}"
        lines.append(
            f"DAMAGE in {place.file} at byte {place.position}: expected {place.expected}, found {place.found}; {lost}"
        )
    if one.unlisted:
        lines.append(f"and {output.counted(one.unlisted, 'more place')} in {one.stream}/{one.partition}")
    return lines


def _difference_line(one: Differing) -> str:
    where = f"{one.stream}/{one.partition}, offsets {format_offsets(one.begin, one.end)}"
    text = f"DIFFERENCE in {where}: {_names(one.replicas)} and {_names(one.others)} have other rows"
    parts = []
    if one.rows_that_differ:
        parts.append(f"{output.counted(one.rows_that_differ, 'row')} not the same at the same offset")
    if one.rows_only_in_replicas:
        parts.append(f"{output.counted(one.rows_only_in_replicas, 'row')} only in {_names(one.replicas)}")
    if one.rows_only_in_others:
        parts.append(f"{output.counted(one.rows_only_in_others, 'row')} only in {_names(one.others)}")
    return f"{text}: {', '.join(parts)}; first offsets: {', '.join(map(str, one.first_offsets))}"


def _notes(replicas: Sequence[VerifiedReplica], found: Sequence[Differing]) -> list[str]:
    lines = []
    let_go: dict[tuple[str, int], int] = {}
    for one in found:
        if one.legal:
            place = one.stream, one.partition
            let_go[place] = let_go.get(place, 0) + one.rows_only_in_replicas + one.rows_only_in_others
    for (stream, partition), rows in let_go.items():
        text = "one replica has deleted (compaction, time to live, rollup), and another one not yet"
        lines.append(f"{stream}/{partition}: {output.counted(rows, 'row')} that {text}: no difference")
    for replica in replicas:
        if (torn := replica.torn) is not None:
            what = "was not flushed, and is not verified"
            lines.append(f"{replica.stream}/{replica.partition} on {replica.replica}: {_torn_text(torn)} {what}")
    return lines


def _torn_text(torn: DamagedPlace) -> str:
    return f"the end of {torn.file} from byte {torn.position} on"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)
