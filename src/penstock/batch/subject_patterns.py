"""Finds the rows of a column whose subjects match given patterns.

Rules: equivalent to `base.subjects.matches` for each subject. Arrow tests each distinct subject against regular
expressions, so that no subject is handled in the interpreter.

Theory: RE2 reads a subject once as long as its automaton has few states. One pattern has few, since `[^.]+` ends at the
next dot. Several patterns in one expression may need a state for each set of patterns; then RE2 falls back to an
algorithm a hundred times slower. So each pattern has its own expression.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from penstock.base.subjects import RESERVED_PREFIXES, begins_with_wildcard, is_wildcard

if TYPE_CHECKING:
    import pyarrow as pa

_TOKENS = {"*": r"[^.]+", ">": r"(?s:.+)"}


class SubjectPatterns:
    """Plain subjects, and patterns with `*` and `>`: all legal, at least one."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._plain = [one for one in patterns if not is_wildcard(one)]
        wild = [one for one in patterns if is_wildcard(one)]
        self._named = [_expression(one) for one in wild if not begins_with_wildcard(one)]
        self._open = [_expression(one) for one in wild if begins_with_wildcard(one)]

    def mask(self, subjects: pa.Array) -> pa.BooleanArray:
        """Return, per row, True if its subject matches one of the patterns; False for null."""
        import pyarrow.compute as pc

        encoded = subjects.dictionary_encode()
        found = self._matching(encoded.dictionary)
        return pc.fill_null(found.take(encoded.indices), fill_value=False)

    def _matching(self, subjects: pa.Array) -> pa.BooleanArray:
        import pyarrow as pa
        import pyarrow.compute as pc

        found = pc.is_in(subjects, pa.array(self._plain, pa.utf8()))
        for one in self._named:
            found = pc.or_(found, pc.match_substring_regex(subjects, one))
        if self._open:
            wanted = reduce(pc.or_, [pc.match_substring_regex(subjects, one) for one in self._open])
            for prefix in RESERVED_PREFIXES:
                wanted = pc.and_(wanted, pc.invert(pc.starts_with(subjects, prefix)))
            found = pc.or_(found, wanted)
        return found


def _expression(pattern: str) -> str:
    """Return an RE2 expression that matches a whole subject."""
    tokens = [_TOKENS.get(token) or re.escape(token) for token in pattern.split(".")]
    return rf"\A{'[.]'.join(tokens)}\z"
