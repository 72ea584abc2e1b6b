"""Which subjects the consumers of a stream with interest retention want.

Rules: a filter is a subject or a pattern; `>` wants all, also what no pattern with a wildcard first matches. Without
filters nothing is wanted. An instance never changes, so a disk thread may use it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.batch.subject_patterns import SubjectPatterns

if TYPE_CHECKING:
    import pyarrow as pa


class WantedSubjects:
    """The subjects that consumers of a stream with interest retention want; `filters`: their patterns."""

    __slots__ = ("_patterns", "depends", "is_all")

    def __init__(self, filters: Collection[str]) -> None:
        self.is_all = ">" in filters
        self.depends = bool(filters) and not self.is_all  # whether a row is wanted
        self._patterns = SubjectPatterns(sorted(filters)) if self.depends else None

    def mask(self, subjects: pa.Array) -> pa.Array:
        """Return for each subject whether it is wanted."""
        import pyarrow as pa

        if self._patterns is None:
            return pa.array([self.is_all] * len(subjects), pa.bool_())
        return self._patterns.mask(subjects)
