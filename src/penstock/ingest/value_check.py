"""Check of messages' values against the registered schemas of their subjects, before they are stored.

Rules: a value fits if the stream's schemas decode it, as a reader would (`schemas.row_decoder`). A subject without a
schema is not checked, nor is a tombstone. All values of a group are checked at once, by compiled code. A mark is a byte
for each message: 0 if it fits, else a number that stands for the reason.

A message that names a version which is not known here may name one that was registered a moment ago. It is refused only
by a list of versions that was asked for after the message arrived; until there is one, it waits:

| list of versions, the message being there  | the message                                                          |
|--------------------------------------------|----------------------------------------------------------------------|
| asked for after it arrived                 | is refused: register the version first                               |
| older                                      | waits SCHEMA_LOOKUP_WAIT_MS at most for a newer one, which is asked  |
|                                            | for at once, or SCHEMA_LOOKUP_INTERVAL_MS after the last one         |
| older, and the leader of `__schemas` does  | is refused as temporarily unavailable                                |
| not answer                                 |                                                                      |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.batch import codec
from penstock.hot.message_group import MessageGroup

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.schemas.kinds import PlannedSchema, Schema
    from penstock.schemas.registry import StreamSchemas


SCHEMAS_UNKNOWN = "the stream's schemas, by which values are checked, are not known here yet"
"""Error of messages that cannot wait for them."""
VERSION_UNDECIDED = (
    "the version that the message's header Penstock-Schema names is not known here, and the leader of the schemas "
    "cannot be asked now"
)
UNDECIDED = 255
"""The mark of a message that names a version of which it cannot be found out whether it is registered."""

_LOOKUP_WAIT_US = limits.SCHEMA_LOOKUP_WAIT_MS * 1_000


class ValueCheck:
    """The check of one stream's values by the versions that it was made of."""

    def __init__(self, schemas: StreamSchemas, before: ValueCheck | None = None) -> None:
        """Parse and plan all schemas, which may take long. SchemaError: the stream has none, or a newest has mistakes.

        `before`: a check whose plans are used again.
        """
        from penstock.schemas.decoding import Reason  # all of these import pyarrow
        from penstock.schemas.kinds import PlannedSchema
        from penstock.schemas.plans import EnumStyle
        from penstock.schemas.row_decoder import RowDecoder

        known = {} if before is None else before.planned
        self.planned: dict[Schema, PlannedSchema] = {}
        for one in sorted(schemas.versions, key=lambda each: each.schema.text):  # so a contract is parsed once
            if one.schema not in self.planned:
                made = known.get(one.schema)
                self.planned[one.schema] = made or PlannedSchema.of(one.schema, EnumStyle.NUMBER)
        versions = tuple(replace(one, schema=self.planned[one.schema]) for one in schemas.versions)
        self._decoder = RowDecoder(replace(schemas, versions=versions), enums=EnumStyle.NUMBER)
        self._reasons = Reason
        self._unmarked = bytes([Reason.SUBJECT])
        self._unknown_version = int(Reason.VERSION)

    def of_group(self, group: MessageGroup) -> bytes | None:
        """Return the marks of a group's messages, which have no envelopes; None if all fit."""
        if not group.count:
            return None
        return self.of_rows(_rows(group, 0, group.count))

    def of_rows(self, rows: pa.RecordBatch) -> bytes | None:
        """Return the marks of rows; None if all fit."""
        if not len(rows):
            return None
        reasons = self._decoder.reasons(_needed(rows))
        # A call of Arrow's compute functions would cost more than all of this for a group of few messages.
        begin, end = reasons.offset, reasons.offset + len(rows)
        marks = memoryview(reasons.buffers()[1])[begin:end].tobytes().replace(self._unmarked, b"\0")
        return None if marks.count(0) == len(marks) else marks

    def reason(self, mark: int) -> str:
        """Return the reason that a mark stands for, in words."""
        if mark == UNDECIDED:
            return VERSION_UNDECIDED
        if mark == self._unknown_version:
            return f"{self._reasons(mark).text}: register that version first (penstock schema register)"
        return self._reasons(mark).text

    def explained(self, rows: pa.RecordBatch, row: int, mark: int) -> str:
        """Return the reason that the mark of a row stands for, and what is wrong with its value, as far as known."""
        why = self._decoder.explained(_needed(rows), row)
        return f"{self.reason(mark)} ({why})" if why else self.reason(mark)

    def explained_message(self, group: MessageGroup, row: int, mark: int) -> str:
        """Return the same of a message, which has no envelope."""
        return self.explained(_rows(group, row, row + 1), 0, mark)

    def names_unknown(self, marks: bytes) -> bool:
        """True if a message of these marks names a version that the check does not know."""
        return self._unknown_version in marks

    def undecided(self, marks: bytes) -> bytes:
        """Return the marks with UNDECIDED for messages that name such versions."""
        return marks.replace(bytes([self._unknown_version]), bytes([UNDECIDED]))


def _rows(group: MessageGroup, start: int, end: int) -> pa.RecordBatch:
    message, _ = codec.encode(group, start, end, base_offset=0, timestamp_us=0, leader_epoch=0)
    return codec.read_rows(message)


def _needed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns that decide, with subjects as bytes: nats-server does not check that they are UTF-8."""
    import pyarrow as pa

    subjects = rows.column("subject").cast(pa.binary())
    return pa.record_batch([subjects, rows.column("value"), rows.column("headers")], ["subject", "value", "headers"])


@dataclass(slots=True, eq=False)
class KnownSchemas:
    """The schemas of a stream as a leader knows them. `check`: None if there are none, so that nothing is checked.

    `failure`: why they could not be fetched; what must be checked is refused then. `asked_us`: elapsed time when the
    list of versions was asked for: those registered before are known. `is_cut_off`: the leader of the schemas did not
    answer when it was asked last. `is_wanted`: a message waits for a newer list.
    """

    check: ValueCheck | None
    failure: str = ""
    asked_us: int = 0
    is_cut_off: bool = False
    is_wanted: bool = False

    def awaits_list(self, arrived_us: int, now_us: int) -> bool:
        """True if what arrived then, and names an unknown version, shall wait for a newer list, which is then wanted.

        If it shall not, `decides` says whether this list refuses it.
        """
        if self.decides(arrived_us) or self.is_cut_off or now_us >= arrived_us + _LOOKUP_WAIT_US:
            return False
        self.is_wanted = True
        return True

    def decides(self, arrived_us: int) -> bool:
        """True if the list was asked for after that time."""
        return self.asked_us >= arrived_us
