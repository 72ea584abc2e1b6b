"""Which rows of a column are on the subjects that somebody asks for.

Rules: what `base.subjects.matches` says of one subject holds here for a column. Arrow looks at each different subject:
patterns become regular expressions, so that no subject is looked at in the interpreter.

Theory: RE2 goes through a subject once as long as the states of its automaton are few. Of one pattern they are, since
`[^.]+` ends at the next dot, whatever follows. Of several in one expression there may be as many as there are sets of
patterns, and RE2 gives up and is a hundred times slower: so each pattern has an expression of its own.
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
    """Plain subjects, and patterns with `*` and `>`: legal ones, one at least."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._plain = [one for one in patterns if not is_wildcard(one)]
        wild = [one for one in patterns if is_wildcard(one)]
        self._named = [_expression(one) for one in wild if not begins_with_wildcard(one)]
        self._open = [_expression(one) for one in wild if begins_with_wildcard(one)]

    def mask(self, subjects: pa.Array) -> pa.BooleanArray:
        """For each row whether its subject matches one of them; false where it has none."""
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
    """For RE2: what all of a subject is to be."""
    tokens = [_TOKENS.get(token) or re.escape(token) for token in pattern.split(".")]
    return rf"\A{'[.]'.join(tokens)}\z"
