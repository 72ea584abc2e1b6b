"""Which messages of what was read are wanted: by key, subject and headers.

Rules: a whole batch is looked at at once, by Arrow; no header block is parsed row by row. What is wanted is what
`Message` says: its key, its subject, and the values of its headers, without the spaces around them. The broker sends
all; what is not wanted is dropped here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.base.subjects import matches, subject_mistake
from penstock.client.values import check_header_name, check_header_value

if TYPE_CHECKING:
    import pyarrow as pa


class Filter:
    """Messages with this `key`, on subjects that match `subject`, with these `headers`: all of it, where given.

    Of `headers` a value of None means any value; of a header that is there several times one is enough. ValueError for
    a subject or a header that no message can have.
    """

    __slots__ = ("_headers", "_key", "_subject")

    def __init__(
        self,
        *,
        key: bytes | str | None = None,
        subject: str | None = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> None:
        if subject is not None and (mistake := subject_mistake(subject, wildcards=True)) is not None:
            raise ValueError(mistake)
        self._key = key.encode() if isinstance(key, str) else key
        self._subject = subject
        self._headers = [_pattern(name, value) for name, value in (headers or {}).items()]

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those rows of a batch with the log's columns; perhaps none."""
        import pyarrow as pa
        import pyarrow.compute as pc

        masks = []
        if self._key is not None:
            masks.append(pc.equal(batch.column("key"), pa.scalar(self._key, pa.binary())))
        if self._subject is not None:
            # Each different subject is matched once.
            known = [
                one for one in pc.unique(batch.column("subject")).to_pylist() if one and matches(self._subject, one)
            ]
            masks.append(pc.is_in(batch.column("subject"), pa.array(known, pa.string())))
        masks += [pc.match_substring_regex(batch.column("headers"), pattern) for pattern in self._headers]
        return batch.filter(functools.reduce(pc.and_, masks)) if masks else batch


def _pattern(name: str, value: str | None) -> bytes:
    """A line of a header block, which is no text but bytes: for RE2, which takes them so."""
    check_header_name(name)
    begin = b"\r\n" + re.escape(name.encode()) + b":"
    if value is None:
        return begin
    check_header_value(name, value)
    return begin + b"[ \t]*" + re.escape(value.encode()) + rb"[ \t]*(?:\r\n|\z)"
