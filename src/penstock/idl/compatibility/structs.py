"""Structs of two versions, and lists of fields: those of structs, arguments of methods and their exceptions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.idl.compatibility import protobuf
from penstock.idl.compatibility.constants import are_equal
from penstock.idl.compatibility.rules import Changes
from penstock.idl.compatibility.text import article, value_text
from penstock.idl.compatibility.types import Types
from penstock.idl.compatibility.versions import Pair
from penstock.idl.model import Field, Position, Program, Requiredness, Reserved, Struct, StructKind
from penstock.idl.streams import is_set


class FieldList(NamedTuple):
    """A list of fields in both versions: of a struct, the arguments of a method, or its exceptions."""

    name: str
    old_program: Program
    new_program: Program
    old: Position
    new: Position
    is_union: bool = False
    is_arguments: bool = False
    noun: str = "field"
    reserved: Reserved | None = None  # of the new version

    def subject(self, field: Field) -> str:
        """Return what a change of a field is about: "Order.total"."""
        return f"{self.name}.{field.name}"


class Structs:
    """Comparison of structs, unions and exceptions, and of lists of fields."""

    def __init__(self, changes: Changes, types: Types) -> None:
        self._changes = changes
        self._types = types

    def compare(self, pair: Pair, was: Struct, now: Struct) -> None:
        kinds = {was.kind, now.kind}
        if len(kinds) == 2:
            rule = "exception-kind-changed"
            if StructKind.UNION in kinds:
                rule = "struct-became-union" if now.kind is StructKind.UNION else "union-became-struct"
            self._changes.add(rule, was.name, f"{was.kind} is {article(now.kind)} now", was.position, now.position)
        place = FieldList(
            was.name,
            pair.old_program,
            pair.new_program,
            was.position,
            now.position,
            is_union=was.kind is now.kind is StructKind.UNION,
            noun="variant" if was.kind is now.kind is StructKind.UNION else "field",
            reserved=now.reserved,
        )
        self.fields(place, was.fields, now.fields)
        protobuf.compare_messages(self._changes, was, now)
        old_keys, new_keys = marked_keys(was.fields), marked_keys(now.fields)
        if old_keys.keys() != new_keys.keys():
            before, after = (", ".join(each.name for each in keys.values()) for keys in (old_keys, new_keys))
            text = f"key {before or '(none)'} is {after or '(none)'} now"
            old_at = next((each.position for each in old_keys.values()), was.position)
            new_at = next((each.position for each in new_keys.values()), now.position)
            self._changes.add("key-changed", was.name, text, old_at, new_at)

    def fields(self, place: FieldList, old: Sequence[Field], new: Sequence[Field]) -> None:
        by_id = {each.id: each for each in new}
        by_name = {each.name: each for each in new}
        for was in old:
            same_name, now = by_name.get(was.name), by_id.get(was.id)
            if same_name is not None and same_name.id != was.id:
                text = f"{place.noun} id {was.id} is {same_name.id} now"
                self._changes.add("field-id-changed", place.subject(was), text, was.position, same_name.position)
            elif now is None:
                text = f"{place.noun} {was.id} is removed"
                self._changes.add(_rule_removed(place, was), place.subject(was), text, was.position, place.new)
            else:
                self.field(place, was, now)
        ids, names = {each.id for each in old}, {each.name for each in old}
        for now in new:
            if now.id not in ids and now.name not in names:
                self._field_added(place, now, ids)

    def _field_added(self, place: FieldList, now: Field, old_ids: set[int]) -> None:
        text = f"{place.noun} {now.id} is added"
        rules = []
        if place.is_union:
            rules.append("union-variant-added")
        elif now.requiredness is Requiredness.REQUIRED:
            rules.append("required-field-added")
        elif place.is_arguments:
            rules.append("argument-added")
        if old_ids and min(old_ids) < now.id < max(old_ids):
            rules.append("field-added-between")
        if not rules:
            rules.append("field-added")
        for rule in rules:
            self._changes.add(rule, place.subject(now), text, place.old, now.position)

    def field(self, place: FieldList, was: Field, now: Field) -> None:
        at = was.position, now.position
        subject = place.subject(was)
        noun = f"{place.noun} {was.id}"
        found = self._types.change(place.old_program, was.type, place.new_program, now.type)
        if found is not None and was.name != now.name:
            self._changes.add("field-id-reused", subject, f"{noun} is {now.name} now, {found.text}", *at)
            return
        if found is not None:
            self._changes.add(found.rule, subject, f"{noun}: {found.text}", *at)
        elif was.encoding != now.encoding:
            text = f"{noun}: encoding {was.encoding or '(plain)'} is {now.encoding or '(plain)'} now"
            self._changes.add("field-encoding-changed", subject, text, *at)
        if was.name != now.name:
            case = ", by case only" if was.name.lower() == now.name.lower() else ""
            self._changes.add("field-renamed", subject, f"{noun} is {now.name} now{case}", *at)
        if not place.is_union and was.requiredness is not now.requiredness:
            text = f"{noun}: {was.requiredness} is {now.requiredness} now"
            self._changes.add(_rule_requiredness(was, now), subject, text, *at)
        if not are_equal(place.old_program, was.default, place.new_program, now.default):
            text = f"{noun}: default {value_text(was.default)} is {value_text(now.default)} now"
            self._changes.add("field-default-changed", subject, text, *at)


def marked_keys(fields: Iterable[Field]) -> dict[int, Field]:
    return {each.id: each for each in fields if is_set(each.annotations, "key")}


def _rule_removed(place: FieldList, field: Field) -> str:
    if place.is_union:
        return "union-variant-removed"
    if place.reserved is not None and field.requiredness is not Requiredness.REQUIRED:
        return "optional-field-removed" if place.reserved.has(field.id) else "field-removed-unreserved"
    return {
        Requiredness.REQUIRED: "required-field-removed",
        Requiredness.DEFAULT: "field-removed",
        Requiredness.OPTIONAL: "optional-field-removed",
    }[field.requiredness]


def _rule_requiredness(old: Field, new: Field) -> str:
    if new.requiredness is Requiredness.REQUIRED:
        return "field-made-required"
    return "field-no-longer-required" if old.requiredness is Requiredness.REQUIRED else "field-optionality-changed"
