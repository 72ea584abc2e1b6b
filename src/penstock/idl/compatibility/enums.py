"""Enums of two versions: the numbers are on the wire, the names in programs."""

from __future__ import annotations

from penstock.idl.compatibility import protobuf
from penstock.idl.compatibility.rules import Changes
from penstock.idl.model import Enum, EnumValue


def compare_enums(changes: Changes, was: Enum, now: Enum) -> None:
    """Note which values are gone, new, or have another number or name."""
    by_name = {each.name: each for each in now.values}
    old_names = {each.name for each in was.values}
    by_number: dict[int, EnumValue] = {}
    for each in now.values:  # of names with one number rather a new name, which is a renamed one
        if each.number not in by_number or by_number[each.number].name in old_names:
            by_number[each.number] = each
    for value in was.values:
        subject = f"{was.name}.{value.name}"
        same_name, same_number = by_name.get(value.name), by_number.get(value.number)
        if same_name is not None:
            if same_name.number != value.number:
                text = f"number {value.number} is {same_name.number} now"
                changes.add("enum-value-renumbered", subject, text, value.position, same_name.position)
        elif same_number is not None:
            text = f"{value.number} is {same_number.name} now"
            changes.add("enum-value-renamed", subject, text, value.position, same_number.position)
        else:
            text = f"number {value.number} is removed"
            changes.add("enum-value-removed", subject, text, value.position, now.position)
    old_numbers = {each.number for each in was.values}
    for value in now.values:
        if value.number not in old_numbers and value.name not in old_names:
            text = f"number {value.number} is added"
            changes.add("enum-value-added", f"{now.name}.{value.name}", text, was.position, value.position)
    protobuf.compare_enums(changes, was, now)
