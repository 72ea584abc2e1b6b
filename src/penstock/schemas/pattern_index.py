"""Finds the pattern that a subject matches, by its tokens.

Rules: the patterns do not overlap, so a subject matches one or none. Places of subjects that were found are kept, up to
SCHEMA_SUBJECTS_KEPT_MAX: most streams have few. A subject costs some microseconds of interpreted code, and a known one
a tenth of that, whatever the number of patterns. Regular expressions cost less for many new subjects and few patterns.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.base import limits

_ANY, _REST = b"*", b">"


class _Tokens(dict[bytes, "_Tokens"]):
    """The tokens that may follow some tokens. `place`: of the pattern that ends here; `rest`: with ">"."""

    place: int | None = None
    rest: int | None = None


class PatternIndex:
    """Patterns by their tokens, and the subjects that were found."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._root = _Tokens()
        self._known: dict[bytes, int | None] = {}
        for place, pattern in enumerate(patterns):
            tokens = pattern.encode().split(b".")
            has_rest = tokens[-1] == _REST
            node = self._root
            for token in tokens[:-1] if has_rest else tokens:
                node = node.setdefault(token, _Tokens())
            if has_rest:
                node.rest = place
            else:
                node.place = place

    def places(self, subjects: Sequence[bytes]) -> list[int | None]:
        """Return the place of the pattern that each subject matches; None: none does."""
        known = self._known
        if len(subjects) > limits.SCHEMA_SUBJECTS_KEPT_MAX:
            return [_find(self._root, subject.split(b"."), 0) for subject in subjects]
        if len(known) + len(subjects) > limits.SCHEMA_SUBJECTS_KEPT_MAX:
            known.clear()
        for subject in subjects:
            if subject not in known:
                known[subject] = _find(self._root, subject.split(b"."), 0)
        return [known[subject] for subject in subjects]


def _find(node: _Tokens, tokens: Sequence[bytes], at: int) -> int | None:
    if at == len(tokens):
        return node.place
    token = tokens[at]
    for key in (token, _ANY) if token else ():
        following = node.get(key)
        if following is not None and (place := _find(following, tokens, at + 1)) is not None:
            return place
    return node.rest if token or at + 1 < len(tokens) else None
