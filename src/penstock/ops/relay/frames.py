"""Converts a batch of the log to frames for NATS: one HPUB frame per row, built by Arrow's own loops.

Rules: a header block is kept byte for byte, with our lines added at its end. Lines of an earlier relay are removed, and
so are a publisher's expectations of the first stream (`Nats-Expected-…`), which another stream would reject, and its
atomic batch (`Nats-Batch-…`), of which another stream would wait for the rest, as nats-server's mirrors do. An invalid
block (rows appended over the socket may have any bytes) is left out, and counted. Each distinct subject is mapped once.

    HPUB <subject> [<reply subject>] <bytes of the headers> <bytes of all>␍␊
    NATS/1.0␍␊ <the message's own headers> Penstock-Stream: …␍␊ … ␍␊ <value> ␍␊
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.base.subjects import matches, overlap, subject_mistake

if TYPE_CHECKING:
    import pyarrow as pa

_DROPPED = rb"\r\n(?:Penstock-(?:Stream|Partition|Offset|Timestamp):|Nats-Expected-|Nats-Batch-)[^\r\n]*"
_PLACE = re.compile(r"\{([^{}]*)\}")
_SUBJECTS_KNOWN_MAX = 65_536
_TEXT_KEY = rb"^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$"


class SubjectMapping:
    """Maps a message's subject to the target's, by a template: `copies.{subject}`, `eu.{2}.{1}`, or a fixed subject."""

    def __init__(self, template: str) -> None:
        """Parse the template. Raise ValueError if it is invalid."""
        self.template = template
        for name in _PLACE.findall(template):
            if name != "subject" and not (name.isdecimal() and int(name) > 0):
                raise ValueError(f"{{{name}}} is unknown; there are {{subject}}, and {{1}}, {{2}}, … for tokens")
        plain = _PLACE.sub("x", template)
        if "{" in plain or "}" in plain:
            raise ValueError(f"{template!r} has an unmatched brace")
        if (mistake := subject_mistake(plain)) is not None:
            raise ValueError(f"--to: {mistake.replace(repr(plain), repr(template))}")
        self._known: dict[str, str] = {}
        self._own: tuple[str, ...] = ()

    def refuse(self, own: tuple[str, ...]) -> None:
        """Reject targets on the source stream's `own` subjects. Raise ValueError if the template always gives one."""
        self._own = own
        for pattern in own:
            target, is_exact = self.pattern(pattern)
            if any(is_exact and overlap(target, one) for one in own):
                raise ValueError(_loop(target))

    @property
    def is_fixed(self) -> bool:
        """True if all messages go to one subject."""
        return "{" not in self.template

    def pattern(self, source: str) -> tuple[str, bool]:
        """Return (a pattern of all targets of messages on `source`, which may have wildcards; True if it is exact)."""
        tokens = source.split(".")

        def stands_for(found: re.Match[str]) -> str:
            if found[1] == "subject":
                return source
            number = int(found[1]) - 1
            return tokens[number] if number < len(tokens) and tokens[number] != ">" else "*"

        made, is_exact = _PLACE.sub(stands_for, self.template).split("."), True
        for place, token in enumerate(made):
            if token not in ("*", ">") and ("*" in token or ">" in token):
                made[place], is_exact = "*", False  # a wildcard must be a whole token
        if ">" in made[:-1]:
            made, is_exact = made[: made.index(">") + 1], False
        return ".".join(made), is_exact

    def of(self, subject: str) -> str:
        """Return the target of a message on this subject. Raise ValueError if it has too few tokens, or for a loop."""
        found = self._known.get(subject)
        if found is None:
            if len(self._known) >= _SUBJECTS_KNOWN_MAX:
                self._known.clear()
            found = self._known[subject] = self._mapped(subject)
        return found

    def _mapped(self, subject: str) -> str:
        tokens = subject.split(".")

        def stands_for(found: re.Match[str]) -> str:
            if found[1] == "subject":
                return subject
            number = int(found[1])
            if number > len(tokens):
                raise ValueError(f"a message is on {subject!r}, which has no token {number} for {self.template!r}")
            return tokens[number - 1]

        target = _PLACE.sub(stands_for, self.template)
        if any(matches(one, target) for one in self._own):
            raise ValueError(_loop(target))
        return target


def _loop(target: str) -> str:
    return f"the stream itself stores messages on {target}: this would be an endless loop"


class RelayFrames(NamedTuple):
    """Frames of a batch. `size_max`: bytes of headers and value of the largest row, which nats-server limits."""

    data: memoryview
    size_max: int
    largest_offset: int  # offset of the largest row
    headers_dropped: int


def header_pattern(names: Sequence[str]) -> bytes | None:
    """Return a regex for lines with these header names; a final `*` matches any suffix. Raise ValueError."""
    if not names:
        return None
    for name in names:
        if re.fullmatch(r"[!-)+-9;-~]+\*?", name) is None:
            raise ValueError(f"--without: {name!r} is not a header name")
    found = "|".join(re.escape(name.removesuffix("*")) + ("[^:\r\n]*" if name.endswith("*") else "") for name in names)
    return rf"\r\n(?:{found}):[^\r\n]*".encode()


def frames_of(
    batch: pa.RecordBatch,
    mapping: SubjectMapping,
    stream: str,
    partition: int,
    *,
    reply: str = "",
    without: bytes | None = None,
) -> RelayFrames:
    """Return the frames of all rows, in order. Raise ValueError like `SubjectMapping.of`.

    `reply` is the prefix of the reply subjects, before the offset; empty for none. `without` is a regex of header lines
    to leave out.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    binary = pa.binary()

    def text(numbers: pa.Array) -> pa.Array:
        return numbers.cast(pa.string()).cast(binary)

    def joined(*parts: object) -> pa.Array:
        return pc.binary_join_element_wise(*parts, pa.scalar(b"", binary))

    said, dropped = _headers(batch, without)
    moments = pc.replace_substring(batch.column("timestamp").cast(pa.string()), " ", "T").cast(binary)
    head = joined(
        said,
        pa.scalar(
            f"Penstock-Stream: {stream}\r\nPenstock-Partition: {partition}\r\nPenstock-Offset: ".encode(), binary
        ),
        text(batch.column("offset")),
        pa.scalar(b"\r\nPenstock-Timestamp: ", binary),
        moments,
        pa.scalar(b"\r\n\r\n", binary),
    )
    values = pc.fill_null(batch.column("value"), b"")
    head_sizes = pc.binary_length(head)
    sizes = pc.add(head_sizes, pc.binary_length(values))
    lines = (_subjects(batch.column("subject"), mapping), text(head_sizes), text(sizes))
    space, end = pa.scalar(b" ", binary), pa.scalar(b"\r\n", binary)
    replies = (pa.scalar(f"{reply}-".encode(), binary), text(batch.column("offset")), space) if reply else ()
    made = joined(
        pa.scalar(b"HPUB ", binary), lines[0], space, *replies, lines[1], space, lines[2], end, head, values, end
    )
    size_max = pc.max(sizes).as_py()
    largest = batch.column("offset")[pc.index(sizes, size_max).as_py()].as_py()
    return RelayFrames(memoryview(_bytes_of(made)), size_max, largest, dropped)


def _bytes_of(column: pa.Array) -> pa.Buffer:
    _, ends, data = column.buffers()
    bounds = memoryview(ends).cast("i")[column.offset : column.offset + len(column) + 1]
    return data.slice(bounds[0], bounds[-1] - bounds[0])


def _subjects(column: pa.Array, mapping: SubjectMapping) -> pa.Array:
    import pyarrow as pa

    if mapping.is_fixed:
        return pa.scalar(mapping.template.encode(), pa.binary())
    coded = column.dictionary_encode()
    mapped = pa.array([mapping.of(subject).encode() for subject in coded.dictionary.to_pylist()], pa.binary())
    return mapped.take(coded.indices)


def _headers(batch: pa.RecordBatch, without: bytes | None) -> tuple[pa.Array, int]:
    """Return each row's header block without its final line end, with lines added for key and tombstone if missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column, begin = batch.column("headers"), pa.scalar(b"NATS/1.0\r\n", pa.binary())
    if column.null_count == len(column):
        said, dropped = pa.repeat(begin, len(column)), 0
    else:
        is_block = pc.and_(pc.starts_with(column, b"NATS/1.0\r\n"), pc.ends_with(column, b"\r\n\r\n"))
        dropped = pc.sum(pc.invert(is_block)).as_py() or 0  # null headers do not count
        is_block = pc.fill_null(is_block, False)
        said = pc.if_else(is_block, pc.binary_slice(column, 0, -2), begin)
        for pattern in (_DROPPED, without):
            if pattern is not None and pc.any(pc.match_substring_regex(said, pattern)).as_py():
                said = pc.replace_substring_regex(said, pattern, b"")
    return _with_tombstones(_with_keys(said, batch.column("key")), batch.column("value")), dropped


def _with_keys(said: pa.Array, keys: pa.Array) -> pa.Array:
    """Add a header line for keys without one: rows appended over the socket have no such header."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if keys.null_count == len(keys):
        return said
    missing = pc.and_(pc.is_valid(keys), pc.invert(pc.match_substring_regex(said, rb"\r\nPenstock-Key(?:-Base64)?:")))
    if not pc.any(missing).as_py():
        return said
    is_text = pc.fill_null(pc.match_substring_regex(keys, _TEXT_KEY), False)
    none = pa.scalar(b"", pa.binary())
    lines = pc.binary_join_element_wise(b"Penstock-Key: ", pc.fill_null(keys, b""), b"\r\n", none)
    if pc.any(pc.and_(missing, pc.invert(is_text))).as_py():
        coded = [None if key is None else base64.b64encode(key) for key in keys.to_pylist()]
        column = pc.fill_null(pa.array(coded, pa.binary()), b"")
        lines = pc.if_else(is_text, lines, pc.binary_join_element_wise(b"Penstock-Key-Base64: ", column, b"\r\n", none))
    return pc.binary_join_element_wise(said, pc.if_else(missing, lines, none), none)


def _with_tombstones(said: pa.Array, values: pa.Array) -> pa.Array:
    """Add a header line for tombstones without one: rows appended over the socket have no such header."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not values.null_count:
        return said
    missing = pc.and_(pc.is_null(values), pc.invert(pc.match_substring(said, b"\r\nPenstock-Tombstone:")))
    none = pa.scalar(b"", pa.binary())
    line = pa.scalar(b"Penstock-Tombstone: 1\r\n", pa.binary())
    return pc.binary_join_element_wise(said, pc.if_else(missing, line, none), none)
