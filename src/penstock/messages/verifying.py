"""Verifying one replica, slice by slice, and the checksums of its rows, which are compared with those of others.

Rules: a broker keeps nothing between two requests. What it is to go on with, it is given again.
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
    """The checksums of the rows between two offsets, `end` not included: see `commitlog/checksums.py`."""

    begin: OffsetField
    end: OffsetField
    rows: Int64Field
    first_offset: OffsetField
    last_offset: OffsetField
    crcs: Annotated[tuple[CrcField, ...], msgspec.Meta(min_length=CRCS, max_length=CRCS)]


class VerifyRequest(Request, frozen=True, kw_only=True):
    """Verify what this broker's replica has from `offset` on, up to `end`, or as far as one answer goes.

    Without `offset` nothing is read. Ranges of checksums begin at `begin` (`offset`, if it is not given) and at the
    multiples of 65,536; `carried` is the one that the last answer ended in.
    """

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    offset: OffsetField | None = None
    begin: OffsetField | None = None
    end: OffsetField | None = None  # None: all that is committed
    carried: RowSum | None = None


class VerifyResponse(Response, frozen=True, kw_only=True):
    """All before `end_offset` is verified: go on there. The last one of `sums` may go on, too.

    `damage` ends an answer; what is lost with it has no rows in `sums`. A request whose `offset` is its `end` has the
    checkpoint and the lineage looked at. `size_bytes` is of batches, not compressed.
    """

    log_start: OffsetField
    committed_end: OffsetField
    end_offset: OffsetField
    rows: Int64Field = 0
    size_bytes: Int64Field = 0
    sums: tuple[RowSum, ...] = ()
    damage: DamageInfo | None = None
    side_files: tuple[DamageInfo, ...] = ()  # indexes, checkpoint, lineage: no offset is lost, the broker mends them
