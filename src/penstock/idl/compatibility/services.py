"""Services of two versions: methods by their names on the wire, with those that a service has from its bases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from penstock.idl.compatibility.rules import Changes
from penstock.idl.compatibility.structs import FieldList, Structs
from penstock.idl.compatibility.text import like, lowered, type_text
from penstock.idl.compatibility.types import Types
from penstock.idl.compatibility.versions import Pair, Versions
from penstock.idl.model import Field, Found, Method, Program, Requiredness, Service
from penstock.idl.streams import is_set

LOST_SHOWN_MAX = 5
"""Methods that are named of those that a service has lost with its base."""


class _Owner(NamedTuple):
    """A service that declares methods, and its program."""

    program: Program
    service: Service


class Services:
    """Comparison of services."""

    def __init__(self, changes: Changes, versions: Versions, types: Types, structs: Structs) -> None:
        self._changes = changes
        self._versions = versions
        self._types = types
        self._structs = structs
        self._methods: dict[int, dict[str, Method]] = {}  # by the id() of their service, which the programs keep
        self._lowered_methods: dict[int, dict[str, str]] = {}
        self._compared: set[tuple[int, int]] = set()  # id() of methods: services that lose a base share its methods

    def compare(self, pair: Pair, was: Service, now: Service) -> None:
        old_base = pair.old_program.find(was.extends.name) if was.extends else None
        new_base = pair.new_program.find(now.extends.name) if now.extends else None
        has_same_base = old_base is not None and new_base is not None and self._versions.are_one(old_base, new_base)
        if was.extends and not has_same_base:
            text = f"extends {was.extends.name} is {now.extends.name if now.extends else '(none)'} now"
            self._changes.add("service-extends-changed", was.name, text, was.position, now.position)
        olds = _chain(pair.old_program, was)
        news = _chain(pair.new_program, now)
        lost: list[str] = []
        for owner in olds[: self._shared(olds, news, has_same_base=has_same_base)]:
            for name, method in self._own(owner.service).items():
                if (other := self._find(news, name)) is not None:
                    self._method(f"{owner.service.name}.{method.name}", owner.program, method, *other)
                elif owner.service is was:
                    likes = (like(method.name, self._lowered(each.service)) for each in news)
                    text = "method is removed" + next(filter(None, likes), "")
                    self._changes.add(
                        "method-removed", f"{was.name}.{method.name}", text, method.position, now.position
                    )
                else:
                    lost.append(method.name)
        if lost:
            more = f" and {len(lost) - LOST_SHOWN_MAX} more" if len(lost) > LOST_SHOWN_MAX else ""
            text = f"inherited methods are removed: {', '.join(lost[:LOST_SHOWN_MAX])}{more}"
            self._changes.add("method-removed", was.name, text, was.position, now.position)
        for name, method in self._own(now).items():
            if self._find(olds, name) is None:
                subject = f"{now.name}.{method.name}"
                self._changes.add("method-added", subject, "method is added", was.position, method.position)

    def _shared(self, olds: Sequence[_Owner], news: Sequence[_Owner], *, has_same_base: bool) -> int:
        """Return how many services of the old chain are to be compared: the others are bases of the new one, too."""
        bases = {id(each.service) for each in news[1:]}
        for index, owner in enumerate(olds[1:], 1):
            there = self._versions.version_of(Found(owner.program, owner.service))
            if (index == 1 and has_same_base) or id(there) in bases:
                return index
        return len(olds)

    def _own(self, service: Service) -> dict[str, Method]:
        """Return the methods that a service itself declares, by their names on the wire."""
        if id(service) not in self._methods:
            self._methods[id(service)] = {wire_name(each): each for each in service.methods}
        return self._methods[id(service)]

    def _lowered(self, service: Service) -> dict[str, str]:
        if id(service) not in self._lowered_methods:
            self._lowered_methods[id(service)] = lowered(each.name for each in service.methods)
        return self._lowered_methods[id(service)]

    def _find(self, chain: Sequence[_Owner], name: str) -> tuple[Program, Method] | None:
        """Return the method of a name on the wire, and the program that it stands in."""
        for owner in chain:
            if (method := self._own(owner.service).get(name)) is not None:
                return owner.program, method
        return None

    def _method(self, subject: str, old_program: Program, was: Method, new_program: Program, now: Method) -> None:
        at = was.position, now.position
        if (id(was), id(now)) in self._compared:
            return
        self._compared.add((id(was), id(now)))
        if was.name != now.name:
            self._changes.add("method-renamed", subject, f"method is {now.name} now", *at)
        if was.is_oneway is not now.is_oneway:
            before, after = ("oneway" if each.is_oneway else "answered" for each in (was, now))
            self._changes.add("method-oneway-changed", subject, f"{before} is {after} now", *at)
        elif was.streaming is not now.streaming:
            text = f"streaming {was.streaming} is {now.streaming} now"
            self._changes.add("method-streaming-changed", subject, text, *at)
        elif was.returns is None and now.returns is not None:
            self._changes.add("method-returns-a-value-now", subject, f"void is {type_text(now.returns)} now", *at)
        elif was.returns is not None and now.returns is None:
            self._changes.add("method-returns-nothing-now", subject, f"{type_text(was.returns)} is void now", *at)
        elif was.returns is not None and now.returns is not None:
            found = self._types.change(old_program, was.returns, new_program, now.returns)
            if found is not None:
                self._changes.add(found.rule, subject, f"result: {found.text}", *at)
        if is_set(was.annotations, "idempotent") and not is_set(now.annotations, "idempotent"):
            self._changes.add("method-idempotence-removed", subject, "the annotation idempotent is removed", *at)
        place = FieldList(subject, old_program, new_program, *at, is_arguments=True, noun="argument")
        self._structs.fields(place, was.arguments, now.arguments)
        if not was.is_oneway and not now.is_oneway:
            self._exceptions(place._replace(is_arguments=False, noun="exception"), was, now)

    def _exceptions(self, place: FieldList, was: Method, now: Method) -> None:
        """Compare what a method throws, whose fields are all optional and have no defaults."""
        is_void = now.returns is None
        by_id = {each.id: each for each in now.exceptions}
        by_name = {each.name: each for each in now.exceptions}
        for old in was.exceptions:
            if (moved := by_name.get(old.name)) is not None and moved.id != old.id:
                text = f"exception id {old.id} is {moved.id} now"
                self._changes.add("field-id-changed", place.subject(old), text, old.position, moved.position)
            elif (new := by_id.get(old.id)) is not None:
                self._structs.field(place, _optional(old), _optional(new))
            else:
                rule = "exception-removed-from-void" if is_void else "exception-removed"
                self._changes.add(rule, place.subject(old), f"exception {old.id} is removed", old.position, place.new)
        ids, names = {each.id for each in was.exceptions}, {each.name for each in was.exceptions}
        for new in now.exceptions:
            if new.id not in ids and new.name not in names:
                rule = "exception-added-to-void" if is_void else "exception-added"
                self._changes.add(rule, place.subject(new), f"exception {new.id} is added", place.old, new.position)


def wire_name(method: Method) -> str:
    """Return the name of a method in messages: its first letter is a small one."""
    return method.name[:1].lower() + method.name[1:]


def _chain(program: Program, service: Service) -> list[_Owner]:
    """Return a service, the one that it extends, and so on; a linked program has no cycle of them."""
    owners = [_Owner(program, service)]
    while service.extends is not None:
        found = program.find(service.extends.name)
        assert found is not None
        assert isinstance(found.definition, Service)
        program, service = found.program, found.definition
        owners.append(_Owner(program, service))
    return owners


def _optional(field: Field) -> Field:
    return replace(field, requiredness=Requiredness.OPTIONAL)
