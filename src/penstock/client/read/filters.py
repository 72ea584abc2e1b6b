"""Filter messages by key, subject and headers.

Rules: Arrow filters a whole batch at once; header blocks are not parsed row by row. The filter sees the values of
`Message`: key, subject, and header values without surrounding spaces. Other rows are dropped here; the broker also
leaves out rows on other subjects if that is cheaper than sending them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.subjects import subject_mistake
from penstock.batch.subject_patterns import SubjectPatterns
from penstock.client.publish_format import a_kind
from penstock.client.values import check_header_name, check_header_value

if TYPE_CHECKING:
    import pyarrow as pa


class Filter:
    """Matches messages that have this `key`, a subject that matches `subject`, and these `headers`, as far as given.

    One matching pattern of several in `subject` is enough. In `headers` the value None means any value; one matching
    value of a repeated header is enough. ValueError: a subject or a header that no message can have.
    """

    __slots__ = ("_headers", "_key", "_patterns", "_subjects")

    def __init__(
        self,
        *,
        key: bytes | str | None = None,
        subject: str | Iterable[str] | None = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> None:
        if not isinstance(subject, str | Iterable | None):
            raise TypeError(f"the subject is {a_kind(subject)}; give a pattern, or several in a list")
        subjects = (subject,) if isinstance(subject, str) else None if subject is None else tuple(subject)
        for one in subjects or ():
            if (mistake := subject_mistake(one, wildcards=True)) is not None:
                raise ValueError(mistake)
        if subjects == ():
            raise ValueError("the list of subjects is empty; leave it out to match any subject")
        if not isinstance(key, bytes | str | None):
            raise TypeError(f"the key is {a_kind(key)}; give bytes or str")
        if not isinstance(headers, Mapping | None):
            raise TypeError(f"headers is {a_kind(headers)}; give a dict of str, with None for any value")
        self._key = key.encode() if isinstance(key, str) else key
        self._subjects = subjects
        self._patterns = None if subjects is None else SubjectPatterns(subjects)
        self._headers = [_pattern(name, value) for name, value in (headers or {}).items()]

    @property
    def subjects(self) -> tuple[str, ...] | None:
        """Subject patterns to send to the broker, which may leave out other rows; None: it cannot filter."""
        return None if self._subjects is None or len(self._subjects) > limits.FETCH_SUBJECTS_MAX else self._subjects

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that `rows` needs besides the subject."""
        return (*(("key",) if self._key is not None else ()), *(("headers",) if self._headers else ()))

    def rows(self, batch: pa.RecordBatch, *, is_on_subject: bool = False) -> pa.RecordBatch:
        """Return the matching rows of a batch, possibly none. `is_on_subject`: the broker has filtered by subject."""
        import pyarrow as pa
        import pyarrow.compute as pc

        masks = []
        if self._key is not None:
            masks.append(pc.equal(batch.column("key"), pa.scalar(self._key, pa.binary())))
        if self._patterns is not None and not is_on_subject:
            masks.append(self._patterns.mask(batch.column("subject")))
        masks += [pc.match_substring_regex(batch.column("headers"), pattern) for pattern in self._headers]
        return batch.filter(functools.reduce(pc.and_, masks)) if masks else batch


def _pattern(name: str, value: str | None) -> bytes:
    """Return an RE2 pattern for one header line, as bytes, since header blocks are not text."""
    check_header_name(name)
    begin = b"\r\n" + re.escape(name.encode()) + b":"
    if value is None:
        return begin
    check_header_value(name, value)
    return begin + b"[ \t]*" + re.escape(value.encode()) + rb"[ \t]*(?:\r\n|\z)"
