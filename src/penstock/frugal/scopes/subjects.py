"""Subjects of a scope: what its operations publish on, and the patterns that subscribers use.

    frugal.orders.{region}.Orders.OrderPlaced
    └─────┘ └────────────┘ └────┘ └─────────┘
    Frugal's  the prefix    scope  operation

Rules: a variable stands for one token of the prefix. As in Frugal, its value may have several, "eu.north". A publisher
gives plain text; a subscriber may give `*` for one token. No client gives `>`: it would leave the scope. The subject
tells what a variable was, not a header: NATS checks permissions on subjects, and any client can write a header.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.base.subjects import subject_mistake
from penstock.frugal.contracts import ScopeType

PREFIX: Final = "frugal"
"""The first token of every subject of Frugal's scopes."""
ANY: Final = "*"
"""A subscriber's value for a variable that may be any one token."""

_SUBJECTS_KEPT: Final = 1_024
_VARIABLE = re.compile(r"\{(\w+)\}")


class ScopeSubjects:
    """The subjects of one scope. ValueError: the prefix makes no subject, or has other variables than the scope."""

    def __init__(self, scope: ScopeType) -> None:
        self._scope = scope.name
        self._variables = scope.variables
        prefix = scope.prefix.split(".") if scope.prefix else []
        tokens = [PREFIX, *prefix, scope.name]
        named = [found[1] for token in tokens if (found := _VARIABLE.fullmatch(token)) is not None]
        if tuple(named) != scope.variables:
            raise ValueError(
                f"scope {scope.name}: the prefix {scope.prefix!r} has other variables than {scope.variables}"
            )
        plain = ".".join("x" if _VARIABLE.fullmatch(token) else token for token in tokens)
        if (mistake := subject_mistake(plain)) is not None or "{" in plain or "}" in plain:
            raise ValueError(f"scope {scope.name}: the prefix {scope.prefix!r} makes no subject: {mistake or 'braces'}")
        # "a.%s.b." with the operation behind it; `%` is legal in a token.
        self._form = ".".join("%s" if _VARIABLE.fullmatch(one) else one.replace("%", "%%") for one in tokens) + "."
        self._slots = [number for number, token in enumerate(tokens) if _VARIABLE.fullmatch(token)]
        self._tokens = len(tokens) + 1  # with the operation
        self._published: dict[tuple[str, ...], str] = {}  # subjects that were checked, by operation and values

    def published(self, operation: str, values: Sequence[str]) -> str:
        """Return the subject of a message. ValueError: a value is empty, or is no plain token or tokens."""
        place = (operation, *values)
        if (known := self._published.get(place)) is not None:
            return known
        subject = self._filled(operation, values, wildcards=False)
        if len(self._published) >= _SUBJECTS_KEPT:
            self._published.clear()
        self._published[place] = subject
        return subject

    def subscribed(self, operation: str, values: Sequence[str]) -> str:
        """Return the pattern of a subscription; `*` stands for one token. ValueError: a value that makes no pattern."""
        return self._filled(operation, values, wildcards=True)

    def everything(self, operation: str = ANY) -> str:
        """Return the pattern of an operation, or of all, with any one token for each variable."""
        return self._form % ((ANY,) * len(self._slots)) + operation

    def variables_of(self, subject: str) -> Mapping[str, str]:
        """Return the variables that a subject of this scope has; empty if they cannot be told apart.

        They can be if each has one token, or if there is only one variable.
        """
        tokens = subject.split(".")
        more = len(tokens) - self._tokens
        if more and (more < 0 or len(self._slots) != 1):
            return {}
        return {
            name: ".".join(tokens[slot : slot + 1 + more])
            for name, slot in zip(self._variables, self._slots, strict=True)
        }

    def _filled(self, operation: str, values: Sequence[str], *, wildcards: bool) -> str:
        if len(values) != len(self._slots):
            wanted = ", ".join(self._variables) or "no variables"
            raise ValueError(f"scope {self._scope} has {wanted}, but {len(values)} values were given")
        for name, value in zip(self._variables, values, strict=True):
            if not isinstance(value, str):
                raise TypeError(f"the variable {name} of scope {self._scope} is {value!r}; give text")
            mistake = subject_mistake(value, wildcards=wildcards)
            if mistake is None and wildcards and value.rpartition(".")[2] == ">":
                mistake = "'>' would leave the scope; use '*' for one token"
            if mistake is not None:
                raise ValueError(f"the variable {name} of scope {self._scope} makes no subject: {mistake}")
        subject = self._form % tuple(values) + operation
        if (mistake := subject_mistake(subject, wildcards=wildcards)) is not None:  # it may be too long as a whole
            raise ValueError(f"the variables of scope {self._scope} make no subject: {mistake}")
        return subject
