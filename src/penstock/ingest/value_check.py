"""Check of messages' values against the registered schemas of their subjects, before they are stored.

Rules: a value fits if the stream's schemas decode it, as a reader would (`schemas.row_decoder`). A subject without a
schema is not checked, nor is a tombstone. All values of a group are checked at once, by compiled code. A mark is a byte
for each message: 0 if it fits, else a number that stands for the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.batch import codec
from penstock.hot.message_group import MessageGroup

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.schemas.registry import StreamSchemas


SCHEMAS_UNKNOWN = "the stream's schemas, by which values are checked, are not known here yet"
"""Error of messages that cannot wait for them."""


class ValueCheck:
    """The check of one stream's values. It has no state that messages change."""

    def __init__(self, schemas: StreamSchemas) -> None:
        """Parse the schemas, which may take long. SchemaError: the stream has none, or one has mistakes."""
        from penstock.schemas.decoding import Reason  # all of these import pyarrow
        from penstock.schemas.plans import EnumStyle
        from penstock.schemas.row_decoder import RowDecoder

        self._decoder = RowDecoder(schemas, enums=EnumStyle.NUMBER, decodes_unknown=True)
        self._reasons = Reason
        self._unmarked = int(Reason.SUBJECT)

    def of_group(self, group: MessageGroup) -> bytes | None:
        """Return the marks of a group's messages, which have no envelopes; None if all fit."""
        if not group.count:
            return None
        message, _ = codec.encode(group, 0, group.count, base_offset=0, timestamp_us=0, leader_epoch=0)
        return self.of_rows(codec.read_rows(message))

    def of_rows(self, rows: pa.RecordBatch) -> bytes | None:
        """Return the marks of rows; None if all fit."""
        import pyarrow as pa
        import pyarrow.compute as pc

        # As bytes, for nats-server does not check that subjects are UTF-8.
        subjects = rows.column("subject").cast(pa.binary())
        batch = pa.record_batch(
            [subjects, rows.column("value"), rows.column("headers")], ["subject", "value", "headers"]
        )
        reasons = self._decoder.reasons(batch)
        reasons = pc.if_else(pc.equal(reasons, self._unmarked), pa.scalar(0, pa.uint8()), reasons)
        if not pc.max(reasons).as_py():
            return None
        return bytes(reasons.buffers()[1])[: len(rows)]

    def reason(self, mark: int) -> str:
        """Return the reason that a mark stands for, in words."""
        return self._reasons(mark).text


class KnownSchemas(NamedTuple):
    """The schemas of a stream as a leader knows them. `check`: None if there are none, so that nothing is checked.

    `failure`: why they could not be fetched; what must be checked is refused then.
    """

    check: ValueCheck | None
    failure: str = ""
