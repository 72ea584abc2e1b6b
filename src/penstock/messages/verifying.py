"""Verification of one replica, slice by slice, and checksums of its rows, to be compared with other replicas'.

Rules: a broker keeps no state between two requests; the caller passes it back.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.base.ids import PartitionId
from penstock.messages.fields import (
    CrcField,
    Int64Field,
    OffsetField,
    PartitionField,
    Request,
    Response,
    StreamIdField,
)
from penstock.messages.streams import DamageInfo

CRCS = 10


class RowSum(msgspec.Struct, frozen=True, array_like=True):
    """Checksums of the rows in `[begin, end)`: see `commitlog/verify/checksums.py`."""

    begin: OffsetField
    end: OffsetField
    rows: Int64Field
    first_offset: OffsetField
    last_offset: OffsetField
    crcs: Annotated[tuple[CrcField, ...], msgspec.Meta(min_length=CRCS, max_length=CRCS)]


class VerifyRequest(Request, frozen=True, kw_only=True):
    """Verify this broker's replica from `offset` up to `end`, or as far as one answer goes.

    Without `offset` nothing is read. Ranges of checksums begin at `begin` (default `offset`) and at the multiples of
    65,536; `carried` is the incomplete range at the end of the last answer.
    """

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    offset: OffsetField | None = None
    begin: OffsetField | None = None
    end: OffsetField | None = None  # None: the committed end
    carried: RowSum | None = None


class VerifyResponse(Response, frozen=True, kw_only=True):
    """Everything before `end_offset` is verified: continue there. The last of `sums` may be continued, too.

    `damage` ends an answer; rows lost with it are not in `sums`. A request whose `offset` is its `end` verifies the
    checkpoint and the lineage. `size_bytes` counts batches uncompressed.
    """

    log_start: OffsetField
    committed_end: OffsetField
    end_offset: OffsetField
    rows: Int64Field = 0
    size_bytes: Int64Field = 0
    sums: tuple[RowSum, ...] = ()
    damage: DamageInfo | None = None
    # corrupt indexes, checkpoint or lineage: no offset is lost, the broker repairs them
    side_files: tuple[DamageInfo, ...] = ()
