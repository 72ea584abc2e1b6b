"""Which rows of a column are on the subjects that somebody asks for.

Rules: what `base.subjects.matches` says of one subject holds here for a column. Arrow looks at each different subject
once: patterns become one regular expression, so that no subject is looked at in the interpreter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
        self._named = _expression([one for one in wild if not begins_with_wildcard(one)])
        self._open = _expression([one for one in wild if begins_with_wildcard(one)])

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
        if self._named is not None:
            found = pc.or_(found, pc.match_substring_regex(subjects, self._named))
        if self._open is not None:
            wanted = pc.match_substring_regex(subjects, self._open)
            for prefix in RESERVED_PREFIXES:
                wanted = pc.and_(wanted, pc.invert(pc.starts_with(subjects, prefix)))
            found = pc.or_(found, wanted)
        return found


def _expression(patterns: Sequence[str]) -> str | None:
    """For RE2: what all of a subject is to be."""
    if not patterns:
        return None
    return rf"\A(?:{'|'.join(map(_one, patterns))})\z"


def _one(pattern: str) -> str:
    return r"\.".join(_TOKENS.get(token) or re.escape(token) for token in pattern.split("."))
