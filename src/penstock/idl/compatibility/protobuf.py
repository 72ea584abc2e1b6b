"""Changes that only Protobuf has: oneofs, reserved numbers and names, names in JSON, the first value of an enum.

Rules: fields of a oneof that both versions have are compared, since a writer sets no others. A field may move into a
oneof of its own: nothing is set beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from penstock.idl.compatibility.rules import Changes
from penstock.idl.model import Enum, EnumValue, Field, Position, Reserved, Struct
from penstock.idl.protobuf import json_name
from penstock.idl.streams import annotation


def compare_messages(changes: Changes, was: Struct, now: Struct) -> None:
    """Note what has changed in two messages, beside their fields."""
    if was.reserved is None or now.reserved is None:
        return
    by_id = {each.id: each for each in now.fields}
    both = [(each, by_id[each.id]) for each in was.fields if each.id in by_id]
    _compare_oneofs(changes, was.name, both)
    for old, new in both:
        before, after = (each.json_name or json_name(each.name) for each in (old, new))
        if before != after:
            text = f"field {old.id}: the name in JSON {before} is {after} now"
            changes.add("json-name-changed", f"{was.name}.{old.name}", text, old.position, new.position)
    used = ((each.id, each.name, each.position) for each in now.fields)
    _compare_reserved(changes, (was.name, was.position, now.position), was.reserved, now.reserved, used)


def compare_enums(changes: Changes, was: Enum, now: Enum) -> None:
    """Note what has changed in two enums, beside their values."""
    if was.reserved is None or now.reserved is None:
        return
    used = ((each.number, each.name, each.position) for each in now.values)
    _compare_reserved(changes, (was.name, was.position, now.position), was.reserved, now.reserved, used)
    first, first_now = _first(was), _first(now)
    if first is not None and first_now is not None and first.number != first_now.number:
        text = f"the first value {first.name} is {first_now.name} now"
        changes.add("enum-default-changed", was.name, text, first.position, first_now.position)


def _first(enum: Enum) -> EnumValue | None:
    return enum.values[0] if enum.values else None


def _compare_oneofs(changes: Changes, message: str, fields: Sequence[tuple[Field, Field]]) -> None:
    moves = [tuple(annotation(each.annotations, "oneof") for each in pair) for pair in fields]
    old_sizes, new_sizes, together = Counter(was for was, _ in moves), Counter(now for _, now in moves), Counter(moves)
    for (old, new), (was, now) in zip(fields, moves, strict=True):
        if was == now:
            continue
        moved = 1 if was is None or now is None else together[was, now]  # with it, from one oneof to another
        rules = []
        if now is not None and new_sizes[now] > moved:
            rules.append("oneof-joined")
        if was is not None and old_sizes[was] > moved:
            rules.append("oneof-left")
        text = f"field {old.id}: oneof {was or '(none)'} is {now or '(none)'} now"
        for rule in rules or ["oneof-changed"]:
            changes.add(rule, f"{message}.{old.name}", text, old.position, new.position)


def _compare_reserved(
    changes: Changes,
    place: tuple[str, Position, Position],
    was: Reserved,
    now: Reserved,
    used: Iterable[tuple[int, str, Position]],
) -> None:
    """Note what is reserved no longer; `used`: numbers, names and places of the new members."""
    subject, old, new = place
    old_names, new_names = {*was.names}, {*now.names}
    again: list[int] = []
    for number, name, position in used:
        if was.has(number):
            again.append(number)
            text = f"{number} was reserved, and is used now"
            changes.add("reserved-number-used", f"{subject}.{name}", text, old, position)
        if name in old_names:
            new_names.add(name)
            text = "the name was reserved, and is used now"
            changes.add("reserved-name-used", f"{subject}.{name}", text, old, position)
    kept = sorted([*now.numbers, *((each, each + 1) for each in again)])
    for start, end in _without(was.numbers, kept):
        changes.add("reservation-removed", subject, f"reserved {_range_text(start, end)} is removed", old, new)
    for name in was.names:
        if name not in new_names:
            changes.add("reservation-removed", subject, f'reserved "{name}" is removed', old, new)


def _without(ranges: Iterable[tuple[int, int]], others: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield what of half-open ranges lies in no other; both are in order."""
    at = 0
    for start, end in ranges:
        while at < len(others) and others[at][0] < end:
            if start < others[at][0]:
                yield start, others[at][0]
            start = max(start, others[at][1])
            if start >= end:
                break
            at += 1
        if start < end:
            yield start, end


def _range_text(start: int, end: int) -> str:
    return str(start) if end == start + 1 else f"{start} to {end - 1}"
